/* Waiting for the device, as cuCtxSynchronize and its relatives do. */
#pragma once

#include "driver.h"

/* Leaves the driver, waits for a moment on the device, and comes back in to give unused pool memory back. */
CUresult synchronize_and_leave(uint64_t until_ns);
