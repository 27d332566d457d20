/* Primary contexts: one per device and process, counted. */
#ifndef SIM_PRIMARY_H
#define SIM_PRIMARY_H

#include "contexts.h"

/* The primary context of a device, created without being active. NULL when there is no memory. */
struct context *context_primary(unsigned device);

#endif
