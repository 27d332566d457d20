/*
 * Records of context switches, as a card's driver gives them to any process: an event buffer, whose header and ring are
 * memory that the process maps, bound to a device. A flush brings all records there that there are. Only the process
 * that made a buffer can use it.
 */
#include "control_records.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "control_objects.h"
#include "groups.h"
#include "pieces.h"
#include "timeline.h"

#define MOST_MEMORIES 32
#define MOST_BUFFERS (MOST_MEMORIES / 2)
#define FLUSH_NS (70 * NS_PER_US) /* on a card */
#define TAG_BEGINS 6
#define TAG_ENDS 7

struct memory_parameters {
  uint32_t not_read[12];
  uint64_t low, high, size;
};

struct buffer_parameters {
  uint64_t header, ring;
  uint32_t record_bytes, records;
  uint64_t data;
  uint32_t data_bytes, free_threshold;
  uint64_t notification;
  uint32_t data_threshold, subdevice, flags, header_memory, ring_memory, data_memory;
};

struct header {
  uint32_t get, put;
  uint64_t count, dropped, data_dropped;
};

struct record {
  uint16_t type, subtype;
  uint32_t data;
  uint8_t tag, vm;
  uint16_t number;
  uint32_t context, pid;
  uint16_t reserved;
  uint8_t gpu_instance, compute_instance;
  uint64_t time_ns;
};

static struct memory {
  uint32_t handle; /* 0: the place is free */
  int file;
  size_t size;
  void *mapping;
} memories[MOST_MEMORIES];

