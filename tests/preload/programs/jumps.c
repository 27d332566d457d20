/*
 * A program that leaves its launches by siglongjmp out of a signal handler, as those with cysignals, R and Octave do:
 * out of a sleep, since elsewhere the driver may hold a lock of its own. Prints which part of the time its kernels take
 * afterwards.
 *
 *   jumps JUMPS [ends]
 *
 * `ends`: the thread that jumps ends after each jump, and another one launches on the same stream.
 */
#define _GNU_SOURCE
#include "kernel.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>

#define KERNEL_NS 1000000LL

static sigjmp_buf before_launch;
static volatile sig_atomic_t launches_now, jumps;
static int wanted, ends;
static CUcontext context;
static CUfunction kernel;
static CUstream stream;

/* Has the signal interrupted a system call? */
static int has_slept(const ucontext_t *context) {
#ifdef __x86_64__
  return context->uc_mcontext.gregs[REG_RAX] == -EINTR;
#else
  return context->uc_mcontext.regs[0] == (unsigned long)-EINTR;
#endif
}

static void jump(int number, siginfo_t *info, void *context) {
  (void)number, (void)info;
  if (!launches_now || !has_slept(context))
    return;
  launches_now = 0;
  jumps++;
  siglongjmp(before_launch, 1);
}

static void alarm_every_us(long us) {
  struct itimerval timer = {.it_interval = {.tv_usec = us}, .it_value = {.tv_usec = us}};
  setitimer(ITIMER_REAL, &timer, NULL);
}

static void *launch_and_jump(void *unused) {
  sigset_t alarms;
  sigemptyset(&alarms);
  sigaddset(&alarms, SIGALRM);
  OK(cuCtxSetCurrent(context));
  pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
  int before = jumps;
  if (sigsetjmp(before_launch, 1) != 0 && ends) {
    pthread_sigmask(SIG_BLOCK, &alarms, NULL);
    return unused;
  }
  while (jumps < (ends ? before + 1 : wanted)) {
    launches_now = 1;
    launch(kernel, stream);
    launches_now = 0;
  }
  pthread_sigmask(SIG_BLOCK, &alarms, NULL);
  return unused;
}

static double share(double seconds) {
  double began_s = now_s();
  long launches = 0;
  for (; now_s() < began_s + seconds; launches++)
    launch(kernel, stream);
  OK(cuCtxSynchronize());
  return (double)launches * KERNEL_NS / 1e9 / (now_s() - began_s);
}

int main(int count, char **arguments) {
  struct sigaction jumping = {.sa_sigaction = jump, .sa_flags = SA_SIGINFO};
  sigset_t alarms;
  wanted = count > 1 ? atoi(arguments[1]) : 1;
  ends = count > 2 && strcmp(arguments[2], "ends") == 0;
  sigemptyset(&alarms);
  sigaddset(&alarms, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &alarms, NULL);
  sigaction(SIGALRM, &jumping, NULL);
  OK(cuInit(0));
  context = enter(0);
  kernel = kernel_of("spin_1ms");
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  alarm_every_us(7300);
  while (jumps < wanted) {
    pthread_t thread;
    pthread_create(&thread, NULL, launch_and_jump, NULL);
    pthread_join(thread, NULL);
  }
  alarm_every_us(0);
  printf("%.3f\n", share(1.5));
  return 0;
}
