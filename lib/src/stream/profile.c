#include "stream/profile.h"
#include "stream/profile_flights.h"

#include "base/clock.h"
#include "base/log.h"
#include "device/devices.h"
#include "device/process.h"
#include "profile/disk.h"
#include "profile/records.h"
#include "shared/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_BYTES (64ULL << 20)
#define SAMPLE_NS 20000000LL
#define SAMPLE_SOON_NS 1000000LL /* after an allocation: a peak may be short */
#define SHORTEST_WAIT_NS 10000LL /* the gate itself takes some time, and sleeps no less than 20 us */

HOT_DATA enum profile_state profile_state = PROFILE_UNKNOWN;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the decision; never held across a driver call */
static bool decided;
static struct profile_disk disk;
static HOT_DATA int64_t sampled_at_ns;

/* ---- the file -------------------------------------------------------------------------------------------------- */

static uint64_t most_bytes(void) {
  const char *text = getenv(VGPU_ENV_PROFILE_SIZE);
  uint64_t bytes;
  if (text == NULL || text[0] == '\0')
    return DEFAULT_BYTES;
  if (limits_parse_memory(text, 0, &bytes))
    return bytes;
  log_line(LOG_WARNING, "%s='%s' is not a size such as 64m; a profile has 64 MiB", VGPU_ENV_PROFILE_SIZE, text);
  return DEFAULT_BYTES;
}

/* Arguments are separated by zeros there. */
static void read_command(char *command, size_t size) {
  int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  ssize_t length = file >= 0 ? read(file, command, size - 1) : 0;
  if (file >= 0)
    close(file);
  for (ssize_t i = 0; i + 1 < length; i++)
    if (command[i] == '\0')
      command[i] = ' ';
}

static int64_t real_time_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void write_header(struct profile_header *header) {
  static const char *const names[] = {
#define X(name) #name,
      CUDA_CAUGHT(X) CUDA_PROFILED(X)
#undef X
  };
  _Static_assert(API_COUNT <= PROFILE_MAX_APIS, "room in the file");
  header->format = PROFILE_FORMAT;
  header->pid = (uint32_t)getpid();
  header->started_ns = real_time_ns();
  header->clock_offset_ns = header->started_ns - clock_now_ns();
  header->api_count = API_COUNT;
  for (int i = 0; i < API_COUNT; i++)
    strncpy(header->apis[i], names[i], PROFILE_API_NAME_SIZE - 1);
  read_command(header->command, sizeof header->command);
  __atomic_store_n(&header->magic, PROFILE_MAGIC, __ATOMIC_RELEASE);
}

static COLD void sample_all(int64_t now_ns);

/* Nothing is asked of the driver, which may be gone already. The end is by the same clock as all else, also when the
 * time of day was set meanwhile. */
static void end_at_exit(void) {
  if (__atomic_load_n(&profile_state, __ATOMIC_ACQUIRE) != PROFILE_ON)
    return;
  struct profile_header *header = &disk.file->header;
  sample_all(clock_now_ns());
  __atomic_store_n(&header->ended_ns, header->clock_offset_ns + clock_now_ns(), __ATOMIC_RELEASE);
}

static bool begin(void) {
  static bool watches_exit;
  const char *folder = getenv(VGPU_ENV_PROFILE);
  if (!profile_disk_open(&disk, folder, most_bytes())) {
    log_line(LOG_ERROR, "profile folder %s: %s; nothing is recorded", folder, strerror(errno));
    return false;
  }
  write_header(&disk.file->header);
  profile_records_use(&disk);
  profile_kernels_use(&disk);
  if (!watches_exit)
    watches_exit = atexit(end_at_exit) == 0;
  return true;
}

/* The process is decided upon first, which loads the real functions also where there is no profile. */
bool profile_decide(void) {
  int cancel_state;
  process_decide();
  if (!hooks_load_cuda())
    return false;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  pthread_mutex_lock(&lock);
  if (!decided)
    __atomic_store_n(&profile_state, profile_is_wanted() && begin() ? PROFILE_ON : PROFILE_OFF, __ATOMIC_RELEASE);
  decided = true;
  pthread_mutex_unlock(&lock);
  pthread_setcancelstate(cancel_state, NULL);
  return __atomic_load_n(&profile_state, __ATOMIC_ACQUIRE) == PROFILE_ON;
}

static void profile_forget(void) {
  pthread_mutex_init(&lock, NULL);
  profile_state = PROFILE_UNKNOWN;
  decided = false;
  sampled_at_ns = 0;
  profile_records_use(NULL);
  profile_kernels_use(NULL);
  profile_disk_close(&disk);
}
PROCESS_IN_CHILD(profile_forget);

/* ---- devices --------------------------------------------------------------------------------------------------- */

static void show_device(uint32_t index, const struct device *device) {
  struct profile_header *header = &disk.file->header;
  if (index < __atomic_load_n(&header->device_count, __ATOMIC_ACQUIRE))
    return;
  memcpy(header->devices[index], device->uuid, PROFILE_UUID_SIZE);
  __atomic_store_n(&header->device_count, index + 1, __ATOMIC_RELEASE);
}

static COLD uint8_t index_of(const struct device *device) {
  const struct device *each;
  for (int i = 0; device != NULL && (each = devices_at(i)) != NULL && i < PROFILE_MAX_DEVICES; i++) {
    show_device((uint32_t)i, each);
    if (each == device)
      return (uint8_t)i;
  }
  return PROFILE_NO_DEVICE;
}

