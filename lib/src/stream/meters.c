#include "stream/meters.h"
#include "device/suspension.h"

#include "base/claim.h"
#include "base/clock.h"
#include "base/log.h"
#include "compute/gate.h"
#include "compute/outstanding.h"
#include "scheduler/governor.h"
#include "stream/gpu_samples.h"
#include "stream/profile.h"
#include "tenants/presence.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

HOT_DATA struct meters_watch meters_watch;

/* ---- the driver -------------------------------------------------------------------------------------------------- */

/* Any other answer than "no" means that nothing may be asked: the legacy stream answers with an error while another
 * stream captures. */
static bool is_capturing(void *stream) {
  return capture_is_active(stream);
}

static bool is_idle(void *stream) {
  CUstreamCaptureMode mode = capture_relax();
  CUresult result = real.cuStreamQuery(stream);
  capture_restore(mode);
  return result == CUDA_SUCCESS;
}

static bool is_here(void *context) {
  CUcontext current = NULL;
  return real.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context;
}

const struct meter_driver meters_driver = {.now_ns = quick_clock_ns,
                                           .sleep_ns = signals_sleep_ns,
                                           .is_capturing = is_capturing,
                                           .is_idle = is_idle,
                                           .is_here = is_here};

/* ---- what a device's meter goes by ------------------------------------------------------------------------------- */

/* The outermost share is the tenant: policy and priority are its own. Shares within it have a bucket each. Without
 * tenants nobody knows who else wants the GPU, and the limit holds always. */
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
  if (limits.sm_policy == VGPU_SM_OFF || meter == NULL || meter->tenants == NULL)
    return terms;
  const struct tenant_terms own = {limits.sm_percent, (uint16_t)limits.sm_policy, (uint16_t)limits.priority};
  terms.yields = limits.sm_policy == VGPU_SM_BURST || limits.sm_percent >= VGPU_NO_SM_LIMIT;
  terms.percents[0] = tenants_share_percent(meter->tenants, &own);
  return terms;
}

static void add_buckets(struct meter *meter, const struct device *device) {
  for (int level = process_levels() - 1; level >= 0; level--)
    meter->buckets[meter->bucket_count++].state = device_state(device, level);
}

/* Tells whether launches block, as the driver was told when it started. */
static bool launches_block(void) {
  const char *value = getenv("CUDA_LAUNCH_BLOCKING");
  return value != NULL && *value != '\0' && strcmp(value, "0") != 0;
}

/* By the number of its slot in the outermost usage file a process has one in the tenant's file of presence, too. */
static struct tenants *join_tenants(const struct device *device) {
  (void)process_ledger(); /* takes them */
  int outermost = process_levels() - 1, slot = process_ledger_at(outermost)->own_slot;
  if (slot >= PRESENCE_SLOTS)
    log_line(LOG_WARNING, "other containers do not see this process on the GPU: its container has %d before it", slot);
  if (slot < 0 || slot >= PRESENCE_SLOTS)
    return NULL;
  return tenants_open(device_uuid_at(device, outermost), process_number_at(outermost, device->number),
                      &process_files_at(outermost)->usage, slot);
}

static void note_limiter(const void *owner, uint32_t limiter) {
  const struct device *device = owner;
  ledger_note_limiter(process_ledger(), device->number, limiter);
}

/* Charges what nobody has waited for. A process that is suspended has nothing on the GPU, and its calls would wait. */
static void settle_at_exit(void) {
  struct device *device;
  if (process_is_suspended())
    return;
  for (int i = 0; (device = devices_at(i)) != NULL; i++) {
    struct meter *meter = __atomic_load_n(&device->meter, __ATOMIC_ACQUIRE);
    if (meter != NULL)
      gate_settle(meter);
  }
  governor_settle_all();
}

/* The driver has a handler of its own as soon as there is a device: this one comes later, and runs before it. */
static void watch_exit(void) {
  static bool watches;
  if (!__atomic_exchange_n(&watches, true, __ATOMIC_RELAXED))
    atexit(settle_at_exit);
}

