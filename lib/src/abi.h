/*
 * Everything that the library shares with the host: names, paths and the layout of two files. The Python side of the
 * same facts is vgpurun/abi.py; tests/unit/test_abi.py compiles this header and compares every value and offset.
 *
 * limits  written by the host before the container starts, read-only inside it. Devices are named by UUID.
 * usage   written by the processes of the container, read by the host for display. It is untrusted input for
 *         both: nothing in it can raise the memory limit of a process, and readers bound everything that they take
 *         from it.
 *
 * A share may be a part of another one: then its limits file says so, and the two files of the other are found from its
 * own place. A process counts in the usage files of all levels, at most VGPU_MAX_LEVELS.
 *
 * An all-zero usage file is a valid, empty one: processes may create it at the same moment without a lock. It is read
 * and written by system calls: a process changes shared fields under a lock on their bytes; its own slot needs none.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define VGPU_VERSION "0.2.0"
#define VGPU_ABI_VERSION 3

/* Inside a container. On the host, for `vgpurun local`, VGPURUN_LIMITS_FILE names the limits file. */
#define VGPU_CONTAINER_DIR "/.vgpurun"
#define VGPU_CONTAINER_LIBRARY "/.vgpurun/libvgpu.so"
#define VGPU_CONTAINER_LIMITS "/.vgpurun/etc/limits"
#define VGPU_CONTAINER_USAGE "/.vgpurun/run/usage"
#define VGPU_CONTAINER_PRESENCE "/.vgpurun/run/presence"
#define VGPU_CONTAINER_TENANTS "/.vgpurun/tenants" /* VGPU_LOCK_DIR, read-only */
#define VGPU_CONTAINER_PROFILE "/.vgpurun/profile"
#define VGPU_LOCK_DIR "/var/tmp/vgpulock" /* a folder of each tenant, with its limits and its presence */
#define VGPU_PRESENCE_NAME "presence1"    /* contains the number of its layout: tenants/presence.h */
#define VGPU_PRESENCE_BYTES 65536

#define VGPU_ENV_MEMORY_LIMIT "CUDA_DEVICE_MEMORY_LIMIT" /* and _<i>, i the NVML index */
#define VGPU_ENV_OVERSUBSCRIBE "CUDA_OVERSUBSCRIBE"      /* true: the memory limit is the virtual one */
#define VGPU_ENV_MEMORY_SHARE "CUDA_DEVICE_MEMORY_SHARE" /* the device's memory limit then; and _<i> */
#define VGPU_ENV_SM_LIMIT "CUDA_DEVICE_SM_LIMIT"         /* and _<i> */
#define VGPU_ENV_USAGE_FILE "CUDA_DEVICE_MEMORY_SHARED_CACHE"
#define VGPU_ENV_LOG_LEVEL "LIBCUDA_LOG_LEVEL"
#define VGPU_ENV_WRAPPER_MEMORY "WRAPPER_MAX_MEMORY"        /* cuda-wrapper's name */
#define VGPU_ENV_ALNAIR_SM "ALNAIR_VGPU_COMPUTE_PERCENTILE" /* Alnair's name */
#define VGPU_ENV_SM_POLICY "GPU_CORE_UTILIZATION_POLICY"    /* HAMi's names */
#define VGPU_ENV_PRIORITY "CUDA_TASK_PRIORITY"
#define VGPU_ENV_LIMITS_FILE "VGPURUN_LIMITS_FILE"
#define VGPU_ENV_PRESENCE_FILE "VGPURUN_PRESENCE_FILE"
#define VGPU_ENV_LIMITS_TAKEN                                                                                          \
  "VGPURUN_LIMITS_TAKEN"         /* NAME=VALUE;...: variables that are in the limits file already                      \
                                  */
#define VGPU_ENV_PROFILE "PFLOG" /* Alnair's name: the folder for profiles */
#define VGPU_ENV_PROFILE_SIZE "VGPURUN_PROFILE_SIZE"
#define VGPU_ENV_DISABLE_CONTROL "CUDA_DISABLE_CONTROL" /* HAMi's name; see may_disable */

#define VGPU_MAX_LEVELS 4
#define VGPU_MAX_DEVICES 32
#define VGPU_MAX_PROCESSES 1024
#define VGPU_UUID_SIZE 48 /* "GPU-" or "MIG-" and 36 characters, zero padded */

