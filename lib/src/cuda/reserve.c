/* Room for memory: reserved before the driver is asked, and refused past the limit. */
#include "cuda/reserve.h"
#include "base/compiler.h"
#include "cuda/memory.h"
#include "cuda/memory_pools.h"
#include "cuda/overhead.h"
#include "device/devices.h"

#include "base/log.h"
#include "device/process.h"
#include "memory/ledger_totals.h"

#include <stdio.h>
#include <string.h>

#define MIB (1024ULL * 1024ULL)

static unsigned long long mib(uint64_t bytes) {
  return bytes / MIB;
}

/* The limits, less what other processes of the level hold and do not count yet. */
static HOT struct limits limits_left(const struct device *device, int level) {
  struct limits limits = device_limits_at(device, level);
  uint64_t elsewhere_bytes = overhead_elsewhere_bytes(device, level);
  if (limits.memory_bytes == VGPU_NO_MEMORY_LIMIT)
    return limits;
  if (elsewhere_bytes > limits.memory_bytes)
    elsewhere_bytes = limits.memory_bytes;
  limits.memory_bytes -= elsewhere_bytes;
  limits.virtual_bytes -= elsewhere_bytes;
  return limits;
}

static const char *whose_limit(int level) {
  static const char *const texts[VGPU_MAX_LEVELS] = {"", " of the share that this one is a part of",
                                                     " of the share two levels up", " of the share three levels up"};
  return texts[level];
}

/* Rounds up: what did not fit must not look as if it did. */
static unsigned long long mib_up(uint64_t bytes) {
  return mib(bytes) + (bytes % MIB != 0);
}

static void explain(const struct device *device, int level, uint64_t bytes) {
  struct limits limits = device_limits_at(device, level);
  struct ledger_parts parts = ledger_parts(process_ledger_at(level), device->number);
  char on_host[128] = "";
  if (limits_oversubscribe(limits))
    snprintf(on_host, sizeof on_host, ", and %llu MiB of the host beyond the device's %llu MiB",
             mib_up(parts.host_bytes), mib(limits.memory_bytes));
  uint64_t overhead_bytes = parts.overhead_bytes + overhead_elsewhere_bytes(device, level);
  log_line(
      LOG_WARNING,
      "out of GPU memory on %s: %llu MiB asked for; in use: %llu MiB by this process, %llu MiB by others under the "
      "limit, %llu MiB overhead (contexts, modules)%s; limit %llu MiB%s (said once per process)",
      device->uuid, mib_up(ledger_driver_size(bytes)), mib_up(parts.own_bytes), mib_up(parts.others_bytes),
      mib_up(overhead_bytes), on_host, mib(limits.virtual_bytes), whose_limit(level));
}

static uint64_t left_bytes(const struct device *device, int level, bool with_host) {
  struct limits limits = limits_left(device, level);
  uint64_t limit_bytes = with_host ? limits.virtual_bytes : limits.memory_bytes;
  uint64_t used_bytes = device_used_bytes(device, level) + (with_host ? device_host_bytes(device, level) : 0);
  return subtract_saturating(limit_bytes, used_bytes);
}

/* The first level that has no room for it, or less than the others: with what the host serves, or else on the device.
 */
static int level_without_room(const struct device *device, uint64_t bytes) {
  uint64_t least_bytes = UINT64_MAX;
  int found = 0;
  for (int level = 0; level < process_levels(); level++)
    if (left_bytes(device, level, true) < bytes)
      return level;
  for (int level = 0; level < process_levels() && least_bytes >= bytes; level++) {
    uint64_t here_bytes = left_bytes(device, level, false);
    if (here_bytes >= least_bytes)
      continue;
    least_bytes = here_bytes;
    found = level;
  }
  return found;
}

static void note_refusal(struct vgpu_device_shared *shared, void *nothing) {
  (void)nothing;
  shared->refusals++;
}

