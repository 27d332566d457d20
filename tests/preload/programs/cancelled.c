/*
 * A program that cancels its threads while they launch; the next ones go on as if nothing had been. Prints how many
 * launches all of them have made.
 *
 *   cancelled ROUNDS
 */
#include "kernel.h"

#include <pthread.h>
#include <stdatomic.h>

static CUcontext context;
static CUfunction kernel;
static atomic_long launches;

static void *launch_for_ever(void *stream) {
  OK(cuCtxSetCurrent(context));
  for (;;) {
    launch(kernel, stream);
    atomic_fetch_add(&launches, 1);
    pthread_testcancel();
  }
  return NULL;
}

/* Two threads at a time, on streams that outlive them. */
int main(int count, char **arguments) {
  CUstream streams[2];
  pthread_t threads[2];
  OK(cuInit(0));
  context = enter(0);
  kernel = kernel_of("spin_50us");
  for (int i = 0; i < 2; i++)
    OK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
  for (int round = count > 1 ? atoi(arguments[1]) : 1; round > 0; round--) {
    for (int i = 0; i < 2; i++)
      pthread_create(&threads[i], NULL, launch_for_ever, streams[i]);
    nanosleep(&(struct timespec){.tv_nsec = 5000000 + round % 7 * 300000}, NULL);
    for (int i = 0; i < 2; i++)
      pthread_cancel(threads[i]);
    for (int i = 0; i < 2; i++)
      pthread_join(threads[i], NULL);
  }
  printf("%ld\n", atomic_load(&launches));
  return 0;
}
