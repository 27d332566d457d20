#include "profile/kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAP_SIZE 16384 /* of which half is used */
#define GRAPHS 0       /* the kernels of graphs are launched together, and measured together */
#define OTHERS 1       /* kernels for which there is no room */
#define MOST_SHARES 64 /* different kernels of a batch; further ones count as others */

static HOT_DATA struct profile_disk *disk;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards adding */
static HOT_DATA uint32_t mapped;
static struct {
  uint64_t function; /* 0: free */
  uint32_t kernel;
} map[MAP_SIZE];

/* The launches of a batch, one after the other: they are summed up by kernel when they have been measured. */
struct parts {
  uint32_t count;
  struct part {
    uint32_t kernel;
    float expected_ns; /* 0: not known yet; it is the last one */
  } list[METER_BATCH_LAUNCHES];
};

/* Each kernel's part of a batch. */
struct shares {
  uint32_t count;
  struct share {
    uint32_t kernel;
    double expected_ns;
  } list[MOST_SHARES];
  uint8_t places[MOST_SHARES]; /* in the list, of the kernel with such a number that came last */
};

/* ---- names ----------------------------------------------------------------------------------------------------- */

static uint32_t place_of(uint64_t function) {
  uint32_t place = (uint32_t)((function * 0x9e3779b97f4a7c15ULL) >> 50) % MAP_SIZE;
  uint64_t found;
  while ((found = __atomic_load_n(&map[place].function, __ATOMIC_ACQUIRE)) != 0 && found != function)
    place = (place + 1) % MAP_SIZE;
  return place;
}

static bool is_named(const struct profile_kernel *kernel, const char *name, size_t length) {
  return kernel->name_length == length && memcmp(&disk->file->names[kernel->name_offset], name, length) == 0;
}

/* A kernel without a place counts as one of the others. */
static uint32_t add_kernel(const char *name) {
  struct profile_header *header = &disk->file->header;
  size_t length = strlen(name);
  uint32_t count = header->kernel_count;
  for (uint32_t i = 0; i < count && i < PROFILE_MAX_KERNELS; i++)
    if (is_named(&disk->file->kernels[i], name, length))
      return i;
  if (count >= PROFILE_MAX_KERNELS || length > PROFILE_NAMES_SIZE - header->names_used)
    return OTHERS;
  memcpy(&disk->file->names[header->names_used], name, length);
  disk->file->kernels[count].name_offset = header->names_used;
  disk->file->kernels[count].name_length = (uint32_t)length;
  header->names_used += (uint32_t)length;
  __atomic_store_n(&header->kernel_count, count + 1, __ATOMIC_RELEASE);
  return count;
}

void profile_kernels_use(struct profile_disk *used) {
  pthread_mutex_init(&lock, NULL);
  memset(map, 0, sizeof map);
  mapped = 0;
  disk = used;
  if (disk == NULL)
    return;
  add_kernel("(graphs)");
  add_kernel("(other kernels)");
}

void profile_kernels_name(uint64_t function, const char *name) {
  char address[32];
  snprintf(address, sizeof address, "kernel %#llx", (unsigned long long)function);
  pthread_mutex_lock(&lock);
  uint32_t place = place_of(function);
  if (map[place].function == 0 && mapped < MAP_SIZE / 2) {
    map[place].kernel = add_kernel(name != NULL ? name : address);
    __atomic_store_n(&mapped, mapped + 1, __ATOMIC_RELAXED);
    __atomic_store_n(&map[place].function, function, __ATOMIC_RELEASE);
  }
  profile_place.kernel = map[place].function == function ? map[place].kernel : OTHERS;
  pthread_mutex_unlock(&lock);
}

/* A lookup meanwhile may not find it: then it counts as one of the others. */
void profile_kernels_forget(void) {
  pthread_mutex_lock(&lock);
  for (uint32_t place = 0; place < MAP_SIZE; place++)
    __atomic_store_n(&map[place].function, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&mapped, 0, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&lock);
}

/* ---- launches and batches -------------------------------------------------------------------------------------- */

HOT bool profile_kernels_launch_begins(uint64_t function) {
  profile_place.joined = false;
  profile_place.kernel = GRAPHS;
  if (function == 0)
    return true;
  uint32_t place = place_of(function);
  bool known = __atomic_load_n(&map[place].function, __ATOMIC_ACQUIRE) == function;
  profile_place.kernel = known ? map[place].kernel : OTHERS;
  return known || __atomic_load_n(&mapped, __ATOMIC_RELAXED) >= MAP_SIZE / 2;
}

static COLD struct parts *begin_parts(struct batch *batch) {
  struct parts *parts = batch->parts = malloc(sizeof *parts);
  if (parts != NULL)
    parts->count = 0;
  return parts;
}

HOT void profile_kernels_joined(struct batch *batch, int64_t expected_ns) {
  profile_place.joined = true;
  struct parts *parts = batch->parts != NULL ? batch->parts : begin_parts(batch);
  if (parts != NULL && parts->count < METER_BATCH_LAUNCHES)
    parts->list[parts->count++] = (struct part){profile_place.kernel, (float)expected_ns};
}

static struct share *share_of(struct shares *shares, uint32_t kernel) {
  uint8_t *place = &shares->places[kernel % MOST_SHARES];
  if (shares->list[*place].kernel == kernel && *place < shares->count)
    return &shares->list[*place];
  uint32_t i = 0;
  while (i < shares->count && shares->list[i].kernel != kernel)
    i++;
  if (i == MOST_SHARES) {
    shares->list[MOST_SHARES - 1].kernel = OTHERS;
    return &shares->list[MOST_SHARES - 1];
  }
  if (i == shares->count)
    shares->list[shares->count++] = (struct share){.kernel = kernel};
  *place = (uint8_t)i;
  return &shares->list[i];
}

static void add_time(uint32_t kernel, double gpu_ns) {
  if (gpu_ns > 0)
    __atomic_add_fetch(&disk->file->kernels[kernel].gpu_ns, (uint64_t)gpu_ns, __ATOMIC_RELAXED);
}

/* Compares expected with measured time; a kernel without an expectation gets the rest. */
static void share_out(const struct parts *parts, double gpu_ns) {
  struct shares shares = {0};
  double expected_ns = 0;
  for (uint32_t i = 0; i < parts->count; i++) {
    share_of(&shares, parts->list[i].kernel)->expected_ns += (double)parts->list[i].expected_ns;
    expected_ns += (double)parts->list[i].expected_ns;
  }
  const struct part *last = &parts->list[parts->count - 1];
  bool has_rest = last->expected_ns == 0;
  double scale = has_rest && expected_ns < gpu_ns ? 1 : gpu_ns / expected_ns;
  for (uint32_t i = 0; i < shares.count; i++)
    add_time(shares.list[i].kernel, scale * shares.list[i].expected_ns);
  if (has_rest)
    add_time(last->kernel, gpu_ns - expected_ns);
}

void profile_kernels_measured(const struct batch *batch, int64_t gpu_ns) {
  if (batch->parts != NULL && gpu_ns > 0 && disk != NULL)
    share_out(batch->parts, (double)gpu_ns);
  free(batch->parts);
}
