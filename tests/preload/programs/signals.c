/* A program that, like a JVM, uses SIGUSR1 and SIGUSR2 for itself, blocks others, and sets a umask. Prints "unchanged"
 * when all of that still is as it was after the driver has been used. */
#include <cuda.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static volatile sig_atomic_t caught;

static void catch(int number) {
  caught += number == SIGUSR1 || number == SIGUSR2;
}

int main(void) {
  struct sigaction ours = {.sa_handler = catch}, found[2];
  sigset_t blocked, still;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigprocmask(SIG_BLOCK, &blocked, NULL);
  sigaction(SIGUSR1, &ours, NULL);
  sigaction(SIGUSR2, &ours, NULL);
  umask(027);

  CUcontext context;
  CUdeviceptr pointer;
  if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
      cuCtxSetCurrent(context) != CUDA_SUCCESS || cuMemAlloc(&pointer, 1 << 20) != CUDA_SUCCESS)
    return 2;
  raise(SIGUSR1);
  raise(SIGUSR2);
  cuMemFree(pointer);

  sigaction(SIGUSR1, NULL, &found[0]);
  sigaction(SIGUSR2, NULL, &found[1]);
  sigprocmask(SIG_BLOCK, NULL, &still);
  int same = found[0].sa_handler == catch && found[1].sa_handler == catch && caught == 2;
  same = same && sigismember(&still, SIGTERM) && !sigismember(&still, SIGINT) && umask(0) == 027;
  puts(same ? "unchanged" : "changed");
  return !same;
}
