/*
 * Usage files in memory, in the place of those that processes share. A test says which processes are dead, and which
 * file cannot be read or written.
 */
#pragma once

#include "cases.h"
#include "check.h"
#include "memory/ledger.h"
#include "memory/ledger_totals.h"

#include <pthread.h>
#include <string.h>

#define UNIT (8ULL << 20) /* so that all is shown at once */
#define LIMIT_BYTES (1000000 * UNIT)
#define THREADS 8

static struct vgpu_usage usage;
static struct ledger_own own[VGPU_MAX_PROCESSES];
static bool dead[VGPU_MAX_PROCESSES];

static pthread_mutex_t file = PTHREAD_MUTEX_INITIALIZER;
static int calls, questions; /* whether another lives */
static bool fails;
static void *fails_at; /* this file alone */

/* A NULL context is `usage`. */
static char *place(void *context, size_t at) {
  return (char *)(context != NULL ? context : &usage) + at;
}

static int reach_file(void *context) {
  (void)context;
  return 0;
}

static bool read_file(void *context, int way, void *to, size_t size, size_t at) {
  (void)way;
  pthread_mutex_lock(&file);
  memcpy(to, place(context, at), size);
  calls++;
  pthread_mutex_unlock(&file);
  return !fails;
}

static bool write_file(void *context, int way, const void *from, size_t size, size_t at) {
  (void)way;
  bool written = !fails || (fails_at != NULL && fails_at != context);
  pthread_mutex_lock(&file);
  if (written)
    memcpy(place(context, at), from, size);
  calls++;
  pthread_mutex_unlock(&file);
  return written;
}

static bool is_live(void *context, int slot) {
  __atomic_add_fetch(&questions, 1, __ATOMIC_RELAXED);
  if (dead[slot])
    memset(place(context, offsetof(struct vgpu_usage, processes[slot])), 0, sizeof(struct vgpu_process_usage));
  return !dead[slot];
}

static const struct ledger_slots slots = {reach_file, read_file, write_file, is_live};

static struct ledger ledger_of(int slot) {
  if (usage.slots_used <= (uint32_t)slot)
    usage.slots_used = (uint32_t)slot + 1;
  return (struct ledger){.own = &own[slot], .slots = &slots, .own_slot = slot};
}

static void start_over(void) {
  memset(&usage, 0, sizeof usage);
  memset(own, 0, sizeof own);
  memset(dead, 0, sizeof dead);
}

/* Run THREADS threads, each a process with the slot that is its argument. */
static void run_threads(void *(*thread)(void *slot)) {
  pthread_t threads[THREADS];
  for (intptr_t i = 0; i < THREADS; i++)
    CHECK(pthread_create(&threads[i], NULL, thread, (void *)i) == 0, "thread");
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
}
