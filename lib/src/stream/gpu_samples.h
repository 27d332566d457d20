/* The driver's utilization samples of a device, by NVML. */
#pragma once

#include "scheduler/samples.h"

/* A samples_ask. */
int gpu_samples_ask(const void *device, int64_t since_ns, struct gpu_sample samples[SAMPLES_MOST]);
