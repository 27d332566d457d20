#include "stream/profile_streams.h"

#include "base/claim.h"
#include "base/clock.h"
#include "base/log.h"
#include "memory/table.h"
#include "stream/profile.h"
#include "stream/profile_flights.h"
#include "stream/streams.h"

#include <sched.h>
#include <stdlib.h>

#define LEARNED_FROM 3   /* then its work is known */
#define FIRST_LAUNCHES 8 /* if that cannot be learned, for example where the GPU waits for each launch */
#define SAMPLE_EVERY 128 /* launches of known work: one is measured alone all the same */
#define PAUSE_NS 1000000LL
#define ASK_AGAIN 64 /* launches on a default stream: should the context have changed unseen, that is noticed soon */
#define CLAIM_TRIES 50
#define CLAIM_PATIENCE_NS 1000000LL

static struct table streams = TABLE_INITIALIZER; /* key -> profile_stream */
static uint32_t generation = 1;                  /* changes when a handle loses its meaning */
static bool captures;                            /* has any begun? */

/* The stream on which the thread launched last. */
static __thread struct {
  CUstream handle;
  struct profile_stream *found;
  uint32_t generation;
  uint32_t asks_left;
} last;
static __thread struct profile_stream *left_open;

/* ---- which stream a handle means ------------------------------------------------------------------------------- */

static COLD struct profile_stream *add(CUstream handle, uint64_t key) {
  CUcontext context = NULL;
  if (real.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == NULL)
    return NULL;
  struct profile_stream *added = profile_flights_stream(handle, context, (uint32_t)key);
  if (added != NULL && table_put(&streams, (struct table_entry){.key = key, .owner = added}))
    return added;
  return NULL;
}

static COLD struct profile_stream *look_up(CUstream handle, bool adds) {
  CUcontext context = NULL;
  bool is_default = streams_is_default(handle);
  if (is_default && (real.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == NULL))
    return NULL;
  uint32_t now = __atomic_load_n(&generation, __ATOMIC_ACQUIRE);
  uint64_t key = streams_key(handle, context);
  struct table_entry entry;
  struct profile_stream *found = table_get(&streams, key, &entry) ? entry.owner : NULL;
  if (found != NULL && (__atomic_load_n(&found->handle, __ATOMIC_RELAXED) != handle ||
                        (is_default && __atomic_load_n(&found->context, __ATOMIC_RELAXED) != context)))
    found = NULL; /* its context has been destroyed */
  if (found == NULL && adds)
    found = add(handle, key);
  if (found == NULL)
    return NULL;
  last.handle = handle;
  last.found = found;
  last.generation = now;
  last.asks_left = is_default ? ASK_AGAIN : UINT32_MAX;
  return found;
}

static inline struct profile_stream *find(CUstream handle, bool adds) {
  if (__builtin_expect(last.handle == handle && last.asks_left > 0 &&
                           last.generation == __atomic_load_n(&generation, __ATOMIC_ACQUIRE),
                       1)) {
    last.asks_left--;
    return last.found;
  }
  return look_up(handle, adds);
}

void profile_streams_context_changes(void) {
  last.asks_left = 0;
}

/* ---- claims ----------------------------------------------------------------------------------------------------- */

/* Another thread is launching on the stream, in the driver perhaps, where this one would have to wait as well. */
static COLD bool claim_again(struct profile_stream *stream) {
  for (int tries = 0; tries < CLAIM_TRIES; tries++) {
    claim_pause();
    if (__atomic_load_n(&stream->claim, __ATOMIC_RELAXED) == 0 && claim_try(&stream->claim))
      return true;
  }
  int64_t give_up_ns = clock_now_ns() + CLAIM_PATIENCE_NS;
  bool mine;
  while (!(mine = claim_try(&stream->claim) || claim_recover(&stream->claim)) && clock_now_ns() < give_up_ns)
    syscall(SYS_sched_yield);
  return mine;
}

static inline bool claim(struct profile_stream *stream) {
  return __builtin_expect(claim_try(&stream->claim), 1) || claim_again(stream);
}

static inline bool is_open(const struct profile_stream *stream) {
  return __atomic_load_n(&stream->is_open, __ATOMIC_RELAXED);
}

/* The calling thread is using the stream, or has used it last. */
static COLD void close_open(struct profile_stream *stream, bool by_its_launcher) {
  if (!claim(stream))
    return;
  if (is_open(stream) && (!by_its_launcher || stream->launcher == claim_this_thread()))
    profile_flights_close(stream, meters_driver.is_here(__atomic_load_n(&stream->context, __ATOMIC_RELAXED)));
  claim_release(&stream->claim);
}

/* The thread goes on elsewhere: what it has launched last is marked while it may do that. */
static inline void leave(const struct profile_stream *for_stream) {
  struct profile_stream *stream = left_open;
  if (__builtin_expect(stream == NULL || stream == for_stream, 1))
    return;
  left_open = NULL;
  if (is_open(stream))
    close_open(stream, true);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* The handle may be a kernel's of a library, which the driver takes for a function where it launches. */
static COLD struct profile_work *name_kernel(CUfunction function, uint64_t key) {
  const char *name = NULL;
  if (real.cuFuncGetName(&name, function) != CUDA_SUCCESS &&
      real.cuKernelGetName(&name, (CUkernel)function) != CUDA_SUCCESS)
    name = NULL;
  return profile_kernels_name(key, name);
}

static inline struct profile_work *work_of(CUfunction function, uint64_t key) {
  if (function == NULL)
    return profile_kernels_graph(key);
  struct profile_work *work = profile_kernels_find(key);
  return __builtin_expect(work != NULL, 1) ? work : name_kernel(function, key);
}

/* Asks for how many blocks the current device has room at a time; 0: the driver does not say. */
static COLD uint64_t ask_room(CUfunction function, const struct profile_size *size) {
  CUdevice device;
  int multiprocessors, blocks;
  if (real.cuCtxGetDevice(&device) != CUDA_SUCCESS ||
      real.cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS ||
      real.cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, (int)size->block_threads,
                                                       size->shared_bytes) != CUDA_SUCCESS)
    return 0;
  return (uint64_t)max(multiprocessors, 0) * (uint64_t)max(blocks, 0);
}

