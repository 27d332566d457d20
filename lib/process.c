#include "process.h"

#include "cuda_launch.h"
#include "cuda_memory.h"
#include "devices.h"
#include "hooks.h"
#include "limits.h"
#include "log.h"

#include <pthread.h>

enum process_state process_state = PROCESS_UNKNOWN;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct region region;
static struct ledger ledger;
static enum process_state decided;
static bool environment_limits_compute;

/* A forked child cannot use CUDA, owns nothing, and must not keep its parent's slot alive. Locks that another thread
 * of the parent held are made anew. */
static void start_over_in_child(void) {
  pthread_mutex_init(&lock, NULL);
  if (decided == PROCESS_LIMITED)
    region_forget(&region);
  launch_forget();
  memory_forget();
  devices_forget();
  decided = PROCESS_UNKNOWN;
  process_state = PROCESS_UNKNOWN;
}

static bool slot_is_live(const void *context, int slot) {
  return region_slot_is_live(context, slot);
}

static enum process_state decide(void) {
  static bool watches_forks;
  if (!region_has_limits_file() && !limits_in_environment())
    return PROCESS_FREE;
  region_open(&region);
  ledger = (struct ledger){.usage = region.usage, .own_slot = -1, .slot_is_live = slot_is_live, .context = &region};
  environment_limits_compute = limits_of_compute_in_environment();
  if (!watches_forks)
    watches_forks = pthread_atfork(NULL, NULL, start_over_in_child) == 0;
  return PROCESS_LIMITED;
}

/* Published only once libcuda is there: nvidia-smi, which asks NVML alone, must not load it. */
enum process_state process_decide(void) {
  bool has_cuda = hooks_load_cuda();
  pthread_mutex_lock(&lock);
  if (decided == PROCESS_UNKNOWN)
    decided = decide();
  enum process_state state = decided;
  if (has_cuda)
    __atomic_store_n(&process_state, state, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&lock);
  return state;
}

bool process_limits_compute_somewhere(void) {
  return environment_limits_compute || (region.limits != NULL && limits_of_compute_in_file(region.limits));
}

const struct region *process_region(void) {
  return &region;
}

const struct ledger *process_ledger_view(void) {
  return &ledger;
}

const struct ledger *process_ledger(void) {
  if (__atomic_load_n(&ledger.own_slot, __ATOMIC_ACQUIRE) >= 0)
    return &ledger;
  pthread_mutex_lock(&lock);
  if (ledger.own_slot < 0) {
    region_claim_slot(&region);
    ledger.usage = region.usage;
    __atomic_store_n(&ledger.own_slot, region.slot, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&lock);
  return &ledger;
}
