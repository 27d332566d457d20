/*
 * Several threads that use the driver at the same time, as each program may: nothing may fail but an allocation.
 *
 *   threads SECONDS KIND     prints the kind's name when they run, for so long or until SIGTERM
 *
 * Of the kind `any` each thread takes another of the first ones each time.
 *
 * The threads of a kind do not wait for each other, and share nothing but what is said: what they have in common is
 * what lies below them.
 */
#define __CUDA_API_VERSION_INTERNAL /* for both kinds of default streams */
#include "kernel.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define THREADS 4
#define MIB (1024ULL * 1024ULL)

static CUcontext contexts[2]; /* the primary ones */
static CUstream shared_stream;
static atomic_bool stop;

struct thread {
  int number;
  unsigned seed;
  CUstream stream;
  CUevent event;
  CUfunction kernel;
};

static unsigned chance(struct thread *thread, unsigned of) {
  return (unsigned)rand_r(&thread->seed) % of;
}

static void launch_some(struct thread *thread, CUstream stream) {
  for (unsigned i = chance(thread, 50); i > 0; i--)
    launch(thread->kernel, stream);
}

/* ---- the kinds: what a thread does again and again --------------------------------------------------------------- */

static void launch_on_own_streams(struct thread *thread) {
  launch_some(thread, thread->stream);
  if (chance(thread, 10) == 0)
    OK(cuStreamSynchronize(thread->stream));
}

static void launch_on_one_stream(struct thread *thread) {
  launch_some(thread, shared_stream);
  if (chance(thread, 10) == 0)
    OK(cuStreamSynchronize(shared_stream));
}

