/*
 * Thread A launches on a stream of its own, captures in it for two milliseconds, and launches the graph. Thread B
 * launches on another stream meanwhile, and waits. Prints how many of A's captures have failed.
 *
 *   captures CAPTURES MODE WAIT
 *
 * MODE is 0 for global, 1 for thread-local, 2 for relaxed. Where B waits, its thread is relaxed: a global capture
 * forbids it to wait otherwise. In a relaxed capture A waits, too.
 * WAIT is event, stream, copy, event_query, stream_query or nothing. With context, B waits for all of a context of its
 * own. With legacy, B launches on the legacy stream between the captures, and waits for an event during them.
 */
#include "kernel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device); /* in no header of CUDA 13 */

static CUcontext context;
static const char *wait_name;
static CUstreamCaptureMode mode;
static int captures;
static atomic_bool done;
static pthread_barrier_t between;

static void pause_us(long us) {
  nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

static int is_wait(const char *name) {
  return strcmp(wait_name, name) == 0;
}

static void wait_for(CUstream stream, CUevent event, CUdeviceptr memory) {
  char copy[64];
  CUresult result;
  if (is_wait("event") || is_wait("legacy"))
    OK(cuEventSynchronize(event));
  if (is_wait("stream"))
    OK(cuStreamSynchronize(stream));
  if (is_wait("copy"))
    OK(cuMemcpyDtoH(copy, memory, sizeof copy));
  if (is_wait("context"))
    OK(cuCtxSynchronize());
  while (is_wait("event_query") && (result = cuEventQuery(event)) != CUDA_SUCCESS)
    result == CUDA_ERROR_NOT_READY ? pause_us(50) : OK(result);
  while (is_wait("stream_query") && (result = cuStreamQuery(stream)) != CUDA_SUCCESS)
    result == CUDA_ERROR_NOT_READY ? pause_us(50) : OK(result);
}

static void *launch_and_wait(void *unused) {
  CUcontext own;
  CUstream stream = NULL;
  CUevent event;
  CUdeviceptr memory;
  CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (is_wait("context"))
    OK(cuCtxCreate_v2(&own, 0, 0));
  else
    OK(cuCtxSetCurrent(context));
  CUfunction kernel = kernel_of("spin_50us");
  if (!is_wait("legacy"))
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, 0));
  OK(cuMemAlloc(&memory, 4096));
  if (!is_wait("nothing"))
    OK(cuThreadExchangeStreamCaptureMode(&relaxed));
  pthread_barrier_wait(&between);
  for (int i = 0; is_wait("legacy") ? i < captures : !atomic_load(&done); i++) {
    launch(kernel, stream);
    OK(cuEventRecord(event, stream));
    if (is_wait("legacy"))
      pthread_barrier_wait(&between);
    wait_for(stream, event, memory);
    if (is_wait("legacy"))
      pthread_barrier_wait(&between);
    if (i % 8 == 0)
      pause_us(500);
  }
  return unused;
}

static int capture(CUfunction kernel, CUstream stream, CUevent event) {
  CUgraph graph = NULL;
  CUgraphExec executable;
  launch(kernel, stream);
  OK(cuEventRecord(event, stream));
  if (is_wait("legacy"))
    pthread_barrier_wait(&between);
  OK(cuStreamBeginCapture(stream, mode));
  pause_us(2000);
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED)
    OK(cuEventSynchronize(event));
  CUresult first = cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
  CUresult end = cuStreamEndCapture(stream, &graph);
  if (is_wait("legacy"))
    pthread_barrier_wait(&between);
  if (first != CUDA_SUCCESS || end != CUDA_SUCCESS)
    return 1;
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuGraphLaunch(executable, stream));
  OK(cuGraphExecDestroy(executable));
  OK(cuGraphDestroy(graph));
  return 0;
}

int main(int count, char **arguments) {
  if (count < 4)
    return 2;
  int failed = 0;
  CUstream stream;
  CUevent event;
  pthread_t other;
  captures = atoi(arguments[1]);
  mode = (CUstreamCaptureMode)atoi(arguments[2]);
  wait_name = arguments[3];
  OK(cuInit(0));
  context = enter(0);
  CUfunction kernel = kernel_of("spin_100us");
  OK(cuStreamCreate(&stream, is_wait("legacy") ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, 0));
  pthread_barrier_init(&between, NULL, 2);
  pthread_create(&other, NULL, launch_and_wait, NULL);
  pthread_barrier_wait(&between);
  for (int i = 0; i < captures; i++)
    failed += capture(kernel, stream, event);
  atomic_store(&done, 1);
  pthread_join(other, NULL);
  printf("%d\n", failed);
  return 0;
}
