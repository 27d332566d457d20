#include "stream/meters.h"
#include "device/suspension.h"

#include "base/claim.h"
#include "base/clock.h"
#include "base/log.h"
#include "scheduler/governor.h"
#include "stream/profile.h"
#include "turns/turns_file.h"

#include <stdlib.h>
#include <string.h>

HOT_DATA struct meters_watch meters_watch;

/* ---- what a device's meter goes by ----------------------------------------------------------------------------- */

/* The outermost share is the tenant: policy and priority are its own, and with others its processes take turns. Shares
 * within it have a bucket each. */
static struct meter_terms terms_of(const void *owner) {
  const struct device *device = owner;
  struct limits limits = device_limits_at(device, process_levels() - 1);
  struct meter *meter = __atomic_load_n(&device->meter, __ATOMIC_ACQUIRE);
  struct meter_terms terms = {.percents = {limits_hard_percent(limits)},
                              .paused = limits.paused || process_is_suspended()};
  for (int i = 1; i < process_levels(); i++) {
    struct limits inner = device_limits_at(device, process_levels() - 1 - i);
    terms.percents[i] = limits_hard_percent(inner);
    terms.paused |= inner.paused;
  }
  if (process_is_suspended())
    suspension_ask();
  terms.yields = terms.percents[0] >= VGPU_NO_SM_LIMIT;
  if (limits.sm_policy == VGPU_SM_OFF)
    return terms;
  if (meter == NULL || !meter->takes_turns) /* then nobody knows who else wants the GPU: the limit holds always */
    return terms;
  const struct turns_terms own = {limits.sm_percent, (uint16_t)limits.sm_policy, (uint16_t)limits.priority};
  turns_files_publish(meter->turns.files, &own);
  terms.takes_turns = true;
  terms.is_apart = limits.sm_policy == VGPU_SM_APART;
  terms.yields = limits.sm_policy == VGPU_SM_BURST || limits.sm_percent >= VGPU_NO_SM_LIMIT;
  terms.percents[0] = turns_share_percent(&meter->turns, &own);
  return terms;
}

/* The states of all devices of the container, in the usage file of each level. */
static struct device_state *states[VGPU_MAX_LEVELS][VGPU_MAX_DEVICES + 1];

static void find_states(void) {
  const struct vgpu_limits *limits = process_files()->limits;
  uint32_t count = limits != NULL && limits->device_count < VGPU_MAX_DEVICES ? limits->device_count : VGPU_MAX_DEVICES;
  for (int level = process_levels() - 1; level >= 0; level--) {
    struct device_state **next = states[level];
    for (uint32_t i = 0; i < count; i++)
      if (process_number_at(level, (int)i) >= 0)
        *next++ = process_device_state(level, (int)i);
  }
}

/* The meters of all devices, one after the other as they were made. */
static struct meter *_Atomic made_meters[VGPU_MAX_DEVICES + 1];
static int32_t making; /* a claim */

static void note_made(struct meter *meter) {
  struct meter *_Atomic *place = made_meters;
  claim_take(&making);
  while (atomic_load(place) != NULL)
    place++;
  atomic_store(place, meter);
  claim_release(&making);
}

static void add_buckets(struct meter *meter, const struct device *device) {
  for (int level = process_levels() - 1; level >= 0; level--)
    meter_add_bucket(meter, device_state(device, level), states[level]);
}

/* Tells whether launches block, as the driver was told when it started. */
static bool launches_block(void) {
  const char *value = getenv("CUDA_LAUNCH_BLOCKING");
  return value != NULL && *value != '\0' && strcmp(value, "0") != 0;
}

/* By the number of its slot in the outermost usage file a process has one in the tenant's file of turns, too. */
static void join_turns(struct meter *meter, struct device *device) {
  (void)process_ledger(); /* takes them */
  int outermost = process_levels() - 1, slot = process_ledger_at(outermost)->own_slot;
  struct turns_files *files = NULL;
  if (slot >= TURNS_SLOTS)
    log_line(LOG_WARNING, "this process does not take turns with others on the GPU: its container has %d before it",
             slot);
  else if (slot >= 0)
    files = turns_files_open(device_uuid_at(device, outermost), process_number_at(outermost, device->number),
                             &process_files_at(outermost)->usage);
  meter->takes_turns = files != NULL;
  if (files == NULL)
    device_not_enforced(device, VGPU_NOT_ENFORCED_TURNS);
  else
    turns_begin(&meter->turns, &turns_file_system, files, slot);
}

/* Charges what nobody has waited for. A process that is suspended has nothing on the GPU, and its calls would wait. */
static void harvest_at_exit(void) {
  if (process_is_suspended())
    return;
  meters_harvest_all();
  governor_settle_all();
}

/* The driver has a handler of its own as soon as there is a device: this one comes later, and runs before it. */
static void watch_exit(void) {
  static bool watches;
  if (!__atomic_exchange_n(&watches, true, __ATOMIC_RELAXED))
    atexit(harvest_at_exit);
}

