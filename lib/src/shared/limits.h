/*
 * Finds where limits come from. A text that cannot be parsed is never "unlimited": it is read as the strictest limit
 * there is, and one line on stderr says so.
 */
#pragma once

#include "abi.h"
#include "base/compiler.h"
#include "shared/limit_text.h"

#include <stdbool.h>

#define LIMITS_STRICTEST_MEMORY_BYTES 0
#define LIMITS_STRICTEST_SM_PERCENT 1

struct limits {
  uint64_t memory_bytes;  /* on the device. VGPU_NO_MEMORY_LIMIT: none */
  uint64_t virtual_bytes; /* including host memory; never less */
  uint32_t sm_percent;    /* 1 to 100, VGPU_NO_SM_LIMIT: none */
  uint32_t sm_policy;     /* VGPU_SM_* */
  uint32_t priority;      /* VGPU_PRIORITY_* */
  bool paused;
  bool swaps;       /* takes turns with its memory: so its work is measured, with a limit or without */
  bool is_served;   /* a part of another share: the host serves past that one's memory */
  bool is_together; /* a client of an MPS server: the host holds the limit of time, and sets the time slice */
};

/* HAMi's words: "force" holds the limit always, "default" while another tenant wants the GPU, "disable" never. */
bool limits_parse_policy(const char *text, uint32_t *sm_policy);

/* Is any limit variable set? Decides whether a process outside a container is limited at all. */
bool limits_in_environment(void);

/* Is compute limited, paused, or measured for turns with memory, on any device? */
bool limits_of_compute_in_environment(void);
bool limits_of_compute_in_file(const struct vgpu_limits *file);

/* Is a variable set that limits every device, and that the launch did not take into the limits file? Beside such a file
 * those alone count: the host sets the others, with what the file had then. */
bool limits_of_every_device_in_environment(void);

/* The limits that the environment sets for the device with this NVML index; LIMITS_EVERY_DEVICE: for each. */
#define LIMITS_EVERY_DEVICE (-1)
struct limits limits_from_environment(int device_index, uint64_t device_bytes);

/* The limits that the file sets for a device; a device that it does not list was not granted and gets the strictest. */
struct limits limits_from_file(const struct vgpu_limits *file, int device_number);

/* May memory be had past the device's share? */
static inline bool limits_oversubscribe(struct limits limits) {
  return limits.virtual_bytes > limits.memory_bytes || limits.is_served;
}

/* The limits of a share that is a part of another one: the least of both. Policy and priority are the outer one's. */
struct limits limits_within(struct limits outer, struct limits inner);

/* The percentage that holds, no matter which tenants are there. */
static inline uint32_t limits_hard_percent(struct limits limits) {
  return limits.sm_policy == VGPU_SM_OFF ? VGPU_NO_SM_LIMIT : limits.sm_percent;
}

/* The place of a device in the file, or -1. */
int limits_find_device(const struct vgpu_limits *file, const char *uuid);
