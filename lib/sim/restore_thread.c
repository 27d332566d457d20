#include "restore_thread.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "checkpoint_api.h"
#include "driver.h"
#include "futex.h"
#include "limits.h"
#include "regions.h"
#include "remap.h"
#include "state.h"
#include "streams.h"
#include "times.h"
#include "vmm.h"

#define POLL_INTERVAL_NS NS_PER_MS
#define PAGE 4096

static bool restore_is_broken;

/* Other threads may come in meanwhile: those that have waited for the device, and cuInit. */
static void sleep_without_lock(uint64_t until_ns) {
  driver_unlock();
  clock_wait_until(until_ns);
  driver_lock_anyway();
}

/* ---- lock -------------------------------------------------------------------------------------------------------- */

static void look_for_work(void *object, void *found) {
  const struct context *context = object;
  *(bool *)found |= context->active && !time_has_come(streams_latest_tail(context));
}

/* No new work begins, and what has begun ends. */
static CUresult lock_process(struct state_checkpoint *checkpoint) {
  uint64_t give_up_ns = checkpoint->timeout_ms ? clock_ns() + checkpoint->timeout_ms * NS_PER_MS : UINT64_MAX;
  driver_keep_out();
  for (;;) {
    uint64_t now_ns = clock_ns();
    bool works = false;
    handle_visit(HANDLE_CONTEXT, look_for_work, &works);
    if (!works)
      return CUDA_SUCCESS;
    if (now_ns >= give_up_ns) {
      driver_let_in();
      return CUDA_ERROR_NOT_READY;
    }
    sleep_without_lock(now_ns + POLL_INTERVAL_NS);
  }
}

/* ---- checkpoint -------------------------------------------------------------------------------------------------- */

static void look_for_shared_region(struct region *region, void *found) {
  *(bool *)found |= region->shared_id != 0 || region->kind == REGION_IMPORTED;
}

static void look_for_shared_physical(void *object, void *found) {
  const struct physical *physical = object;
  *(bool *)found |= physical->shared_id != 0 || physical->imported;
}

/* A driver before 610 takes off the GPU what shares memory, and does not bring it back. */
static bool shares_memory(void) {
  bool found = false;
  region_visit(look_for_shared_region, &found);
  handle_visit(HANDLE_PHYSICAL_MEMORY, look_for_shared_physical, &found);
  return found;
}

static void look_for_managed(struct region *region, void *found) {
  *(bool *)found |= region->kind == REGION_MANAGED;
}

static bool has_managed_memory(void) {
  bool found = false;
  region_visit(look_for_managed, &found);
  return found;
}

static bool is_on_device(const struct region *region) {
  return region->keeps_data && (region->kind == REGION_DEVICE || region->kind == REGION_BLOCK);
}

static bool is_zero(const char *page) {
  static const char zeros[PAGE];
  return memcmp(page, zeros, PAGE) == 0;
}

/* Pages of zeros need no copy: the target has them. */
static void copy_pages(char *to, const char *from, size_t size) {
  for (size_t at = 0; at < size; at += PAGE)
    if (!is_zero(from + at))
      memcpy(to + at, from + at, PAGE);
}

