#include "stream/gpu_samples.h"

#include "base/claim.h"
#include "base/clock.h"
#include "device/devices.h"
#include "device/process.h"

#include <pthread.h>

#define NONE (-1)
#define MOST_MS 20 /* for the answer, which a fork waits for; it comes after 2 */

static int32_t asking; /* a claim */

/* A child has NVML's locks as they are: a fork waits until we have let go of them, but not for an NVML that hangs. */
static void wait_for_answer(void) {
  for (int i = 0; i < MOST_MS && !claim_try(&asking); i++)
    clock_sleep_ns(1000000);
}

static void go_on(void) {
  if (claim_is_own(&asking))
    claim_release(&asking);
}

static void watch_forks(void) {
  static bool watches;
  if (!__atomic_exchange_n(&watches, true, __ATOMIC_ACQ_REL))
    pthread_atfork(wait_for_answer, go_on, NULL);
}

static void forget(void) {
  asking = 0;
}
PROCESS_IN_CHILD(forget);

static nvmlReturn_t ask(nvmlDevice_t handle, int64_t since_ns, nvmlValueType_t *type, unsigned *count,
                        nvmlSample_t *rows) {
  claim_take(&asking);
  nvmlReturn_t result = real.nvmlDeviceGetSamples(handle, NVML_GPU_UTILIZATION_SAMPLES,
                                                  (unsigned long long)since_ns / 1000, type, count, rows);
  claim_release(&asking);
  return result;
}

int gpu_samples_ask(const void *of, int64_t since_ns, struct gpu_sample samples[SAMPLES_MOST]) {
  const struct device *device = of;
  nvmlSample_t rows[SAMPLES_MOST];
  nvmlValueType_t type;
  unsigned count = SAMPLES_MOST;
  if (!device->in_nvml)
    return NONE;
  watch_forks();
  nvmlReturn_t result = ask(device->nvml, since_ns, &type, &count, rows);
  if (result == NVML_ERROR_NOT_FOUND)
    return 0;
  if (result != NVML_SUCCESS || type != NVML_VALUE_TYPE_UNSIGNED_INT)
    return NONE;
  for (unsigned i = 0; i < count; i++)
    samples[i] = (struct gpu_sample){(int64_t)rows[i].timeStamp * 1000, rows[i].sampleValue.uiVal};
  return (int)count;
}