CUresult memory_refuse(const struct device *device, uint64_t bytes) {
  static bool said;
  if (device->number < 0) /* has been explained when it was met */
    return CUDA_ERROR_OUT_OF_MEMORY;
  int level = level_without_room(device, bytes);
  device_state_change(device_state(device, level), note_refusal, NULL);
  if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
    explain(device, level, bytes);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

/* How much may be held at a level, for one kind of request. */
typedef struct limits (*limits_of)(const struct device *device, int level);

/* Device memory, and host memory in its place, may not pass the virtual limit together. */
static bool passes_virtual_limit(const struct device *device, int level, uint64_t virtual_bytes, uint64_t used_bytes) {
  return used_bytes > virtual_bytes || device_host_bytes(device, level) > virtual_bytes - used_bytes;
}

struct room {
  uint64_t used_bytes; /* LEDGER_FULL: none */
  uint64_t left_bytes, limit_bytes;
};

static HOT struct room reserve(struct device *device, uint64_t bytes, limits_of limits_of) {
  const struct ledger *ledger = process_ledger();
  uint64_t limits_bytes[VGPU_MAX_LEVELS], virtual_bytes[VGPU_MAX_LEVELS];
  struct room room = {.used_bytes = LEDGER_FULL, .limit_bytes = UINT64_MAX};
  bool is_served = false, passes = false;
  if (device->number < 0)
    return room;
  for (int level = 0; level < process_levels(); level++) {
    struct limits limits = limits_of(device, level);
    limits_bytes[level] = limits.memory_bytes;
    virtual_bytes[level] = limits.virtual_bytes;
    room.limit_bytes = limits.memory_bytes < room.limit_bytes ? limits.memory_bytes : room.limit_bytes;
    is_served |= limits_oversubscribe(limits);
  }
  struct ledger_room found = ledger_reserve(ledger, device->number, bytes, limits_bytes);
  for (int level = 0; is_served && found.used_bytes != LEDGER_FULL && level < process_levels(); level++)
    passes |= passes_virtual_limit(device, level, virtual_bytes[level],
                                   ledger_used_of_late(process_ledger_at(level), device->number));
  if (passes) {
    memory_cancel(device, bytes);
    return room;
  }
  room.used_bytes = found.used_bytes;
  room.left_bytes = found.left_bytes;
  return room;
}

static HOT bool has_room(struct device *device, uint64_t bytes, limits_of limits_of) {
  return reserve(device, bytes, limits_of).used_bytes != LEDGER_FULL;
}

#define LITTLE_BYTES (32 * MIB)

/* Has so much been allocated since NVML was asked that it could pass the limit together with a module that was loaded
 * meanwhile? */
static bool has_grown_much(const struct device *device, const struct room *room) {
  uint64_t asked_bytes = __atomic_load_n(&device->used_when_asked_bytes, __ATOMIC_RELAXED);
  uint64_t grown_bytes = subtract_saturating(room->used_bytes, asked_bytes);
  return grown_bytes > LITTLE_BYTES && grown_bytes > room->left_bytes / 8;
}

/* Overhead grows while a program runs, and NVML takes 36 us to tell: so it is asked seldom while there is plenty, often
 * in the last quarter of the limit, and at once when much has been allocated since. */
static int64_t correction_age_ns(const struct device *device, const struct room *room) {
  if (!overhead_was_asked(device) || (room->used_bytes != LEDGER_FULL && has_grown_much(device, room)))
    return 0;
  return room->left_bytes > room->limit_bytes / 4 ? OVERHEAD_SELDOM_NS : OVERHEAD_OFTEN_NS;
}

/* While NVML is asked nothing of ours may be pending, which would blur the answer. */
static HOT bool try_reserve(struct device *device, uint64_t bytes, limits_of limits_of) {
  if (device->number < 0)
    return false;
  struct room room = reserve(device, bytes, limits_of);
  int64_t age_ns = correction_age_ns(device, &room);
  if (age_ns == OVERHEAD_SELDOM_NS) {
    overhead_correct(device, age_ns);
    return true;
  }
  if (!overhead_is_due(device, age_ns))
    return room.used_bytes != LEDGER_FULL;
  if (room.used_bytes != LEDGER_FULL)
    memory_cancel(device, bytes);
  overhead_correct(device, 0);
  return has_room(device, bytes, limits_of);
}

/* Asks NVML again, so that nothing is refused for a moment's sake: others may have freed what they hold and do not
 * count between NVML's answer and the look at their slots, and other threads of this process blur what is overhead.
 * True when there is something that may pass. */
#define TRIES 3
static bool may_pass(struct device *device, int *tries) {
  uint64_t elsewhere_bytes = 0;
  for (int level = 0; level < process_levels(); level++)
    elsewhere_bytes |= overhead_elsewhere_bytes(device, level);
  if ((elsewhere_bytes == 0 && !overhead_is_blurred(device)) || ++*tries == TRIES)
    return false;
  overhead_correct(device, 0);
  return true;
}

/* Before a refusal everything is made exact: memory idle in pools goes back, and NVML has the last word. */
static bool make_room(struct device *device, uint64_t bytes, limits_of limits_of) {
  if (device == NULL || try_reserve(device, bytes, limits_of))
    return true;
  pools_settle(device, POOLS_TRIM);
  overhead_correct(device, 0);
  int tries = 0;
  do {
    if (has_room(device, bytes, limits_of))
      return true;
  } while (may_pass(device, &tries));
  return false;
}

/* Modules are loaded while a program runs, and the host cannot hold them: data that it can hold leaves room for them.
 */
#define MOST_FOR_MODULES (512 * MIB)

static HOT struct limits limits_of_data(const struct device *device, int level) {
  struct limits limits = limits_left(device, level);
  if (device->number < 0 || !limits_oversubscribe(limits))
    return limits;
  struct ledger_parts parts = ledger_parts(process_ledger_at(level), device->number);
  uint64_t modules_bytes = subtract_saturating(parts.overhead_bytes, parts.context_bytes);
  uint64_t kept_bytes = limits.memory_bytes / 4 < MOST_FOR_MODULES ? limits.memory_bytes / 4 : MOST_FOR_MODULES;
  limits.memory_bytes -= subtract_saturating(kept_bytes, modules_bytes);
  return limits;
}

bool memory_try_reserve(struct device *device, uint64_t bytes) {
  return try_reserve(device, bytes, limits_left);
}

HOT bool memory_try_reserve_data(struct device *device, uint64_t bytes) {
  return try_reserve(device, bytes, limits_of_data);
}

bool memory_make_room_for_data(struct device *device, uint64_t bytes) {
  return make_room(device, bytes, limits_of_data);
}

CUresult memory_reserve(struct device *device, uint64_t bytes) {
  return make_room(device, bytes, limits_left) ? CUDA_SUCCESS : memory_refuse(device, bytes);
}

void memory_commit(struct device *device, uint64_t reserved_bytes, uint64_t actual_bytes) {
  if (device != NULL && device->number >= 0)
    ledger_settle(process_ledger(), device->number, reserved_bytes, actual_bytes);
}

HOT void memory_cancel(struct device *device, uint64_t reserved_bytes) {
  memory_commit(device, reserved_bytes, 0);
}

static bool is_over(const struct device *device) {
  bool is_served = limits_oversubscribe(device_limits(device)), over = false;
  for (int level = 0; level < process_levels(); level++) {
    struct limits limits = limits_left(device, level);
    over |= device_uses_more_than(device, level, limits.memory_bytes) ||
            (is_served && passes_virtual_limit(device, level, limits.virtual_bytes, device_used_bytes(device, level)));
  }
  return over;
}

bool memory_is_over(struct device *device) {
  int tries = 0;
  do {
    if (!is_over(device))
      return false;
  } while (may_pass(device, &tries));
  return true;
}

bool memory_may_be_served(const struct device *device) {
  return device != NULL && device->number >= 0 && limits_oversubscribe(device_limits(device));
}

#define COUNT(name, count)                                                                                             \
  void name(struct device *device, uint64_t bytes) {                                                                   \
    if (device != NULL && device->number >= 0 && bytes > 0)                                                            \
      count(process_ledger(), device->number, bytes);                                                                  \
  }

COUNT(memory_add, ledger_add)
COUNT(memory_release, ledger_release)
COUNT(memory_add_managed, ledger_add_managed)
COUNT(memory_release_managed, ledger_release_managed)

/* ---- measured allocations ---------------------------------------------------------------------------------------- */

struct device *measured_device(void) {
  return process_shows_limits() ? device_of_current_context() : NULL;
}

static uint64_t own_overhead_bytes(const struct device *device) {
  return ledger_own_usage(process_ledger(), device->number).overhead_bytes;
}

#define MOST_TRIALS 2

bool memory_is_untouched(const struct device *device) {
  static const struct vgpu_device_usage nothing;
  struct vgpu_device_usage own = {0};
  if (device->number >= 0)
    own = ledger_own_usage(process_ledger(), device->number);
  return !overhead_was_asked(device) && memcmp(&own, &nothing, sizeof own) == 0;
}

/* Makes room for what is made first, or for what was undone. Of a process that has nothing yet NVML can say nothing: it
 * is asked once something is made. */
static CUresult make_room_for(struct measured_allocation *measured) {
  struct device *device = measured->device;
  if (measured->trials == 0 && memory_is_untouched(device) && has_room(device, measured->room_bytes, limits_left))
    return CUDA_SUCCESS;
  if (measured->trials == 0)
    return memory_reserve(device, measured->room_bytes);
  overhead_correct(device, 0);
  uint64_t left_bytes = own_overhead_bytes(device);
  uint64_t bytes = subtract_saturating(measured->overhead_bytes, left_bytes);
  if (bytes <= measured->room_bytes || measured->trials == MOST_TRIALS)
    return memory_refuse(device, bytes);
  measured->room_bytes = bytes;
  return memory_reserve(device, bytes);
}

bool measured_begin(struct measured_allocation *measured) {
  if (!measured_is_to_be_made(measured))
    return false;
  measured->is_undone = false;
  if (measured->device != NULL) {
    CUstreamCaptureMode mode = capture_relax();
    measured->result = make_room_for(measured);
    capture_restore(mode);
    if (measured->result != CUDA_SUCCESS)
      return false;
    measured->overhead_before_bytes = own_overhead_bytes(measured->device);
  }
  measured->trials++;
  return true;
}

void measured_count(struct measured_allocation *measured, CUresult result) {
  measured->result = result;
  if (measured->device != NULL &&
      (result != CUDA_SUCCESS || !overhead_count_made(measured->device, measured->room_bytes)))
    memory_cancel(measured->device, measured->room_bytes);
}

/* An allocation that took no more than was reserved does not pass the limit, even if somebody else does. */
bool measured_is_over(struct measured_allocation *measured) {
  if (measured->device == NULL || measured->result != CUDA_SUCCESS)
    return false;
  measured->overhead_bytes = own_overhead_bytes(measured->device);
  measured->is_undone = measured->overhead_bytes > measured->overhead_before_bytes + measured->room_bytes &&
                        memory_is_over(measured->device);
  return measured->is_undone;
}

CUresult measured_undone(struct device *device, CUresult result) {
  if (device != NULL && result == CUDA_SUCCESS)
    overhead_correct(device, 0);
  return result;
}