static struct meter *make(struct device *device) {
  struct meter *made = calloc(1, sizeof *made);
  if (made == NULL) {
    device_not_enforced(device, VGPU_NOT_ENFORCED_SM);
    return NULL;
  }
  claim_take(&making);
  if (states[0][0] == NULL)
    find_states();
  claim_release(&making);
  meter_init(made, &markers_driver, terms_of, device);
  made->others = made_meters;
  add_buckets(made, device);
  made->observer = profile_observer();
  made->launches_block = launches_block();
  made->note_work = governor_note_work;
  if (process_shows_limits())
    join_turns(made, device);
  struct meter *other = NULL;
  if (!__atomic_compare_exchange_n(&device->meter, &other, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    if (made->takes_turns)
      turns_files_close(made->turns.files);
    free(made);
    return other;
  }
  note_made(made);
  watch_exit();
  __atomic_store_n(&meters_watch.meters, true, __ATOMIC_RELAXED);
  terms_of(device); /* publishes them */
  return made;
}

static struct meter *meter_of(struct device *device) {
  struct meter *meter = __atomic_load_n(&device->meter, __ATOMIC_ACQUIRE);
  return meter != NULL ? meter : make(device);
}

/* Is its work measured, whatever others do? */
static bool is_measured(struct device *device) {
  struct limits limits = device_limits(device);
  bool limited = limits.sm_percent < VGPU_NO_SM_LIMIT || limits.swaps;
  return limits.paused || (limits.sm_policy != VGPU_SM_OFF && limited);
}

/* Lets the GPU's own scheduler hold the limit where that is asked for and the driver allows it; else launches are
 * held. */
static struct meter *limiting(struct device *device) {
  struct meter *meter = meter_of(device);
  if (meter != NULL && !process_holds_launches && !__atomic_load_n(&device->was_tried, __ATOMIC_RELAXED) &&
      !__atomic_exchange_n(&device->was_tried, true, __ATOMIC_RELAXED) &&
      !governor_begin(meter, device->uuid, process_is_suspended))
    log_line(LOG_INFO, "the driver does not let its scheduler hold the limit of GPU %s; launches are held instead",
             device->uuid);
  return meter;
}

struct meter *meters_current(void) {
  struct device *device = device_of_current_context();
  if (device == NULL || device->number < 0)
    return NULL;
  bool in_company = __atomic_load_n(&device->in_company, __ATOMIC_RELAXED);
  return is_measured(device) || in_company ? limiting(device) : NULL;
}

/* ---- company ---------------------------------------------------------------------------------------------------- */

/* Nothing is measured from now on: what is open would grow with what is not. */
static void leave_off(struct meter *meter) {
  meter_end_all(meter);
  meter_harvest(meter);
}

static bool refresh_company(struct device *device) {
  struct meter *meter = __atomic_load_n(&device->meter, __ATOMIC_ACQUIRE);
  if (meter == NULL)
    return false;
  bool company = false;
  if (meter->takes_turns && device_limits(device).sm_policy != VGPU_SM_OFF) {
    terms_of(device); /* publishes them */
    turns_note_presence(&meter->turns);
    company = turns_refresh(&meter->turns).another_tenant;
  }
  bool always = is_measured(device);
  __atomic_store_n(&device->in_company, company, __ATOMIC_RELAXED);
  bool was_measured = __atomic_exchange_n(&device->is_measured, company || always, __ATOMIC_RELAXED);
  if (was_measured && !company && !always)
    leave_off(meter);
  return company;
}

/* The current device's meter is made here, be it only to be seen by others. */
bool meters_refresh_company(int64_t now_ns) {
  int64_t before_ns = __atomic_load_n(&meters_watch.refresh_at_ns, __ATOMIC_RELAXED);
  if (now_ns < before_ns ||
      !__atomic_compare_exchange_n(&meters_watch.refresh_at_ns, &before_ns, now_ns + TURNS_KNOWN_NS, false,
                                   __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    return __atomic_load_n(&meters_watch.company, __ATOMIC_RELAXED);
  struct device *device = device_of_current_context();
  if (device != NULL && device->number >= 0 && device_limits(device).sm_policy != VGPU_SM_OFF && process_shows_limits())
    meter_of(device);
  bool company = false;
  for (int i = 0; (device = devices_at(i)) != NULL; i++)
    company |= refresh_company(device);
  __atomic_store_n(&meters_watch.company, company, __ATOMIC_RELAXED);
  return company;
}

void meters_harvest_all(void) {
  struct device *device;
  for (int i = 0; (device = devices_at(i)) != NULL; i++) {
    struct meter *meter = __atomic_load_n(&device->meter, __ATOMIC_ACQUIRE);
    if (meter == NULL)
      continue;
    meter_before_wait_all(meter); /* what ran dry long ago did not last until now */
    meter_end_all(meter);
    meter_harvest(meter);
  }
}

static void meters_forget(void) {
  struct device *device;
  for (int i = 0; (device = devices_at(i)) != NULL; i++)
    if (device->meter != NULL && device->meter->takes_turns)
      turns_files_forget(device->meter->turns.files);
  memset(states, 0, sizeof states); /* the child may have other limits */
  memset(made_meters, 0, sizeof made_meters);
  governor_forget();
  meters_watch = (struct meters_watch){0};
  claim_forget_thread();
}
PROCESS_IN_CHILD(meters_forget);