#define VGPU_LIMITS_MAGIC 0x53544d494c474356ULL /* "VCGLIMTS" */
#define VGPU_USAGE_MAGIC 0x4547415355474356ULL  /* "VCGUSAGE" */
#define VGPU_NO_MEMORY_LIMIT UINT64_MAX
#define VGPU_NO_SM_LIMIT 100u

/* When sm_limit_percent holds. Anything else is read as hard. */
#define VGPU_SM_HARD 0u  /* always */
#define VGPU_SM_BURST 1u /* while another tenant wants the GPU; then the limits are weights */
#define VGPU_SM_OFF 2u   /* never, and unseen by other tenants */

/* Whether the host has taken the GPUs from all processes of the container. Anything else is read as suspended. */
#define VGPU_NOT_SUSPENDED 0u
#define VGPU_SUSPENDING 1u /* or coming back: the memory and the time are still, or again, the container's */
#define VGPU_SUSPENDED 2u
#define VGPU_SWAPPED 3u /* until its turn: what it had is in host memory, and reserved still */

#define VGPU_PRIORITY_HIGH 0u
#define VGPU_PRIORITY_LOW 1u /* and anything above */

struct vgpu_device_limit {
  char uuid[VGPU_UUID_SIZE];
  uint64_t memory_limit_bytes;  /* on the device. VGPU_NO_MEMORY_LIMIT: none. 0 refuses everything. */
  uint64_t virtual_limit_bytes; /* seen by the program: the host serves beyond memory_limit_bytes. 0: the same */
  uint32_t sm_limit_percent;    /* 1 to 100; VGPU_NO_SM_LIMIT: none. Anything else is read as 1. */
  uint32_t sm_policy;
  uint32_t priority;         /* VGPU_PRIORITY_*, as in HAMi's CUDA_TASK_PRIORITY */
  uint32_t paused;           /* not 0: no GPU work begins */
  uint64_t guaranteed_bytes; /* reserved for it, a part of memory_limit_bytes; 0: all. Not read by the library */
  uint32_t sms_percent;      /* its SMs, told to the driver; 0: all. Not read by the library */
  uint8_t reserved[36];
};

struct vgpu_limits {
  uint64_t magic;
  uint32_t abi_version;
  uint32_t device_count;
  uint32_t may_disable; /* not 0: a program with CUDA_DISABLE_CONTROL=true is not limited */
  uint32_t suspended;   /* VGPU_*SUSPEND*: else calls of CUDA wait, and ask for the GPUs */
  uint32_t swap;        /* not 0: it takes turns with others, and its memory is on the GPU in its own ones alone */
  uint32_t movable;     /* not 0: a container of it has other GPUs' nodes as well, which CUDA is not to show there */
  uint32_t moves;       /* how often it has been moved to other GPUs: variables may name those that it had */
  uint32_t together;    /* not 0: its programs are clients of one MPS server, whose time the host limits as a whole */
  uint8_t reserved[20];
  uint32_t
      has_parent; /* not 0: a share within another one, whose etc/limits and run/usage are in ../parent from here */
  struct vgpu_device_limit devices[VGPU_MAX_DEVICES];
};

#define VGPU_SECONDS 64

#define VGPU_NOT_ENFORCED_MEMORY 1u /* the driver took memory that could not be measured: NVML does not answer */
#define VGPU_NOT_ENFORCED_SM 2u     /* work went by that could not be measured */

/* Mechanisms that hold a process to its compute limit on a device. */
#define VGPU_LIMITER_NONE 0u      /* nothing yet: it has launched nothing there that is limited */
#define VGPU_LIMITER_SCHEDULER 1u /* the GPU's own scheduler, exactly */
#define VGPU_LIMITER_LAUNCHES 2u  /* its launches are held, since the driver did not let the scheduler do it */

/* A device, for all processes of the container. Its number is its place in the limits file or, without one, its NVML
 * index. Times are nanoseconds of CLOCK_MONOTONIC. */
