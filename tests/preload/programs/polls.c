/*
 * A short process: two kernels of 30 ms, each waited for, and then its end.
 *
 *   polls stream_query | event_query | synchronize     prints the time of its first launch and of its end, in seconds
 */
#include "kernel.h"

#include <string.h>
#include <unistd.h>

static void wait_for(const char *way, CUevent event) {
  CUresult result = CUDA_SUCCESS;
  OK(cuEventRecord(event, NULL));
  if (strcmp(way, "synchronize") == 0)
    OK(cuCtxSynchronize());
  do {
    if (result == CUDA_ERROR_NOT_READY)
      usleep(200);
    result = strcmp(way, "stream_query") == 0 ? cuStreamQuery(NULL) : cuEventQuery(event);
  } while (result == CUDA_ERROR_NOT_READY);
  OK(result);
}

int main(int count, char **arguments) {
  CUevent event;
  if (count != 2)
    return 2;
  OK(cuInit(0));
  enter(0);
  CUfunction kernel = kernel_of("spin_30ms");
  OK(cuEventCreate(&event, 0));
  double began_s = now_s();
  for (int i = 0; i < 2; i++) {
    launch(kernel, NULL);
    wait_for(arguments[1], event);
  }
  printf("%.6f %.6f\n", began_s, now_s());
  return 0;
}
