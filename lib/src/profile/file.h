/*
 * A profile on the disk: one file for each process, mapped and written in place. So what was stored is there
 * however the process ends. The Python side of the same facts is vgpurun/profiles/layout.py; a test compares them.
 *
 * After a fixed part come chunks of records, a ring: when the file has reached its bound, the oldest chunk that no
 * thread is filling is overwritten, and its records count as dropped. A thread fills a chunk of its own. It raises
 * `used` after it has stored a record, and a chunk's serial changes when it is taken: so a reader that copies a chunk
 * and finds the same serial before and after has `used` whole records, also while the program runs.
 *
 * All times but two are nanoseconds of CLOCK_MONOTONIC; those two are on the axis of CLOCK_REALTIME as it was at the
 * start.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define PROFILE_MAGIC 0x464f525055504756ULL /* "VGPUPROF" */
#define PROFILE_FORMAT 4
#define PROFILE_SUFFIX ".vgpuprofile"

#define PROFILE_MAX_APIS 320
#define PROFILE_API_NAME_SIZE 48
#define PROFILE_MAX_DEVICES 32
#define PROFILE_UUID_SIZE 48
#define PROFILE_TOTALS_SLOTS 16 /* threads beyond these share the last one */
#define PROFILE_MAX_KERNELS 4096
#define PROFILE_NAMES_SIZE 786432
#define PROFILE_CHUNK_SIZE 65536
#define PROFILE_CHUNK_RECORDS 2047
#define PROFILE_CHUNKS_OFFSET 2097152 /* beginning of the ring */

#define PROFILE_NO_DEVICE 255

/* Kinds of records, with what their fields mean where it is not what their names say. */
#define PROFILE_CALL 1
/* A stream kept the GPU busy; value: how long it alone did, in nanoseconds, and launches, in 48 and 16 bits. Of times
 * in which several streams did, each counts for one of them. */
#define PROFILE_SPAN 2
#define PROFILE_WAIT 3   /* a launch was held back */
#define PROFILE_SAMPLE 4 /* at start_ns; value: bytes used by the container, stream: its compute limit in percent */
#define PROFILE_SAMPLE_MORE 5 /* follows a sample; start_ns: its own bytes, duration_ns: its limit, value: busy_ns */

/* `copy`: what a call copies; 1 more than CopyKind of vgpurun/profiles/model.py. */
#define PROFILE_NO_COPY 0
#define PROFILE_HOST_TO_HOST 1
#define PROFILE_HOST_TO_DEVICE 2
#define PROFILE_DEVICE_TO_HOST 3
#define PROFILE_DEVICE_TO_DEVICE 4
#define PROFILE_BY_POINTERS 5

struct profile_record {
  uint64_t start_ns;
  uint64_t duration_ns;
  uint64_t value; /* a call's: the bytes of the copy or allocation */
  uint32_t stream;
  uint16_t api; /* index into the header's names */
  uint8_t device;
  uint8_t kind_and_copy; /* PROFILE_CALL and so on, and in the upper half what is copied */
};

struct profile_chunk {
  uint64_t serial; /* 0: holds nothing; the higher, the later it was taken */
  uint32_t thread;
  uint32_t used; /* records */
  uint32_t open; /* a thread is filling it */
  uint8_t reserved[12];
  struct profile_record records[PROFILE_CHUNK_RECORDS];
};

/* All calls of one function that the threads of one slot have made. */
struct profile_total {
  uint64_t calls;
  uint64_t failed;
  uint64_t bytes;
  uint64_t duration_ns;
  uint64_t longest_ns;
};

struct profile_kernel {
  uint64_t gpu_ns;
  uint32_t name_offset; /* in names */
  uint32_t name_length; /* 0: has none */
};

/* How much of the GPU the launches of a kernel fill, as far as that is known: an older library stores zeros. */
struct profile_fill {
  uint64_t known_ns;  /* the GPU time of launches of which it is known */
  uint64_t filled_ns; /* of that time, the part that they would take if they filled the GPU */
};

struct profile_header {
  uint64_t magic; /* written last */
  uint32_t format;
  uint32_t pid;
  int64_t started_ns;      /* CLOCK_REALTIME */
  int64_t ended_ns;        /* 0: still running, or killed */
  int64_t clock_offset_ns; /* CLOCK_REALTIME - CLOCK_MONOTONIC at the start */
  uint64_t dropped;        /* records that were overwritten, or found no room */
  uint32_t api_count;
  uint32_t device_count;
  uint32_t kernel_count;
  uint32_t names_used; /* bytes */
  char command[1024];
  char devices[PROFILE_MAX_DEVICES][PROFILE_UUID_SIZE];
  char apis[PROFILE_MAX_APIS][PROFILE_API_NAME_SIZE];
};

struct profile_file {
  struct profile_header header;
  struct profile_total totals[PROFILE_TOTALS_SLOTS][PROFILE_MAX_APIS];
  uint64_t launches[PROFILE_TOTALS_SLOTS][PROFILE_MAX_KERNELS]; /* each kernel's, by the threads of one slot */
  struct profile_kernel kernels[PROFILE_MAX_KERNELS];
  char names[PROFILE_NAMES_SIZE];
  struct profile_fill fills[PROFILE_MAX_KERNELS];
};

_Static_assert(sizeof(struct profile_record) == 32, "layout");
_Static_assert(sizeof(struct profile_chunk) == PROFILE_CHUNK_SIZE, "layout");
_Static_assert(sizeof(struct profile_total) == 40, "layout");
_Static_assert(sizeof(struct profile_kernel) == 16, "layout");
_Static_assert(sizeof(struct profile_fill) == 16, "layout");
_Static_assert(sizeof(struct profile_file) <= PROFILE_CHUNKS_OFFSET, "layout");
