/* Whether the GPU mixes our work with another's, so that the time that passes is not all ours. */
#ifndef VGPU_BESIDE_H
#define VGPU_BESIDE_H

#include "meter.h"

/* After a wait at the gate, with the claim on the stream: looks, now and then, where nothing of ours is on the GPU. */
void beside_look(struct meter_stream *stream);

#endif
