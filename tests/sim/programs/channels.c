/* Preloaded: knows the channels of its process, as it sees the driver allocate and free them, and switches them. */
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_OBJECTS 4096
#define REQUEST(number, size) (3UL << 30 | (unsigned long)(size) << 16 | 'F' << 8 | (number))
#define COMPUTE 1

struct object {
  uint32_t client, parent, handle, class, engine_type;
};
static struct object objects[MAX_OBJECTS];
static unsigned object_count;
static int device = -1;

struct alloc {
  uint32_t client, parent, handle, class;
  uint64_t parameters, rights;
  uint32_t size, flags, status;
};
struct removal {
  uint32_t client, parent, handle, status;
};

static int pass_on(int fd, unsigned long request, void *argument) {
  static int (*next)(int, unsigned long, ...);
  void *driver = next ? NULL : dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver)
    next = (int (*)(int, unsigned long, ...))dlsym(driver, "ioctl");
  return next ? next(fd, request, argument) : (int)syscall(SYS_ioctl, fd, request, argument);
}

static void forget(uint32_t handle) {
  for (unsigned i = 0; i < object_count; i++) {
    if (objects[i].parent == handle)
      forget(objects[i].handle);
    if (objects[i].handle == handle)
      objects[i] = (struct object){0};
  }
}

int ioctl(int fd, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void *argument = va_arg(arguments, void *);
  va_end(arguments);
  int result = pass_on(fd, request, argument);
  if (result == 0 && request == REQUEST(0x2b, sizeof(struct alloc)) && object_count < MAX_OBJECTS) {
    const struct alloc *alloc = argument;
    const uint32_t *parameters = (const uint32_t *)(uintptr_t)alloc->parameters;
    if (alloc->status == 0)
      objects[object_count++] = (struct object){alloc->client, alloc->parent, alloc->handle, alloc->class,
                                                alloc->class == 0xa06c ? parameters[3] : 0};
    device = fd;
  } else if (result == 0 && request == REQUEST(0x29, sizeof(struct removal))) {
    forget(((struct removal *)argument)->handle);
  }
  return result;
}

static const struct object *find(uint32_t handle) {
  for (unsigned i = 0; i < object_count; i++)
    if (objects[i].handle == handle)
      return &objects[i];
  return NULL;
}

/* The objects of a class, of compute groups where it is one of groups or channels. */
unsigned channels_list(uint32_t class, uint32_t handles[64]) {
  unsigned count = 0;
  for (unsigned i = 0; i < object_count && count < 64; i++) {
    const struct object *parent = find(objects[i].parent);
    if (objects[i].class == class && (class != 0xa06c || objects[i].engine_type == COMPUTE) &&
        (class != 0xc86f || (parent && parent->engine_type == COMPUTE)))
      handles[count++] = objects[i].handle;
  }
  return count;
}

uint32_t channels_client(void) {
  return objects[0].client ? objects[0].client : objects[0].handle;
}

int channels_device(void) {
  return device;
}

int channels_control(int fd, uint32_t client, uint32_t object, uint32_t command, void *parameters, uint32_t size) {
  struct {
    uint32_t client, object, command, flags;
    uint64_t parameters;
    uint32_t size, status;
  } call = {client, object, command, 0, (uintptr_t)parameters, size, 0};
  return pass_on(fd, 0xc020462a, &call) == 0 ? (int)call.status : -errno;
}

int channels_switch(int fd, uint32_t client, uint32_t subdevice, int off, const uint32_t *handles, unsigned count) {
  struct {
    uint8_t disable;
    uint32_t count;
    uint8_t only, rewind;
    uint64_t event;
    uint32_t clients[64], channels[64];
  } parameters = {.disable = (uint8_t)off, .count = count};
  for (unsigned i = 0; i < count && i < 64; i++) {
    parameters.clients[i] = client;
    parameters.channels[i] = handles[i];
  }
  return channels_control(fd, client, subdevice, 0x2080110b, &parameters, sizeof parameters);
}

int channels_busy(int fd, uint32_t client, const uint32_t *handles, unsigned count, uint32_t behaviour,
                  uint32_t timeout_us) {
  uint32_t clients[64];
  struct {
    uint32_t client, device, channel, count;
    uint64_t clients, devices, channels;
    uint32_t flags, timeout, status;
  } call = {
      client,     0, handles[0], count, (uintptr_t)clients, (uintptr_t)clients, (uintptr_t)handles, behaviour | 7 << 8,
      timeout_us, 0};
  for (unsigned i = 0; i < count && i < 64; i++)
    clients[i] = client;
  return pass_on(fd, REQUEST(0x41, sizeof call), &call) == 0 ? (int)call.status : -errno;
}