/* Kernels that share a work, and those of graphs, have no fill. Nothing is asked within a capture. */
static inline uint32_t fill_of(struct profile_work *work, CUfunction function, uint64_t key,
                               const struct profile_size *size) {
  if (function == NULL || atomic_load_explicit(&work->key, memory_order_relaxed) != key)
    return 0;
  if (__builtin_expect(!profile_kernels_knows_room(work, size), 0))
    profile_kernels_note_room(work, size, ask_room(function, size));
  return profile_kernels_fill(work, size);
}

static inline bool is_measured_alone(struct profile_work *work) {
  uint32_t begun = atomic_load_explicit(&work->begun, memory_order_relaxed);
  atomic_store_explicit(&work->begun, begun + 1, memory_order_relaxed);
  return begun % SAMPLE_EVERY == 0 || atomic_load_explicit(&work->usual_ns, memory_order_relaxed) == 0 ||
         (begun < FIRST_LAUNCHES && atomic_load_explicit(&work->learned, memory_order_relaxed) < LEARNED_FROM);
}

HOT struct profile_launch profile_streams_launch(CUstream handle, CUfunction function, uint64_t key,
                                                 const struct profile_size *size, int64_t now_ns) {
  struct profile_work *work = work_of(function, key);
  struct profile_launch launch = {.work = work, .kernel = atomic_load_explicit(&work->kernel, memory_order_relaxed)};
  if (__builtin_expect(__atomic_load_n(&captures, __ATOMIC_RELAXED), 0) && meters_driver.is_capturing(handle))
    return launch;
  launch.counts = true;
  uint32_t fill = fill_of(work, function, key, size);
  struct profile_stream *stream = find(handle, true);
  leave(stream);
  if (stream == NULL)
    return launch;
  if (__builtin_expect(!claim(stream), 0)) {
    __atomic_store_n(&stream->has_strangers, true, __ATOMIC_RELAXED);
    return launch;
  }
  bool alone = is_measured_alone(work) || profile_flights_compete(stream);
  struct profile_group *group = &stream->open;
  if (is_open(stream) && (alone || !profile_group_takes(group, work) || now_ns - group->ready_ns > PAUSE_NS))
    profile_flights_close(stream, true);
  launch.is_first = !is_open(stream);
  if (launch.is_first) {
    launch.counts = profile_flights_open(stream);
    now_ns = quick_clock_ns();
  }
  if (!launch.counts) {
    claim_release(&stream->claim);
    return launch;
  }
  profile_group_join(group, work, key, fill, now_ns);
  stream->launcher = claim_this_thread();
  left_open = stream;
  launch.stream = stream;
  launch.ends_group = alone || group->usual_ns >= PROFILE_GROUP_NS || group->launches >= PROFILE_GROUP_LAUNCHES;
  if (!launch.is_first && !launch.ends_group)
    claim_release(&stream->claim);
  return launch;
}

/* A callback within the launch may have launched on the stream itself, and taken the claim. */
static COLD void end_launch(const struct profile_launch *launch, bool well) {
  struct profile_stream *stream = launch->stream;
  bool keeps_claim = launch->is_first || launch->ends_group;
  if (keeps_claim ? !claim_is_own(&stream->claim) : !claim(stream))
    return;
  if (is_open(stream)) {
    if (!well)
      profile_group_take_back(&stream->open, launch->work);
    if (launch->is_first)
      stream->open.returned_ns = quick_clock_ns();
    if (launch->ends_group)
      profile_flights_close(stream, true);
  }
  claim_release(&stream->claim);
  if (launch->ends_group)
    profile_flights_harvest_now_and_then();
}

HOT void profile_streams_launched(const struct profile_launch *launch, bool well) {
  if (well && launch->counts)
    profile_records_count_launch(launch->kernel);
  if (launch->stream != NULL && (launch->is_first || launch->ends_group || !well))
    end_launch(launch, well);
}

/* ---- everything else -------------------------------------------------------------------------------------------- */

void profile_streams_use(CUstream handle) {
  struct profile_stream *stream = find(handle, false);
  if (stream != NULL && is_open(stream))
    close_open(stream, false);
}

void profile_streams_capture(void) {
  __atomic_store_n(&captures, true, __ATOMIC_RELAXED);
}

void profile_streams_wait(void) {
  leave(NULL);
}

void profile_streams_waited(void) {
  profile_flights_harvest(FLIGHTS_DONE);
}

void profile_streams_end(CUstream handle) {
  struct table_entry entry;
  if (streams_is_default(handle))
    return;
  profile_streams_use(handle);
  if (!table_take(&streams, streams_key(handle, NULL), &entry))
    return;
  __atomic_add_fetch(&generation, 1, __ATOMIC_RELEASE);
  profile_flights_end_stream(entry.owner, handle);
}

bool profile_streams_pause(void) {
  leave(NULL);
  return profile_flights_pause();
}

void profile_streams_resume(bool paused, CUcontext destroyed) {
  if (destroyed != NULL)
    __atomic_add_fetch(&generation, 1, __ATOMIC_RELEASE);
  profile_flights_resume(paused, destroyed);
}

static void profile_streams_forget(void) {
  table_abandon(&streams);
  generation++;
  captures = false;
  left_open = NULL;
}
PROCESS_IN_CHILD(profile_streams_forget);
