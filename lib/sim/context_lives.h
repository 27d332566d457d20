/* Takes what a context has while it is active, and lets go of it when the context no longer is. */
#pragma once

#include "contexts.h"

/* Makes an active context on a device, which costs memory there, or frees all that one holds. */
CUresult context_activate(struct context *context);
void context_deactivate(struct context *context);