static COLD uint8_t ask_current_index(void) {
  profile_place.device = index_of(device_of_current_context());
  profile_place.knows_device = profile_place.device != PROFILE_NO_DEVICE;
  return profile_place.device;
}

/* Asked of the driver until a context is current, and again when another may be. */
static uint8_t current_index(void) {
  return __builtin_expect(profile_place.knows_device, 1) ? profile_place.device : ask_current_index();
}

static void sample(uint8_t index, const struct device *device, int64_t now_ns) {
  struct limits limits = device_limits(device);
  struct vgpu_device_usage own = ledger_own_usage(process_ledger_view(), device->number);
  struct vgpu_device_shared shared;
  device_state_read(device_state(device, 0), &shared);
  const struct profile_record records[] = {
      {.start_ns = (uint64_t)now_ns,
       .value = device_used_bytes(device, 0) + device_host_bytes(device, 0),
       .stream = limits.sm_percent,
       .device = index,
       .kind_and_copy = PROFILE_SAMPLE},
      {.start_ns = own.allocated_bytes + own.overhead_bytes + own.host_bytes,
       .duration_ns = limits_oversubscribe(limits) ? limits.virtual_bytes : limits.memory_bytes,
       .value = shared.busy_ns,
       .device = index,
       .kind_and_copy = PROFILE_SAMPLE_MORE},
  };
  profile_records_store(records, 2);
}

static void sample_all(int64_t now_ns) {
  const struct device *device;
  for (int i = 0; (device = devices_at(i)) != NULL && i < PROFILE_MAX_DEVICES; i++)
    if (device->number >= 0)
      sample(index_of(device), device, now_ns);
}

/* By whichever thread comes along: an idle program changes nothing that a sample could show. */
static void sample_now_and_then(int64_t now_ns, int64_t every_ns) {
  int64_t sampled_ns = __atomic_load_n(&sampled_at_ns, __ATOMIC_RELAXED);
  if (__builtin_expect(now_ns < sampled_ns + every_ns, 1))
    return;
  if (__atomic_compare_exchange_n(&sampled_at_ns, &sampled_ns, now_ns, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    sample_all(now_ns);
}

/* How soon after the last sample this call is worth another. A refused request shows the peak. */
static int64_t sample_after(CUresult result, uint64_t bytes, uint32_t copy) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    return 0;
  return bytes > 0 && copy == PROFILE_NO_COPY ? SAMPLE_SOON_NS : SAMPLE_NS;
}

/* ---- calls ----------------------------------------------------------------------------------------------------- */

void profile_call_changed(bool context, bool kernels) {
  if (context) {
    profile_place.knows_device = false;
    profile_streams_context_changes();
  }
  if (kernels)
    profile_kernels_forget();
}

/* To read the counter waits for whatever the driver did last. Meanwhile all is stored that needs no time. */
HOT void profile_call_over(uint32_t api_and_copy, int64_t start_ns, CUresult result, uint64_t bytes, CUstream stream) {
  uint16_t api = (uint16_t)api_and_copy;
  uint32_t copy = api_and_copy >> 16;
  struct profile_record *record = profile_records_next(1);
  if (record != NULL)
    profile_copy(record, &(const struct profile_record){.start_ns = (uint64_t)start_ns,
                                                        .value = bytes,
                                                        .stream = profile_number_of(stream),
                                                        .api = api,
                                                        .device = current_index(),
                                                        .kind_and_copy = (uint8_t)(PROFILE_CALL | copy << 4)});
  bool failed = result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY;
  struct profile_total *total = profile_records_count(api, failed, bytes);
  int64_t end_ns = quick_clock_ns();
  uint64_t duration_ns = end_ns > start_ns ? (uint64_t)(end_ns - start_ns) : 0;
  if (record != NULL) {
    profile_set(&record->duration_ns, duration_ns);
    profile_records_stored();
  }
  profile_records_count_time(total, duration_ns);
  sample_now_and_then(end_ns, sample_after(result, bytes, copy));
}

/* ---- work of the GPU, and what the meter tells ------------------------------------------------------------------- */

uint8_t profile_device_of_current_context(void) {
  return index_of(device_of_current_context());
}

void profile_span(uint8_t device, uint32_t stream, const struct profile_measure *measure, int64_t own_ns,
                  uint32_t launches) {
  if (!profile_is_on())
    return;
  const struct profile_record span = {.start_ns = (uint64_t)measure->from_ns,
                                      .duration_ns = (uint64_t)(measure->to_ns - measure->from_ns),
                                      .value = profile_span_value((uint64_t)own_ns, launches),
                                      .stream = stream,
                                      .device = device,
                                      .kind_and_copy = PROFILE_SPAN};
  profile_records_store(&span, 1);
}

static void waited(const struct meter *meter, int64_t began_ns, int64_t ended_ns) {
  if (!profile_is_on() || ended_ns - began_ns < SHORTEST_WAIT_NS)
    return;
  const struct profile_record wait = {.start_ns = (uint64_t)began_ns,
                                      .duration_ns = (uint64_t)(ended_ns - began_ns),
                                      .device = index_of(meter->owner),
                                      .kind_and_copy = PROFILE_WAIT};
  profile_records_store(&wait, 1);
}

static void was_off(const struct meter *meter, int64_t began_ns, int64_t ended_ns) {
  if (profile_is_on())
    profile_flights_leave_out(index_of(meter->owner), (struct overlap){began_ns, ended_ns});
}

const struct meter_observer *profile_observer(void) {
  static const struct meter_observer observer = {.waited = waited, .was_off = was_off};
  return profile_is_on() ? &observer : NULL;
}
