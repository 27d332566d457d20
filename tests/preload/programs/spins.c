/*
 * Kernels that spin until another kernel begins.
 *
 *   spins streams ROUNDS    In each round one spins, and some milliseconds later a launch on another stream releases
 * it. Prints how long those launches took at most, in seconds, and all rounds together. spins ranks STEPS       Two
 * threads, each on its GPU: ten kernels of a millisecond, and one that spins until the other's has begun. Prints how
 * many seconds a step took, and the longest one.
 */
#include "kernel.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define STEP_KERNELS 10
#define WARM_UP 5

static int wanted;

static void run_streams(void) {
  CUstream first, second;
  unsigned seed = 1;
  double longest_s = 0, began_s = now_s();
  enter(0);
  CUfunction work = kernel_of("spin_1ms"), spins = kernel_of("held_until_release"), release = kernel_of("release");
  OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < wanted; i++) {
    launch(work, first);
    launch(spins, first);
    usleep((unsigned)rand_r(&seed) % 20000);
    double launched_s = now_s();
    launch(release, second);
    double took_s = now_s() - launched_s;
    longest_s = took_s > longest_s ? took_s : longest_s;
    OK(cuCtxSynchronize());
  }
  printf("%.4f %.4f\n", longest_s, now_s() - began_s);
}

static double longest_step_s;

static void *run_rank(void *argument) {
  const int rank = *(const int *)argument;
  CUstream stream;
  unsigned seed = (unsigned)rank + 1;
  enter(rank);
  CUfunction work = kernel_of("spin_1ms"), spins = kernel_of(rank == 0 ? "first_until_second" : "second_until_first");
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  double began_s = now_s();
  for (int i = -WARM_UP; i < wanted; i++) {
    double step_s = now_s();
    if (i == 0)
      began_s = step_s;
    usleep((unsigned)rand_r(&seed) % 100);
    for (int k = 0; k < STEP_KERNELS; k++)
      launch(work, stream);
    launch(spins, stream);
    OK(cuStreamSynchronize(stream));
    step_s = now_s() - step_s;
    if (rank == 0 && i >= 0 && step_s > longest_step_s)
      longest_step_s = step_s;
  }
  if (rank == 0)
    printf("%.4f %.4f\n", (now_s() - began_s) / wanted, longest_step_s);
  return NULL;
}

int main(int count, char **arguments) {
  static const int ranks[] = {0, 1};
  pthread_t other;
  if (count != 3)
    return 2;
  wanted = atoi(arguments[2]);
  OK(cuInit(0));
  if (strcmp(arguments[1], "streams") == 0) {
    run_streams();
    return 0;
  }
  if (pthread_create(&other, NULL, run_rank, (void *)&ranks[1]) != 0)
    abort();
  run_rank((void *)&ranks[0]);
  pthread_join(other, NULL);
  return 0;
}
