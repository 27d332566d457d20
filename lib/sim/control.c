#include "control.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "config.h"
#include "control_answers.h"
#include "control_records.h"
#include "control_switches.h"
#include "driver.h"
#include "groups.h"

#define DEVICE_MAGIC 0x314c544341495644ULL
#define FIRST_CLIENT 0xc1d00000
#define FIRST_OBJECT 0x5c000001

/* Numbers of requests, of type 'F'. */
#define REQUEST_TYPE 'F'
#define REQUEST_FREE 0x29
#define REQUEST_CONTROL 0x2a
#define REQUEST_ALLOC 0x2b
#define REQUEST_IDLE_CHANNELS 0x41
#define REQUEST_MAP_MEMORY 0x4e
#define REQUEST(number, type) (3UL << 30 | sizeof(type) << 16 | (unsigned long)REQUEST_TYPE << 8 | (number))

#ifndef F_ADD_SEALS /* glibc 2.17 does not name them yet */
#define F_ADD_SEALS 1033
#define F_GET_SEALS 1034
#define F_SEAL_SEAL 1
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW 4
#define F_SEAL_WRITE 8
#endif
#define ALL_SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

/* The content of the file behind a descriptor of the device. */
struct device_file {
  uint64_t magic;
  struct control_client client;
};

static int device_fd = -1;
static struct control_client own_client;
static uint32_t next_object = FIRST_OBJECT;

/* ---- the device -------------------------------------------------------------------------------------------------- */

/* Whoever has a descriptor of it may ask in the client's name; nobody can make one of another client's. */
static bool read_client(int fd, struct control_client *client) {
  struct device_file file;
  if (fcntl(fd, F_GET_SEALS) != ALL_SEALS || pread(fd, &file, sizeof file, 0) != (ssize_t)sizeof file)
    return false;
  *client = file.client;
  return file.magic == DEVICE_MAGIC && file.client.owner;
}

static struct control_client client_of(uint64_t owner) {
  return (struct control_client){owner, FIRST_CLIENT + (uint32_t)(owner >> STATE_OWNER_SLOT_BITS)};
}

static int make_device(void) {
  struct device_file file = {DEVICE_MAGIC, own_client};
  if (!files_may_have(sizeof file))
    return -1;
  int fd = (int)syscall(SYS_memfd_create, "nvidiactl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd >= 0 && pwrite(fd, &file, sizeof file, 0) == (ssize_t)sizeof file && fcntl(fd, F_ADD_SEALS, ALL_SEALS) == 0)
    return fd;
  if (fd >= 0)
    close(fd);
  return -1;
}

/* Another one, when the program has closed it. */
static int device(void) {
  struct control_client client;
  if (device_fd < 0 || !read_client(device_fd, &client) || client.handle != own_client.handle)
    device_fd = make_device();
  return device_fd;
}

static int answer(struct control_client client, unsigned long request, void *argument) {
  if (request == REQUEST(REQUEST_ALLOC, struct control_alloc)) {
    struct control_alloc *call = argument;
    call->status = answer_alloc(client, call);
  } else if (request == REQUEST(REQUEST_ALLOC, struct control_short_alloc)) {
    struct control_short_alloc *call = argument;
    call->status = answer_alloc(client, &(struct control_alloc){call->client, call->parent, call->handle, call->class,
                                                                call->parameters, .size = call->size});
  } else if (request == REQUEST(REQUEST_FREE, struct control_free)) {
    struct control_free *call = argument;
    call->status = answer_free(client, call);
  } else if (request == REQUEST(REQUEST_CONTROL, struct control_control)) {
    struct control_control *call = argument;
    call->status = answer_control(client, call);
  } else if (request == REQUEST(REQUEST_IDLE_CHANNELS, struct control_idle)) {
    struct control_idle *call = argument;
    call->status = answer_idle(client, call);
  } else if (request == REQUEST(REQUEST_MAP_MEMORY, struct control_map)) {
    struct control_map *call = argument;
    call->status = answer_map(client, call);
  } else {
    errno = EINVAL;
    return -1;
  }
  return 0;
}

static bool has_slot(void) {
  return (state_mapped() && state_own_slot() != STATE_NO_SLOT) || driver_join_state();
}

/* For the device what the kernel is for a card's; all else goes to the kernel. */
__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...) {
  struct control_client client;
  va_list arguments;
  va_start(arguments, request);
  void *argument = va_arg(arguments, void *);
  va_end(arguments);
  if ((request >> 8 & 0xff) != REQUEST_TYPE || !read_client(fd, &client) || !has_slot())
    return (int)syscall(SYS_ioctl, fd, request, argument);
  if (syscall(SYS_ioctl, fd, request, argument) != 0 && errno != ENOTTY)
    return -1; /* a filter of the program's denies it, as it would a card's */
  return answer(client, request, argument);
}

