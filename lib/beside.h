/* Whose work is on the GPU beside ours, so that the time that passes is not all ours. */
#ifndef VGPU_BESIDE_H
#define VGPU_BESIDE_H

#include "meter.h"

/* How many other tenants have the GPU mix their work with ours: those that say so; and those that have launched and
 * been silent since, as long as we see that something is there. */
uint32_t beside_count(struct meter *meter);

/* Before a batch opens on the stream, when it is our turn: looks, now and then, where one is silent. */
void beside_look(struct meter_stream *stream);

#endif