static void put_away(struct region *region, void *failed) {
  if (!is_on_device(region) || *(bool *)failed)
    return;
  void *copy = mmap(NULL, region->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (copy == MAP_FAILED) {
    *(bool *)failed = true;
    return;
  }
  copy_pages(copy, (const char *)region->base, region->mapped);
  region->checkpointed = copy;
}

/* The device's memory is gone, and a program that still touches it notices. */
static void empty(struct region *region, void *argument) {
  (void)argument;
  if (!region->checkpointed)
    return;
  madvise((void *)region->base, region->mapped, MADV_DONTNEED);
  mprotect((void *)region->base, region->mapped, PROT_NONE);
}

static void forget_copy(struct region *region, void *argument) {
  (void)argument;
  if (region->checkpointed)
    munmap(region->checkpointed, region->mapped);
  region->checkpointed = NULL;
}

static void bring_back(struct region *region, void *argument) {
  if (!region->checkpointed)
    return;
  mprotect((void *)region->base, region->mapped, PROT_READ | PROT_WRITE);
  copy_pages((char *)region->base, region->checkpointed, region->mapped);
  forget_copy(region, argument);
}

/* The time that it takes to copy what this process has, or had, on all devices. */
static uint64_t copy_ns(void) {
  uint64_t sum_ns = 0;
  for (unsigned device = 0; device < sim_config.device_count; device++) {
    struct state_process_device *own = state_own(device);
    uint64_t bytes = atomic_load(&own->used_bytes) + atomic_load(&own->checkpointed_bytes);
    sum_ns += bytes * NS_PER_MS / sim_config.devices[device].checkpoint_bytes_per_ms;
  }
  return sum_ns;
}

static bool is_told_to(const char *what) {
  const char *told = getenv("VGPUSIM_CHECKPOINT");
  return told && strcmp(told, what) == 0;
}

static CUresult save(void) {
  bool failed = false;
  if (has_managed_memory() || is_told_to("refuse"))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (is_told_to("fail"))
    return CUDA_ERROR_UNKNOWN;
  region_visit(put_away, &failed);
  if (failed) {
    region_visit(forget_copy, NULL);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  sleep_without_lock(clock_ns() + copy_ns());
  region_visit(empty, NULL);
  for (unsigned device = 0; device < sim_config.device_count; device++) {
    struct state_process_device *own = state_own(device);
    atomic_store(&own->checkpointed_bytes, atomic_load(&own->used_bytes));
    state_release(device, atomic_load(&own->used_bytes));
  }
  return CUDA_SUCCESS;
}

/* ---- restore ----------------------------------------------------------------------------------------------------- */

static void give_back(unsigned devices) {
  for (unsigned device = 0; device < devices; device++)
    state_release(device, atomic_load(&state_own(device)->checkpointed_bytes));
}

static bool take_all(void) {
  for (unsigned device = 0; device < sim_config.device_count; device++)
    if (!limits_reserve(device, atomic_load(&state_own(device)->checkpointed_bytes))) {
      give_back(device);
      return false;
    }
  return true;
}

/* A driver on a card does not recover from a restore that found too little memory: it fails from then on. */
static CUresult restore(const struct state_checkpoint *checkpoint) {
  restore_is_broken |= shares_memory();
  if (restore_is_broken)
    return CUDA_ERROR_OPERATING_SYSTEM;
  if (!remap_devices(checkpoint->pairs, checkpoint->pair_count))
    return CUDA_ERROR_INVALID_VALUE;
  if (!take_all()) {
    restore_is_broken = true;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  sleep_without_lock(clock_ns() + copy_ns() / 2); /* each byte is counted as used and as put away */
  region_visit(bring_back, NULL);
  for (unsigned device = 0; device < sim_config.device_count; device++)
    atomic_store(&state_own(device)->checkpointed_bytes, 0);
  return CUDA_SUCCESS;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static const struct {
  CUprocessState before, after;
} steps[] = {
    [CHECKPOINT_LOCK] = {CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_LOCKED},
    [CHECKPOINT_SAVE] = {CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED},
    [CHECKPOINT_RESTORE] = {CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED},
    [CHECKPOINT_UNLOCK] = {CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING},
};

static CUresult serve(struct state_checkpoint *checkpoint, enum checkpoint_request request) {
  if (atomic_load(&checkpoint->process_state) != (uint32_t)steps[request].before)
    return CUDA_ERROR_ILLEGAL_STATE;
  switch (request) {
  case CHECKPOINT_LOCK:
    return lock_process(checkpoint);
  case CHECKPOINT_SAVE:
    return save();
  case CHECKPOINT_RESTORE:
    return restore(checkpoint);
  default:
    driver_let_in();
    return CUDA_SUCCESS;
  }
}

static void *work(void *argument) {
  struct state_checkpoint *checkpoint = &state_process(state_own_slot())->checkpoint;
  (void)argument;
  atomic_store(&checkpoint->thread_id, (uint32_t)syscall(SYS_gettid));
  futex_wake(&checkpoint->thread_id);
  for (;;) {
    enum checkpoint_request request = atomic_load(&checkpoint->request);
    if (request == CHECKPOINT_NOTHING || request > CHECKPOINT_UNLOCK) {
      futex_wait(&checkpoint->request, request, 0);
      continue;
    }
    driver_lock_anyway();
    CUresult result = serve(checkpoint, request);
    if (result == CUDA_SUCCESS)
      atomic_store(&checkpoint->process_state, (uint32_t)steps[request].after);
    else if (result == CUDA_ERROR_UNKNOWN)
      atomic_store(&checkpoint->process_state, CU_PROCESS_STATE_FAILED);
    driver_unlock();
    atomic_store(&checkpoint->answer, (uint32_t)result);
    atomic_store(&checkpoint->request, CHECKPOINT_NOTHING);
    futex_wake(&checkpoint->request);
  }
  return NULL;
}

/* By its first version, that old C libraries have as well; before 2.34, which has a second one, only programs with
 * threads have it at all. */
#if !__GLIBC_PREREQ(2, 34)
#elif defined(__x86_64__)
__asm__(".symver pthread_create, pthread_create@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver pthread_create, pthread_create@GLIBC_2.17");
#endif
#pragma weak pthread_create

bool restore_thread_start(void) {
  int (*volatile create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = pthread_create;
  pthread_t thread;
  sigset_t all, before;
  if (create == NULL)
    return true;    /* nobody can take this process off its GPUs */
  sigfillset(&all); /* the program's handlers run in its own threads */
  sigprocmask(SIG_SETMASK, &all, &before);
  bool started = create(&thread, NULL, work, NULL) == 0;
  sigprocmask(SIG_SETMASK, &before, NULL);
  return started;
}
