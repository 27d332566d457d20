/*
 * On the simulated GPU kernels do not run, and do not show their progress: an event after each launch does. So the
 * measurements can be tried there.
 */
#pragma once

#include "driver.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#define SIMULATED_EVENTS 4096

static struct {
  pthread_mutex_t lock;
  struct {
    CUevent event;
    volatile unsigned long long *seen;
    unsigned long long units;
  } launches[SIMULATED_EVENTS]; /* in their order: the simulated GPU runs one after the other */
  unsigned head, tail;
} simulated = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool simulated_gpu(void) {
  FIND(cuDeviceGetName);
  char name[256];
  check(cuDeviceGetName_(name, sizeof name, 0), "cuDeviceGetName");
  return strstr(name, "Simulated") != NULL;
}

/* A kernel of that name takes so long. */
static const char *simulated_name(double duration_us) {
  static char name[64];
  snprintf(name, sizeof name, "work_%.1fus", duration_us);
  return name;
}

/* Counts what is done. */
static void simulated_look(void) {
  FIND(cuEventQuery);
  pthread_mutex_lock(&simulated.lock);
  for (; simulated.tail != simulated.head; simulated.tail++) {
    unsigned place = simulated.tail % SIMULATED_EVENTS;
    if (cuEventQuery_(simulated.launches[place].event) != CUDA_SUCCESS)
      break;
    *simulated.launches[place].seen += simulated.launches[place].units;
  }
  pthread_mutex_unlock(&simulated.lock);
}

/* The last launch on the stream was of so many units. */
static void simulated_follow(CUstream stream, volatile unsigned long long *seen, unsigned long long units) {
  FIND(cuEventCreate);
  FIND(cuEventRecord);
  pthread_mutex_lock(&simulated.lock);
  unsigned place = simulated.head % SIMULATED_EVENTS;
  if (simulated.launches[place].event == NULL)
    check(cuEventCreate_(&simulated.launches[place].event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  check(cuEventRecord_(simulated.launches[place].event, stream), "cuEventRecord");
  simulated.launches[place].seen = seen;
  simulated.launches[place].units = units;
  simulated.head++;
  pthread_mutex_unlock(&simulated.lock);
}