/* A client of its own for who opens the device by its path, as others than libcuda do. */
__attribute__((visibility("default"))) int openat(int folder, const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  unsigned mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, unsigned) : 0;
  va_end(arguments);
  if (strcmp(path, "/dev/nvidiactl") != 0)
    return (int)syscall(SYS_openat, folder, path, flags, mode);
  if (has_slot() && sim_config.nvidiactl) {
    own_client = client_of(state_own_owner());
    return make_device();
  }
  errno = EIO;
  return -1;
}

/* ---- this process's own calls ------------------------------------------------------------------------------------ */

/* By the name that a preloaded library may have. The kernel does not know the device, so requests that get there are
 * answered here. */
static bool call(unsigned long request, void *argument) {
  int fd = sim_config.nvidiactl ? device() : -1;
  if (fd >= 0 && ioctl(fd, request, argument) == 0)
    return true;
  return (fd < 0 || errno == ENOTTY) && answer(own_client, request, argument) == 0;
}

static bool alloc(uint32_t parent, uint32_t handle, uint32_t class, void *parameters, size_t size) {
  struct control_alloc request = {.client = own_client.handle,
                                  .parent = parent,
                                  .handle = handle,
                                  .class = class,
                                  .parameters = (uintptr_t)parameters,
                                  .size = (uint32_t)size};
  return call(REQUEST(REQUEST_ALLOC, struct control_alloc), &request) && request.status == STATUS_OK;
}

static void free_object(uint32_t parent, uint32_t handle) {
  struct control_free request = {.client = own_client.handle, .parent = parent, .handle = handle};
  call(REQUEST(REQUEST_FREE, struct control_free), &request);
}

bool control_open(void) {
  own_client = client_of(state_own_owner());
  if (sim_config.nvidiactl && files_may_have(sizeof(struct device_file)) && device() < 0)
    return false;
  return alloc(0, own_client.handle, CLASS_CLIENT, NULL, 0);
}

/* The handle of the device, which stays allocated; 0 when that fails. */
static uint32_t device_handle(unsigned device_row) {
  const struct state_client *client = &state_process(state_own_slot())->client;
  struct device_parameters parameters = {device_row};
  if (client->devices[device_row])
    return client->devices[device_row];
  uint32_t handle = next_object++;
  if (!alloc(own_client.handle, handle, CLASS_DEVICE, &parameters, sizeof parameters) ||
      !alloc(handle, next_object++, CLASS_SUBDEVICE, NULL, 0))
    return 0;
  return handle;
}

static bool make_group(uint32_t parent, uint32_t handle, struct group_parameters parameters, unsigned channels) {
  if (!alloc(parent, handle, CLASS_GROUP, &parameters, sizeof parameters))
    return false;
  while (channels > 0 && alloc(handle, next_object++, CLASS_CHANNEL, NULL, 0))
    channels--;
  return channels == 0;
}

bool control_make_channels(unsigned device, unsigned *group) {
  uint32_t parent = device_handle(state_row(device)), compute = next_object++, copies = next_object++;
  struct group_parameters for_compute = {.engine_type = ENGINE_COMPUTE};
  struct group_parameters for_copies = {.engine_type = ENGINE_COPY, .copies_of = compute};
  bool good = parent && make_group(parent, compute, for_compute, STATE_GROUP_CHANNELS) &&
              make_group(parent, copies, for_copies, 1);
  *group = group_find(own_client.owner, compute);
  if (good)
    return true;
  if (*group != GROUP_NONE)
    control_free_channels(*group);
  return false;
}

void control_free_channels(unsigned group) {
  const struct state_group *groups = state_mapped()->groups;
  uint32_t parent = atomic_load(&groups[group].parent), compute = atomic_load(&groups[group].handle);
  unsigned copies = group_of_copies(group);
  if (copies != GROUP_NONE)
    free_object(parent, atomic_load(&groups[copies].handle));
  free_object(parent, compute);
}
