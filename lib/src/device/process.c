#include "device/process.h"

#include "base/log.h"
#include "hook/hooks.h"
#include "profile/disk.h"
#include "shared/limits.h"

#include <pthread.h>
#include <unistd.h>

HOT_DATA enum process_state process_state = PROCESS_UNKNOWN;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
HOT_DATA struct level_files process_level_files[VGPU_MAX_LEVELS] = {
    [0 ... VGPU_MAX_LEVELS - 1] = {.usage = {.descriptor = -1}, .slot = -1}};
HOT_DATA int process_level_count;
static struct ledger_own own;
static HOT_DATA struct ledger ledgers[VGPU_MAX_LEVELS];
HOT_DATA const struct ledger *process_ledger_with_slot;
static enum process_state decided;
static const uint32_t not_known = VGPU_SUSPENDED;
HOT_DATA const uint32_t *process_suspended[VGPU_MAX_LEVELS + 1] = {&not_known};
static HOT_DATA bool environment_limits_compute;
static bool has_limits;

extern void (*const __start_in_child[])(void) __attribute__((visibility("hidden")));
extern void (*const __stop_in_child[])(void) __attribute__((visibility("hidden")));

/* A forked child must not keep its parent's slot alive. Locks that another thread of the parent held are made anew. */
static void start_over_in_child(void) {
  pthread_mutex_init(&lock, NULL);
  for (int i = 0; i < process_level_count; i++)
    level_files_forget(&process_level_files[i]);
  process_level_count = 0;
  for (void (*const *forget)(void) = __start_in_child; forget < __stop_in_child; forget++)
    (*forget)();
  decided = PROCESS_UNKNOWN;
  process_state = PROCESS_UNKNOWN;
  process_suspended[0] = &not_known;
}

/* Before the lock is first taken: a child forked meanwhile would find it held for ever. */
static void watch_forks(void) {
  static bool watched;
  if (!__atomic_exchange_n(&watched, true, __ATOMIC_ACQ_REL))
    pthread_atfork(NULL, NULL, start_over_in_child);
}

/* Files are opened and messages written under the lock: a thread that is cancelled there would keep it. */
static int begin_alone(void) {
  int cancel_state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  pthread_mutex_lock(&lock);
  return cancel_state;
}

static void end_alone(int cancel_state) {
  pthread_mutex_unlock(&lock);
  pthread_setcancelstate(cancel_state, NULL);
}

static void begin_ledgers(void) {
  struct vgpu_process_usage nothing = {.pid = (uint32_t)getpid(), .pid_namespace = level_files_pid_namespace()};
  own = (struct ledger_own){.usage = nothing};
  for (int i = 0; i < process_level_count; i++) {
    struct ledger *above = i + 1 < process_level_count ? &ledgers[i + 1] : NULL;
    ledgers[i] = (struct ledger){&own, &level_files_slots, &process_level_files[i], -1, i, above};
  }
}

static enum process_state decide(void) {
  has_limits = (level_files_have_limits() || limits_in_environment()) && !level_files_limits_are_lifted();
  if (!has_limits && !profile_is_wanted())
    return PROCESS_FREE;
  process_level_count = 1;
  if (has_limits)
    process_level_count = level_files_open(process_level_files);
  else
    level_files_open_alone(&process_level_files[0]);
  begin_ledgers();
  process_ledger_with_slot = NULL;
  environment_limits_compute = limits_of_compute_in_environment();
  return PROCESS_LIMITED;
}

/* From the last level to the first, which takes the place of what is not known. */
static void find_suspended(bool can_be) {
  for (int i = VGPU_MAX_LEVELS; i >= 0; i--) {
    bool has_file = can_be && i < process_level_count && process_level_files[i].limits != NULL;
    __atomic_store_n(&process_suspended[i], has_file ? &process_level_files[i].limits->suspended : NULL,
                     __ATOMIC_RELEASE);
  }
}

/* Published only once libcuda is there: nvidia-smi, which asks NVML alone, must not load it. */
enum process_state process_decide(void) {
  bool has_cuda = hooks_load_cuda();
  watch_forks();
  int cancel_state = begin_alone();
  if (decided == PROCESS_UNKNOWN)
    decided = decide();
  enum process_state state = decided;
  find_suspended(state == PROCESS_LIMITED && has_limits);
  if (has_cuda)
    __atomic_store_n(&process_state, state, __ATOMIC_RELEASE);
  end_alone(cancel_state);
  return state;
}

bool process_shows_limits(void) {
  return process_is_limited() && has_limits;
}

static COLD bool is_limited_above(void) {
  bool limits = false;
  for (int i = 1; i < process_level_count && !limits; i++)
    limits = limits_of_compute_in_file(process_level_files[i].limits);
  return limits;
}

HOT bool process_limits_compute_somewhere(void) {
  if (environment_limits_compute || (__builtin_expect(process_level_count > 1, 0) && is_limited_above()))
    return true;
  return process_level_files[0].limits != NULL && limits_of_compute_in_file(process_level_files[0].limits);
}

bool process_is_together(void) {
  bool together = false;
  for (int i = 0; i < process_level_count; i++)
    together |= process_level_files[i].limits != NULL && process_level_files[i].limits->together != 0;
  return together;
}

const struct vgpu_limits *process_devices_file(void) {
  return process_level_files[process_level_files[0].is_of_program ? 1 : 0].limits;
}

void process_find_devices(void) {
  const struct vgpu_limits *file = process_devices_file();
  for (int level = 1; level < process_level_count; level++)
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
      int number = limits_find_device(process_level_files[level].limits, file->devices[i].uuid);
      __atomic_store_n(&own.levels[level].numbers[i], number, __ATOMIC_RELAXED);
    }
}

HOT int process_number_above(int level, int device_number) {
  return __atomic_load_n(&own.levels[level].numbers[device_number], __ATOMIC_RELAXED);
}

struct device_state *process_device_state(int level, int device_number) {
  return &process_level_files[level].devices[process_number_at(level, device_number)];
}

const struct ledger *process_ledger_view(void) {
  return &ledgers[0];
}

const struct ledger *process_ledger_at(int level) {
  return &ledgers[level];
}

bool process_has_slot(void) {
  return __atomic_load_n(&process_ledger_with_slot, __ATOMIC_ACQUIRE) != NULL;
}

const struct ledger *process_claim_slot(void) {
  int cancel_state = begin_alone();
  if (process_ledger_with_slot == NULL) {
    for (int i = 0; i < process_level_count; i++) {
      level_files_claim_slot(&process_level_files[i]);
      __atomic_store_n(&ledgers[i].own_slot, process_level_files[i].slot, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&process_ledger_with_slot, &ledgers[0], __ATOMIC_RELEASE);
  }
  end_alone(cancel_state);
  return &ledgers[0];
}

void process_note_sharing(void) {
  static bool noted;
  if (__atomic_exchange_n(&noted, true, __ATOMIC_RELAXED))
    return;
  process_ledger();
  __atomic_store_n(&own.usage.shares_memory, 1, __ATOMIC_RELAXED); /* or a repair would take it back */
  for (int i = 0; i < process_level_count; i++)
    level_files_note_sharing(&process_level_files[i]);
}
