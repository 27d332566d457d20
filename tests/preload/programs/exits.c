/*
 * A program that ends with 3 while work of its own has not been measured.
 *
 *   exits WAY
 *
 * WAY is threads: four others launch at that time; handler: in a signal handler, mostly within a launch; forked: a
 * child that has launched nothing, and then its parent; captures: within a capture; released: when the context is gone.
 */
#include "kernel.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static CUcontext context;
static CUfunction kernel;

/* A launch may fail while the driver is being shut down. */
static void *launch_on(void *unused) {
  CUstream stream;
  OK(cuCtxSetCurrent(context));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  while (cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) == CUDA_SUCCESS)
    ;
  return unused;
}

static void end(int number) {
  (void)number;
  exit(3);
}

static void beside_threads(void) {
  pthread_t thread;
  for (int i = 0; i < 4; i++)
    pthread_create(&thread, NULL, launch_on, NULL);
  usleep(50000);
}

static void in_a_handler(void) {
  struct itimerval timer = {.it_value = {.tv_usec = 50000}};
  kernel = kernel_of("spin_1us");
  signal(SIGALRM, end);
  setitimer(ITIMER_REAL, &timer, NULL);
  for (;;)
    launch(kernel, NULL);
}

static void in_a_child(void) {
  int status;
  pid_t child = fork();
  if (child == 0)
    exit(3);
  waitpid(child, &status, 0);
  launch(kernel, NULL);
  exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

static void within_a_capture(void) {
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  launch(kernel, stream);
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  launch(kernel, stream);
}

static void without_a_context(void) {
  OK(cuDevicePrimaryCtxReset(0));
}

int main(int count, char **arguments) {
  static const struct {
    const char *name;
    void (*go)(void);
  } ways[] = {{"threads", beside_threads},
              {"handler", in_a_handler},
              {"forked", in_a_child},
              {"captures", within_a_capture},
              {"released", without_a_context}};
  OK(cuInit(0));
  context = enter(0);
  kernel = kernel_of("spin_1ms");
  launch(kernel, NULL);
  for (size_t i = 0; count > 1 && i < sizeof ways / sizeof ways[0]; i++)
    if (strcmp(arguments[1], ways[i].name) == 0)
      ways[i].go();
  return 3;
}