static struct buffer {
  uint32_t handle; /* 0: the place is free */
  struct memory *header, *ring;
  unsigned device_row;
  uint32_t record_bytes, records;
  bool is_bound, is_enabled;
  bool of_all_users; /* all users' records, with their PIDs */
  uint64_t next;     /* the number of the record that it gets next */
} buffers[MOST_BUFFERS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* on both: threads may be at several devices at once */

/* In a child, whose parent's other threads are not here. */
static void leave_after_fork(void) {
  pthread_mutex_init(&lock, NULL);
}

static bool watches_forks(void) {
  static bool watches;
  if (!watches)
    watches = pthread_atfork(NULL, NULL, leave_after_fork) == 0;
  return watches;
}

static struct memory *find_memory(uint32_t handle) {
  for (unsigned i = 0; i < MOST_MEMORIES; i++)
    if (memories[i].handle == handle)
      return &memories[i];
  return NULL;
}

static struct buffer *find_buffer(uint32_t handle) {
  for (unsigned i = 0; i < MOST_BUFFERS; i++)
    if (buffers[i].handle == handle)
      return &buffers[i];
  return NULL;
}

/* ---- allocations ------------------------------------------------------------------------------------------------- */

static enum control_status alloc_memory(const struct control_alloc *call) {
  struct memory_parameters parameters;
  struct memory *memory = find_memory(0);
  if (call->size < sizeof parameters || !call->parameters)
    return STATUS_INVALID_ARGUMENT;
  memcpy(&parameters, (const void *)(uintptr_t)call->parameters, sizeof parameters);
  int file = memory && files_may_have(parameters.size) ? (int)syscall(SYS_memfd_create, "nvidiactl", MFD_CLOEXEC) : -1;
  if (file < 0)
    return STATUS_INSUFFICIENT_RESOURCES;
  void *mapping = MAP_FAILED;
  if (ftruncate(file, (off_t)parameters.size) == 0)
    mapping = mmap(NULL, parameters.size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapping == MAP_FAILED) {
    close(file);
    return STATUS_INSUFFICIENT_RESOURCES;
  }
  *memory = (struct memory){call->handle, file, parameters.size, mapping};
  return STATUS_OK;
}

static enum control_status alloc_buffer(struct control_client own, const struct control_alloc *call) {
  struct buffer_parameters parameters;
  struct buffer *buffer = find_buffer(0);
  if (call->size < sizeof parameters || !call->parameters)
    return STATUS_INVALID_ARGUMENT;
  memcpy(&parameters, (const void *)(uintptr_t)call->parameters, sizeof parameters);
  struct memory *header = find_memory(parameters.header_memory), *ring = find_memory(parameters.ring_memory);
  struct control_control subdevice = {.client = call->client, .object = parameters.subdevice};
  struct buffer made = {call->handle, header, ring, .record_bytes = parameters.record_bytes,
                        .records = parameters.records};
  FORWARD_IF_ERROR(control_find_subdevice(own, &subdevice, &made.device_row));
  bool fits = parameters.header_memory && parameters.ring_memory && header && ring &&
              header->size >= sizeof(struct header) && made.record_bytes >= sizeof(struct record) && made.records > 0 &&
              made.records <= ring->size / made.record_bytes;
  if (!fits)
    return STATUS_INVALID_ARGUMENT;
  if (!buffer)
    return STATUS_INSUFFICIENT_RESOURCES;
  *buffer = made;
  return STATUS_OK;
}

enum control_status records_alloc(struct control_client own, const struct control_alloc *call) {
  if (own.owner != state_own_owner())
    return STATUS_NOT_SUPPORTED;
  sigset_t before;
  kernel_lock(&lock, &before);
  bool is_taken = find_memory(call->handle) || find_buffer(call->handle);
  enum control_status status = is_taken                      ? STATUS_INVALID_ARGUMENT
                               : !watches_forks()            ? STATUS_INSUFFICIENT_RESOURCES
                               : call->class == CLASS_MEMORY ? alloc_memory(call)
                                                             : alloc_buffer(own, call);
  kernel_unlock(&lock, &before);
  return status;
}

static void free_memory(struct memory *memory) {
  for (unsigned i = 0; i < MOST_BUFFERS; i++)
    if (buffers[i].header == memory || buffers[i].ring == memory)
      buffers[i] = (struct buffer){0};
  munmap(memory->mapping, memory->size);
  close(memory->file);
  *memory = (struct memory){0};
}

bool records_free(struct control_client own, uint32_t handle) {
  if (own.owner != state_own_owner())
    return false;
  sigset_t before;
  kernel_lock(&lock, &before);
  struct memory *memory = find_memory(handle);
  struct buffer *buffer = find_buffer(handle);
  if (memory)
    free_memory(memory);
  if (buffer)
    *buffer = (struct buffer){0};
  kernel_unlock(&lock, &before);
  return memory || buffer;
}

/* An open file of the device becomes one of the memory, which the process maps then. */
static enum control_status map(const struct control_map *call) {
  const struct memory *memory = call->memory ? find_memory(call->memory) : NULL;
  if (!memory)
    return STATUS_NOT_FOUND;
  if (call->offset || call->length > memory->size)
    return STATUS_INVALID_ARGUMENT;
  return dup3(memory->file, call->file, O_CLOEXEC) >= 0 ? STATUS_OK : STATUS_INVALID_ARGUMENT;
}

enum control_status answer_map(struct control_client own, const struct control_map *call) {
  if (!control_client_of(own, call->client))
    return STATUS_INVALID_CLIENT;
  if (own.owner != state_own_owner())
    return STATUS_NOT_FOUND;
  sigset_t before;
  kernel_lock(&lock, &before);
  enum control_status status = map(call);
  kernel_unlock(&lock, &before);
  return status;
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

/* Its process's, which may have ended; then the driver knows no more whose it was. */
static uint32_t pid_of_group(unsigned row) {
  uint64_t owner = atomic_load(&group_at(row)->owner);
  return owner && state_owner_is_live(owner) ? state_pid_of(state_slot_of(owner)) : 0;
}

/* Without those of all users, those of others have no PID. */
static uint32_t pid_for(const struct buffer *buffer, unsigned row) {
  int saved_errno = errno;
  pid_t pid = (pid_t)pid_of_group(row);
  bool is_shown = buffer->of_all_users || (pid && kill(pid, 0) == 0);
  errno = saved_errno;
  return is_shown ? (uint32_t)pid : 0;
}

static void put(struct buffer *buffer, uint64_t word) {
  struct header *header = buffer->header->mapping;
  unsigned row = (unsigned)(word >> 1) % (1U << STATE_RECORD_ROW_BITS);
  struct record record = {.tag = word & 1 ? TAG_BEGINS : TAG_ENDS,
                          .number = (uint16_t)header->count,
                          .context = row + 1,
                          .pid = pid_for(buffer, row),
                          .time_ns = word >> STATE_RECORD_BITS};
  memcpy((char *)buffer->ring->mapping + (size_t)header->put * buffer->record_bytes, &record, sizeof record);
  header->put = (header->put + 1) % buffer->records;
  header->count++;
}

struct count {
  unsigned device_row;
  uint64_t records;
};

static void count_records(struct schedule *schedule, void *argument) {
  struct count *count = argument;
  count->records = schedule->engines[count->device_row].records;
}

static uint64_t records_by_now(unsigned device_row) {
  struct count count = {.device_row = device_row};
  timeline_do(count_records, &count);
  return count.records;
}

static enum control_status flush(struct buffer *buffer) {
  uint64_t end = records_by_now(buffer->device_row);
  if (!buffer->is_bound || !buffer->is_enabled)
    return STATUS_OK;
  buffer->next = max_u64(buffer->next, end > STATE_RECORDS ? end - STATE_RECORDS : 0);
  for (; buffer->next < end; buffer->next++)
    put(buffer, atomic_load(&state_mapped()->records[buffer->device_row][buffer->next % STATE_RECORDS]));
  return STATUS_OK;
}

struct bind_parameters {
  uint32_t buffer, record_bytes, detail, filter;
  uint8_t all_users, padding[3];
  uint32_t reason;
};

static enum control_status bind(struct control_client own, const struct control_control *call) {
  struct bind_parameters parameters;
  unsigned device_row;
  FORWARD_IF_ERROR(control_find_subdevice(own, call, &device_row));
  if (call->size != sizeof parameters || !call->parameters)
    return STATUS_INVALID_ARGUMENT;
  memcpy(&parameters, (const void *)(uintptr_t)call->parameters, sizeof parameters);
  if (parameters.all_users && geteuid() != 0)
    return STATUS_INSUFFICIENT_PERMISSIONS;
  struct buffer *buffer = parameters.buffer ? find_buffer(parameters.buffer) : NULL;
  if (!buffer || buffer->device_row != device_row)
    return STATUS_NOT_FOUND;
  buffer->is_bound = true;
  buffer->of_all_users = parameters.all_users;
  buffer->next = records_by_now(device_row);
  return STATUS_OK;
}

static enum control_status control(struct control_client own, const struct control_control *call) {
  if (call->command == COMMAND_BIND_RECORDS)
    return bind(own, call);
  struct buffer *buffer = call->object ? find_buffer(call->object) : NULL;
  if (!buffer)
    return STATUS_NOT_FOUND;
  if (call->command == COMMAND_FLUSH_RECORDS)
    return flush(buffer);
  if (call->size < 1 || !call->parameters)
    return STATUS_INVALID_ARGUMENT;
  buffer->is_enabled = *(const uint8_t *)(uintptr_t)call->parameters != 0;
  return STATUS_OK;
}

enum control_status records_control(struct control_client own, const struct control_control *call) {
  if (!control_client_of(own, call->client))
    return STATUS_INVALID_CLIENT;
  if (own.owner != state_own_owner())
    return STATUS_NOT_SUPPORTED;
  if (call->command == COMMAND_FLUSH_RECORDS)
    clock_wait_until(clock_ns() + FLUSH_NS);
  sigset_t before;
  kernel_lock(&lock, &before);
  enum control_status status = control(own, call);
  kernel_unlock(&lock, &before);
  return status;
}
