/*
 * Four threads that launch as fast as they can, each on a stream of its own.
 *
 *   longest_launch SECONDS     prints how many milliseconds the longest took, and how many launches there were
 */
#include "kernel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define THREADS 4
#define IN_FLIGHT 2000

static CUcontext context;
static atomic_bool stop;

struct thread {
  int64_t longest_ns;
  long launches;
};

static void *work(void *thread_) {
  struct thread *thread = thread_;
  CUstream stream;
  OK(cuCtxSetCurrent(context));
  CUfunction kernel = kernel_of("spin_1us");
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (thread->launches = 0; !stop; thread->launches++) {
    int64_t began_ns = now_ns();
    launch(kernel, stream);
    int64_t took_ns = now_ns() - began_ns;
    if (took_ns > thread->longest_ns)
      thread->longest_ns = took_ns;
    if (thread->launches % IN_FLIGHT == 0)
      OK(cuStreamSynchronize(stream));
  }
  return NULL;
}

int main(int count, char **arguments) {
  CUdevice device;
  pthread_t threads[THREADS];
  struct thread each[THREADS] = {{0, 0}}, all = {0, 0};
  if (count != 2)
    return 2;
  OK(cuInit(0));
  OK(cuDeviceGet(&device, 0));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  for (int i = 0; i < THREADS; i++)
    pthread_create(&threads[i], NULL, work, &each[i]);
  sleep((unsigned)atoi(arguments[1]));
  stop = true;
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    all.longest_ns = each[i].longest_ns > all.longest_ns ? each[i].longest_ns : all.longest_ns;
    all.launches += each[i].launches;
  }
  printf("%lld %ld\n", (long long)all.longest_ns / 1000000, all.launches);
  return 0;
}