struct vgpu_device_shared {
  char uuid[VGPU_UUID_SIZE];
  uint64_t memory_limit_bytes; /* the limit in force, for display */
  uint32_t sm_limit_percent;   /* likewise */
  uint32_t not_enforced;       /* VGPU_NOT_ENFORCED_*: what has gone wrong since the file was made */
  int64_t tokens_zero_at_ns;   /* when the token bucket stands at exactly zero (base/bucket.h) */
  int64_t charged_until_ns;    /* by processes whose launches are held: together no more than the time that passes */
  uint64_t busy_ns;            /* GPU time charged since the file was made */
  uint64_t throttled_ns;       /* time that work, or launches, waited for tokens, over all processes */
  uint64_t launches;           /* measured ones */
  uint64_t refusals;           /* allocations refused for the limit */
  int64_t last_launch_ns;
  uint64_t reserved0;
  /* GPU time charged in each of the last seconds: the second of CLOCK_MONOTONIC in the upper half, its microseconds of
   * GPU time in the lower one, at the second modulo VGPU_SECONDS. */
  uint64_t seconds[VGPU_SECONDS];
  uint8_t reserved[384];
};

struct vgpu_device_usage {
  uint64_t allocated_bytes; /* requested by the program, rounded like the driver does */
  uint64_t overhead_bytes;  /* held by the driver besides: contexts, modules, fragmentation */
  uint64_t managed_bytes;   /* a part of allocated_bytes: on the device only as far as they have been touched */
  uint64_t context_bytes;   /* a part of overhead_bytes: taken by contexts when they were made; modules took the rest */
  uint64_t host_bytes;      /* beyond these: allocations past the device's share, which live on the host */
  uint64_t counted_bytes;   /* all the above, and bytes reserved or kept for calls to come (memory/ledger.h) */
  uint64_t limiter;         /* VGPU_LIMITER_*; a higher one may follow */
  uint64_t reserved;
};

/* A slot. Its owner holds an open-file-description write lock on byte VGPU_SLOT_LOCK_OFFSET + slot number of the usage
 * file; a slot without that lock belongs to nobody and counts as empty, whatever it holds. */
struct vgpu_process_usage {
  uint32_t pid;           /* in its own PID namespace: by it NVML names the process there, and nowhere else */
  uint32_t pid_namespace; /* the number of its namespace, from /proc/self/ns/pid; 0: unknown */
  uint32_t shares_memory; /* not 0: it has given handles of GPU memory to other processes, or opened theirs */
  uint8_t reserved[52];
  struct vgpu_device_usage devices[VGPU_MAX_DEVICES];
};

struct vgpu_usage {
  uint64_t magic; /* 0 until the first process has written it */
  uint32_t abi_version;
  uint32_t slots_used; /* slots at and above this number were never claimed */
  int64_t asked_ns;    /* when a call of CUDA last waited for GPUs that the host has taken; 0: never */
  uint8_t reserved[40];
  struct vgpu_device_shared devices[VGPU_MAX_DEVICES];
  struct vgpu_process_usage processes[VGPU_MAX_PROCESSES];
};

#define VGPU_SLOT_LOCK_OFFSET (1ULL << 30) /* past the data: a lock needs no byte behind it */

/* On this byte a process that is within its first call of CUDA has a read lock, by its open file description: which
 * GPUs it will see is decided there, so that the host moves the container to others before or after it. */
#define VGPU_START_LOCK_OFFSET (VGPU_SLOT_LOCK_OFFSET - 2)

/* The marker by which `vgpurun` recognises a built library without loading it. */
#define VGPU_MARKER_PREFIX "vgpurun-library version="

_Static_assert(sizeof(struct vgpu_device_limit) == 128, "layout");
_Static_assert(sizeof(struct vgpu_limits) == 64 + 128 * VGPU_MAX_DEVICES, "layout");
_Static_assert(sizeof(struct vgpu_device_shared) == 1024, "layout");
_Static_assert(sizeof(struct vgpu_device_usage) == 64, "layout");
_Static_assert(sizeof(struct vgpu_process_usage) == 64 + 64 * VGPU_MAX_DEVICES, "layout");
_Static_assert(sizeof(struct vgpu_usage) ==
                   64 + 1024 * VGPU_MAX_DEVICES + (64 + 64 * VGPU_MAX_DEVICES) * VGPU_MAX_PROCESSES,
               "layout");