static struct meter *make(struct device *device) {
  struct meter *made = calloc(1, sizeof *made);
  if (made == NULL) {
    device_not_enforced(device, VGPU_NOT_ENFORCED_SM);
    return NULL;
  }
  made->driver = &meters_driver;
  made->terms = terms_of;
  made->owner = device;
  made->gate.account.meter = made;
  add_buckets(made, device);
  made->observer = profile_observer();
  made->launches_block = launches_block();
  made->note_work = governor_note_work;
  made->note_limiter = note_limiter;
  made->tenants = process_shows_limits() ? join_tenants(device) : NULL;
  struct meter *other = NULL;
  if (!__atomic_compare_exchange_n(&device->meter, &other, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    if (made->tenants != NULL)
      tenants_close(made->tenants);
    free(made);
    return other;
  }
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

/* A thread that is cancelled meanwhile, or leaves by siglongjmp out of a signal handler, would leave the program's work
 * off its GPU, with nobody to put it back. */
static bool is_governed_from_now_on(struct meter *meter, const struct device *device) {
  int cancel_state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  signals_hold();
  bool is_governed = governor_begin(meter, device->uuid, process_is_suspended, gpu_samples_ask);
  signals_release();
  pthread_setcancelstate(cancel_state, NULL);
  return is_governed;
}

/* Lets the GPU's own scheduler hold the limit where the driver allows it; else launches are held. */
static struct meter *limiting(struct device *device) {
  struct meter *meter = meter_of(device);
  if (meter == NULL || __atomic_load_n(&device->was_tried, __ATOMIC_RELAXED) ||
      __atomic_exchange_n(&device->was_tried, true, __ATOMIC_RELAXED))
    return meter;
  if (is_governed_from_now_on(meter, device))
    note_limiter(device, VGPU_LIMITER_SCHEDULER);
  else {
    atomic_store(&meter->holds_launches, true);
    log_line(LOG_INFO, "the driver does not let its scheduler hold the limit of GPU %s; launches are held instead",
             device->uuid);
  }
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

/* Do the others see it at work? Also where its host holds the limit, which is not measured here. */
static bool is_seen(struct limits limits) {
  return limits.sm_policy != VGPU_SM_OFF || limits.is_together;
}

/* Looks for other tenants. If measuring ends with them, all work counts as done: nothing would see it complete. */
static bool refresh_company(struct device *device) {
  struct meter *meter = __atomic_load_n(&device->meter, __ATOMIC_ACQUIRE);
  if (meter == NULL)
    return false;
  bool company = false;
  struct limits limits = device_limits(device);
  if (meter->tenants != NULL && is_seen(limits)) {
    terms_of(device); /* publishes them */
    struct tenants_view others = tenants_refresh(meter->tenants, false);
    company = (others.higher_priority || others.peer) && !limits.is_together;
  }
  bool always = is_measured(device);
  __atomic_store_n(&device->in_company, company, __ATOMIC_RELAXED);
  bool was_measured = __atomic_exchange_n(&device->is_measured, company || always, __ATOMIC_RELAXED);
  if (was_measured && !company && !always)
    outstanding_all_done(meter, NULL, INT64_MAX);
  return company;
}

/* The current device's meter is made here, be it only to be seen by others. */
bool meters_refresh_company(int64_t now_ns) {
  int64_t before_ns = __atomic_load_n(&meters_watch.refresh_at_ns, __ATOMIC_RELAXED);
  if (now_ns < before_ns ||
      !__atomic_compare_exchange_n(&meters_watch.refresh_at_ns, &before_ns, now_ns + TENANTS_KNOWN_NS, false,
                                   __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    return __atomic_load_n(&meters_watch.company, __ATOMIC_RELAXED);
  struct device *device = device_of_current_context();
  if (device != NULL && device->number >= 0 && is_seen(device_limits(device)) && process_shows_limits())
    meter_of(device);
  bool company = false;
  for (int i = 0; (device = devices_at(i)) != NULL; i++)
    company |= refresh_company(device);
  __atomic_store_n(&meters_watch.company, company, __ATOMIC_RELAXED);
  return company;
}

static void meters_forget(void) {
  struct device *device;
  for (int i = 0; (device = devices_at(i)) != NULL; i++)
    if (device->meter != NULL && device->meter->tenants != NULL)
      tenants_forget(device->meter->tenants);
  governor_forget();
  meters_watch = (struct meters_watch){0};
  claim_forget_thread();
}
PROCESS_IN_CHILD(meters_forget);
