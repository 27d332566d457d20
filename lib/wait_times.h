/* How long launches waited for their turn, as a histogram for display (vgpurun/limits/wait_times.py): the first bucket
 * counts waits of less than 64 us, each one after it those of up to twice as much, and the last one all others. */
#ifndef VGPU_WAIT_TIMES_H
#define VGPU_WAIT_TIMES_H

#include "abi.h"

#define WAIT_TIMES_FIRST_NS 64000LL

void wait_times_note(struct vgpu_wait_times *times, int64_t now_ns, int64_t waited_ns);

#endif
