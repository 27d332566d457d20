/* Takes what a context has while it is active, and lets go of it when the context no longer is. */
#ifndef SIM_CONTEXT_LIVES_H
#define SIM_CONTEXT_LIVES_H

#include "contexts.h"

/* Makes an active context on a device, which costs memory there, or frees all that one holds. */
CUresult context_activate(struct context *context);
void context_deactivate(struct context *context);

#endif