static void launch_on_default_streams(struct thread *thread) {
  launch_some(thread, NULL);
  for (unsigned i = chance(thread, 20); i > 0; i--)
    OK(cuLaunchKernel_ptsz(thread->kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
  OK(chance(thread, 2) == 0 ? cuStreamSynchronize_ptsz(NULL) : cuStreamSynchronize(NULL));
}

static void renew_streams(struct thread *thread) {
  CUstream streams[4];
  for (int i = 0; i < 4; i++)
    OK(cuStreamCreate(&streams[i], chance(thread, 2)));
  for (int i = 0; i < 4; i++)
    launch_some(thread, streams[i]);
  for (int i = 0; i < 4; i++)
    OK(cuStreamDestroy_v2(streams[i]));
}

/* Half of the threads; the others go on in the context that stays. */
static void renew_contexts(struct thread *thread) {
  CUcontext own;
  CUfunction before = thread->kernel;
  if (thread->number % 2 == 0) {
    launch_on_own_streams(thread);
    return;
  }
  OK(cuCtxCreate_v2(&own, 0, 0));
  thread->kernel = kernel_of("spin_20us");
  launch_some(thread, NULL);
  if (chance(thread, 2) == 0)
    OK(cuCtxSynchronize());
  thread->kernel = before;
  OK(cuCtxDestroy_v2(own));
  OK(cuDevicePrimaryCtxRetain(&own, 0));
  OK(cuDevicePrimaryCtxRelease_v2(0));
  OK(cuCtxSetCurrent(contexts[0]));
}

static void wait_in_ways(struct thread *thread, unsigned ways) {
  CUresult result;
  launch_some(thread, thread->stream);
  OK(cuEventRecord(thread->event, thread->stream));
  switch (chance(thread, ways)) {
  case 0:
    OK(cuStreamSynchronize(thread->stream));
    break;
  case 1:
    OK(cuEventSynchronize(thread->event));
    break;
  case 2:
    while ((result = cuStreamQuery(thread->stream)) == CUDA_ERROR_NOT_READY)
      sched_yield();
    OK(result);
    break;
  case 3:
    while ((result = cuEventQuery(thread->event)) == CUDA_ERROR_NOT_READY)
      sched_yield();
    OK(result);
    break;
  default:
    OK(cuCtxSynchronize());
  }
}

static void wait_in_every_way(struct thread *thread) {
  wait_in_ways(thread, 5);
}

static void allocate(struct thread *thread) {
  CUmemPoolProps properties;
  CUmemoryPool pool;
  CUdeviceptr memory, later;
  size_t free_bytes, total_bytes;
  char byte;
  memset(&properties, 0, sizeof properties);
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  launch_some(thread, thread->stream);
  OK(cuMemPoolCreate(&pool, &properties));
  if (cuMemAllocFromPoolAsync(&later, 1 + chance(thread, 8 * MIB), pool, thread->stream) == CUDA_SUCCESS)
    OK(cuMemFreeAsync(later, thread->stream));
  OK(cuMemPoolDestroy(pool));
  if (cuMemAlloc_v2(&memory, 1 + chance(thread, 8 * MIB)) == CUDA_SUCCESS) {
    OK(cuMemcpyDtoH_v2(&byte, memory, 1));
    OK(cuMemFree_v2(memory));
  }
  if (cuMemAllocAsync(&later, 1 + chance(thread, 8 * MIB), thread->stream) == CUDA_SUCCESS)
    OK(cuMemFreeAsync(later, thread->stream));
  OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
  OK(cuStreamSynchronize(thread->stream));
}

static CUgraphExec capture(struct thread *thread, CUstreamCaptureMode mode) {
  CUgraph graph;
  CUgraphExec executable;
  OK(cuStreamBeginCapture_v2(thread->stream, mode));
  launch_some(thread, thread->stream);
  OK(cuStreamEndCapture(thread->stream, &graph));
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  OK(cuGraphDestroy(graph));
  return executable;
}

static void launch_graphs(struct thread *thread) {
  CUgraphExec executable = capture(thread, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  for (unsigned i = chance(thread, 20); i > 0; i--)
    OK(cuGraphLaunch(executable, thread->stream));
  OK(cuStreamSynchronize(thread->stream));
  OK(cuGraphExecDestroy(executable));
}

/* Half of the threads capture; the others launch and wait meanwhile, but not for the context, which nobody may then. */
static void capture_beside_waits(struct thread *thread) {
  if (thread->number % 2 == 0) {
    wait_in_ways(thread, 4);
    return;
  }
  launch_some(thread, thread->stream);
  CUstreamCaptureMode mode =
      chance(thread, 2) == 0 ? CU_STREAM_CAPTURE_MODE_RELAXED : CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  OK(cuGraphExecDestroy(capture(thread, mode)));
}

/* The first thread forks. The child of a process that uses CUDA cannot use it, and is told so. */
static void fork_under_threads(struct thread *thread) {
  if (thread->number != 0) {
    launch_on_own_streams(thread);
    return;
  }
  launch_some(thread, thread->stream);
  pid_t child = fork();
  if (child == 0)
    _exit(cuLaunchKernel(thread->kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) == CUDA_SUCCESS);
  int status;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
    abort();
  usleep(5000);
}

/* Each thread goes from one GPU to the other. */
static void change_gpus(struct thread *thread) {
  CUstream stream;
  OK(cuCtxSetCurrent(contexts[chance(thread, 2)]));
  CUfunction kernel = thread->kernel;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  thread->kernel = kernel_of("spin_20us");
  launch_some(thread, stream);
  launch_some(thread, NULL);
  OK(cuCtxSynchronize());
  thread->kernel = kernel;
  OK(cuStreamDestroy_v2(stream));
  OK(cuCtxSetCurrent(contexts[0]));
}

/* Threads that live for some launches only. */
static void *live_shortly(void *argument) {
  struct thread thread = *(struct thread *)argument;
  OK(cuCtxSetCurrent(contexts[0]));
  launch_some(&thread, thread.stream);
  launch_some(&thread, NULL);
  return NULL;
}

static void begin_threads(struct thread *thread) {
  pthread_t others[2];
  thread->seed++;
  for (int i = 0; i < 2; i++)
    if (pthread_create(&others[i], NULL, live_shortly, thread) != 0)
      abort();
  for (int i = 0; i < 2; i++)
    pthread_join(others[i], NULL);
  OK(cuStreamSynchronize(thread->stream));
}

static void do_any(struct thread *thread);

static const struct kind {
  const char *name;
  void (*again)(struct thread *thread);
} kinds[] = {
    {"own_streams", launch_on_own_streams},
    {"one_stream", launch_on_one_stream},
    {"default_streams", launch_on_default_streams},
    {"new_streams", renew_streams},
    {"new_contexts", renew_contexts},
    {"waits", wait_in_every_way},
    {"memory", allocate},
    {"graphs", launch_graphs},
    {"captures", capture_beside_waits},
    {"forks", fork_under_threads},
    {"two_gpus", change_gpus},
    {"short_threads", begin_threads},
    {"any", do_any},
};

/* Behind these are those that capture or fork, beside which not all may be done. */
static void do_any(struct thread *thread) {
  kinds[chance(thread, 7)].again(thread);
}

/* ---- threads ------------------------------------------------------------------------------------------------------
 */

static const struct kind *kind;

static void *work(void *argument) {
  struct thread thread = {.number = (int)(intptr_t)argument, .seed = (unsigned)(intptr_t)argument + 1};
  OK(cuCtxSetCurrent(contexts[0]));
  thread.kernel = kernel_of("spin_20us");
  OK(cuStreamCreate(&thread.stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&thread.event, 0));
  while (!atomic_load_explicit(&stop, memory_order_relaxed))
    kind->again(&thread);
  return NULL;
}

int main(int count, char **arguments) {
  pthread_t threads[THREADS];
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (count == 3 && strcmp(arguments[2], kinds[i].name) == 0)
      kind = &kinds[i];
  if (kind == NULL)
    return 2;
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, NULL);
  OK(cuInit(0));
  for (int i = 0; i < (kind->again == change_gpus ? 2 : 1); i++)
    OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
  OK(cuCtxSetCurrent(contexts[0]));
  OK(cuStreamCreate(&shared_stream, CU_STREAM_NON_BLOCKING));
  for (intptr_t i = 0; i < THREADS; i++)
    if (pthread_create(&threads[i], NULL, work, (void *)i) != 0)
      abort();
  puts(kind->name);
  fflush(stdout);
  sigtimedwait(&ends, NULL, &(struct timespec){.tv_sec = atoi(arguments[1])});
  atomic_store_explicit(&stop, true, memory_order_relaxed);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  return 0;
}
