#include "profile/kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define MAP_SIZE 32768   /* at most half is used */
#define GRAPH_PLACES 256 /* graphs that share one are learned anew each time */
#define GRAPHS 0         /* the kernels of graphs are launched together, and measured together */
#define OTHERS 1         /* kernels for which there is no room */
#define ROOM_BITS 24     /* of a work's room; above them is the size of a block */
#define SHARED_BITS 28
#define MOST_LEARNED 16 /* in the mean, in which the latest counts so little: it may take now more, now less */

static HOT_DATA struct profile_disk *disk;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards adding */
static HOT_DATA uint32_t mapped;
static struct profile_work map[MAP_SIZE], graphs[GRAPH_PLACES], others = {.kernel = OTHERS};

static uint64_t key_of(const struct profile_work *work) {
  return atomic_load_explicit(&work->key, memory_order_acquire);
}

static uint32_t mixed(uint64_t key) {
  return (uint32_t)((key * 0x9e3779b97f4a7c15ULL) >> 40);
}

static struct profile_work *place_of(uint64_t key) {
  uint32_t place = mixed(key) % MAP_SIZE;
  uint64_t found;
  while ((found = key_of(&map[place])) != 0 && found != key)
    place = (place + 1) % MAP_SIZE;
  return &map[place];
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

static void empty(struct profile_work *works, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    if (key_of(&works[i]) != 0)
      atomic_store_explicit(&works[i].key, 0, memory_order_release);
}

void profile_kernels_use(struct profile_disk *used) {
  pthread_mutex_init(&lock, NULL);
  empty(map, MAP_SIZE);
  empty(graphs, GRAPH_PLACES);
  mapped = 0;
  disk = used;
  if (disk == NULL)
    return;
  add_kernel("(graphs)");
  add_kernel("(other kernels)");
}

/* The key comes last, and whoever finds it finds the rest. */
static void begin_work(struct profile_work *work, uint64_t key, uint32_t kernel) {
  atomic_store_explicit(&work->kernel, kernel, memory_order_relaxed);
  atomic_store_explicit(&work->begun, 0, memory_order_relaxed);
  atomic_store_explicit(&work->learned, 0, memory_order_relaxed);
  atomic_store_explicit(&work->usual_ns, 0, memory_order_relaxed);
  atomic_store_explicit(&work->room, 0, memory_order_relaxed);
  atomic_store_explicit(&work->key, key, memory_order_release);
}

HOT struct profile_work *profile_kernels_find(uint64_t key) {
  struct profile_work *work = place_of(key);
  if (__builtin_expect(key_of(work) == key, 1))
    return work;
  return __atomic_load_n(&mapped, __ATOMIC_RELAXED) >= MAP_SIZE / 2 ? &others : NULL;
}

struct profile_work *profile_kernels_name(uint64_t key, const char *name) {
  char address[32];
  snprintf(address, sizeof address, "kernel %#llx", (unsigned long long)(key << 8 >> 8));
  pthread_mutex_lock(&lock);
  struct profile_work *work = place_of(key);
  if (key_of(work) == 0 && mapped < MAP_SIZE / 2) {
    __atomic_store_n(&mapped, mapped + 1, __ATOMIC_RELAXED);
    begin_work(work, key, add_kernel(name != NULL ? name : address));
  }
  pthread_mutex_unlock(&lock);
  return key_of(work) == key ? work : &others;
}

struct profile_work *profile_kernels_graph(uint64_t key) {
  struct profile_work *work = &graphs[mixed(key) % GRAPH_PLACES];
  if (key_of(work) != key)
    begin_work(work, key, GRAPHS);
  return work;
}

/* A lookup meanwhile may not find it: then it counts as one of the others. */
void profile_kernels_forget(void) {
  pthread_mutex_lock(&lock);
  if (mapped > 0)
    empty(map, MAP_SIZE);
  __atomic_store_n(&mapped, 0, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&lock);
}

void profile_kernels_learn(struct profile_work *work, uint64_t key, int64_t took_ns, bool is_certain) {
  uint32_t learned = atomic_load_explicit(&work->learned, memory_order_relaxed);
  int64_t usual_ns = atomic_load_explicit(&work->usual_ns, memory_order_relaxed);
  if (key_of(work) != key || (learned > 0 && !is_certain))
    return;
  learned += is_certain && learned < MOST_LEARNED;
  usual_ns += (took_ns - usual_ns) / max(learned, 1);
  atomic_store_explicit(&work->learned, learned, memory_order_relaxed);
  atomic_store_explicit(&work->usual_ns, max(usual_ns, 1), memory_order_relaxed);
}

void profile_kernels_add_time(uint32_t kernel, int64_t gpu_ns) {
  if (disk != NULL && gpu_ns > 0)
    __atomic_add_fetch(&disk->file->kernels[kernel].gpu_ns, (uint64_t)gpu_ns, __ATOMIC_RELAXED);
}

/* ---- how much of the GPU launches fill --------------------------------------------------------------------------- */

/* A block has at least one thread, so that no size is 0. */
static uint64_t shape_of(const struct profile_size *size) {
  return (uint64_t)size->block_threads << SHARED_BITS | (size->shared_bytes & ((1U << SHARED_BITS) - 1));
}

bool profile_kernels_knows_room(const struct profile_work *work, const struct profile_size *size) {
  return atomic_load_explicit(&work->room, memory_order_relaxed) >> ROOM_BITS == shape_of(size);
}

void profile_kernels_note_room(struct profile_work *work, const struct profile_size *size, uint64_t blocks) {
  uint64_t most = (1U << ROOM_BITS) - 1;
  uint64_t room = shape_of(size) << ROOM_BITS | (blocks < most ? blocks : most);
  atomic_store_explicit(&work->room, room, memory_order_relaxed);
}

uint32_t profile_kernels_fill(const struct profile_work *work, const struct profile_size *size) {
  uint64_t room = atomic_load_explicit(&work->room, memory_order_relaxed) & ((1U << ROOM_BITS) - 1);
  if (room == 0)
    return 0;
  return size->blocks >= room ? PROFILE_FULL : (uint32_t)max((int64_t)(size->blocks * PROFILE_FULL / room), 1);
}

void profile_kernels_add_fill(uint32_t kernel, int64_t gpu_ns, double part) {
  if (disk == NULL || gpu_ns <= 0)
    return;
  struct profile_fill *fill = &disk->file->fills[kernel];
  __atomic_add_fetch(&fill->known_ns, (uint64_t)gpu_ns, __ATOMIC_RELAXED);
  __atomic_add_fetch(&fill->filled_ns, (uint64_t)(part * (double)gpu_ns + 0.5), __ATOMIC_RELAXED);
}
