#include "objects.h"

#include <pthread.h>
#include <sys/stat.h>

#define MOST_OBJECTS 2048

enum kind { NOTHING, DEVICE, SUBDEVICE, GROUP, CHANNEL };

struct object {
  enum kind kind;
  int file;
  dev_t file_device;
  ino_t file_inode;
  uint32_t client, parent, handle;
};

static struct object objects[MOST_OBJECTS];
static uint32_t object_count, generation;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- what the driver makes and frees ----------------------------------------------------------------------------- */

static enum kind kind_of(uint32_t object_class, const void *parameters) {
  const struct rm_group_parameters *group = parameters;
  if (object_class == RM_CLASS_GROUP)
    return group != NULL && group->engine == RM_ENGINE_COMPUTE ? GROUP : NOTHING;
  return object_class == RM_CLASS_DEVICE      ? DEVICE
         : object_class == RM_CLASS_SUBDEVICE ? SUBDEVICE
         : RM_IS_CHANNEL(object_class)        ? CHANNEL
                                              : NOTHING;
}

static struct object *find(enum kind kind, uint32_t client, uint32_t handle) {
  for (uint32_t i = 0; i < object_count; i++)
    if (objects[i].kind == kind && objects[i].client == client && objects[i].handle == handle)
      return &objects[i];
  return NULL;
}

static void add(const struct object *object) {
  uint32_t place = 0;
  while (place < object_count && objects[place].kind != NOTHING)
    place++;
  if (place == MOST_OBJECTS)
    return;
  objects[place] = *object;
  object_count = place == object_count ? place + 1 : object_count;
  generation++;
}

static void note_made(int file, uint32_t client, uint32_t parent, uint32_t handle, enum kind kind) {
  struct stat status;
  if (kind == NOTHING || fstat(file, &status) != 0)
    return;
  const struct object object = {kind, file, status.st_dev, status.st_ino, client, parent, handle};
  pthread_mutex_lock(&lock);
  if (kind != CHANNEL || find(GROUP, client, parent) != NULL)
    add(&object);
  pthread_mutex_unlock(&lock);
}

/* With an object goes all that is below it. */
static void remove_below(uint32_t client, uint32_t handle) {
  for (uint32_t i = 0; i < object_count; i++) {
    struct object *object = &objects[i];
    bool is_it = object->client == client && object->handle == handle;
    if (object->kind == NOTHING || object->client != client || (!is_it && object->parent != handle))
      continue;
    uint32_t below = object->handle;
    object->kind = NOTHING;
    generation++;
    if (!is_it)
      remove_below(client, below);
  }
}

static void note_freed(uint32_t client, uint32_t handle) {
  pthread_mutex_lock(&lock);
  remove_below(client, handle);
  pthread_mutex_unlock(&lock);
}

void objects_note(int file, unsigned long request, const void *argument) {
  if (RM_REQUEST_TYPE(request) != RM_TYPE || argument == NULL)
    return;
  size_t size = RM_REQUEST_SIZE(request);
  if (RM_REQUEST_NUMBER(request) == RM_FREE && size == sizeof(struct rm_free)) {
    const struct rm_free *call = argument;
    if (call->status == RM_OK)
      note_freed(call->root, call->object);
  } else if (RM_REQUEST_NUMBER(request) == RM_ALLOC && size == sizeof(struct rm_alloc)) {
    const struct rm_alloc *call = argument;
    if (call->status == RM_OK)
      note_made(file, call->root, call->parent, call->object,
                kind_of(call->object_class, (const void *)(uintptr_t)call->parameters));
  } else if (RM_REQUEST_NUMBER(request) == RM_ALLOC && size == sizeof(struct rm_short_alloc)) {
    const struct rm_short_alloc *call = argument;
    if (call->status == RM_OK)
      note_made(file, call->root, call->parent, call->object,
                kind_of(call->object_class, (const void *)(uintptr_t)call->parameters));
  }
}

/* ---- who asks ---------------------------------------------------------------------------------------------------- */

/* A program may close every descriptor, and open its own under the same number. */
static bool has_its_file(const struct object *object) {
  struct stat status;
  return fstat(object->file, &status) == 0 && status.st_dev == object->file_device &&
         status.st_ino == object->file_inode;
}

static void add_channels(struct objects_gpu *gpu) {
  for (uint32_t i = 0; i < object_count; i++) {
    const struct object *object = &objects[i];
    if (object->client != gpu->client.handle)
      continue;
    if (object->kind == GROUP && object->parent == gpu->device && gpu->group_count < OBJECTS_MOST_GROUPS)
      gpu->groups[gpu->group_count++] = object->handle;
    const struct object *group = object->kind == CHANNEL ? find(GROUP, object->client, object->parent) : NULL;
    if (group != NULL && group->parent == gpu->device && gpu->channel_count < OBJECTS_MOST_CHANNELS)
      gpu->channels[gpu->channel_count++] = object->handle;
  }
}

bool objects_next(uint32_t *previous, struct objects_gpu *gpu) {
  pthread_mutex_lock(&lock);
  bool found = false;
  while (!found && *previous < object_count) {
    const struct object *subdevice = &objects[(*previous)++];
    if (subdevice->kind != SUBDEVICE || !has_its_file(subdevice))
      continue;
    *gpu = (struct objects_gpu){
        .client = {subdevice->file, subdevice->client}, .device = subdevice->parent, .subdevice = subdevice->handle};
    add_channels(gpu);
    found = gpu->channel_count > 0;
  }
  pthread_mutex_unlock(&lock);
  return found;
}

uint32_t objects_generation(void) {
  return __atomic_load_n(&generation, __ATOMIC_RELAXED);
}
