/* Plain, pitched and managed allocations. */
#include "cuda/memory.h"

#include "cuda/graph_memory.h"
#include "cuda/host_memory.h"
#include "cuda/memory_pools.h"
#include "cuda/overhead.h"
#include "device/devices.h"
#include "device/process.h"
#include "memory/table.h"
#include "stream/streams.h"

static struct table allocations = TABLE_INITIALIZER;

/* Requests of up to 1 MiB share blocks. Which one shows in the address, and a block is counted while something lives in
 * it: so the block is remembered, with the number of its allocations as bytes, and not each of them. */
static struct table blocks = TABLE_INITIALIZER;

enum kind { PLAIN, MANAGED, ON_HOST };

/* An allocation under way. */
struct attempt {
  struct current current; /* without a device nothing is counted */
  uint64_t reserved_bytes;
};

/* False when the device's share has no room. */
static bool begin(struct attempt *attempt, uint64_t bytes) {
  *attempt = (struct attempt){0};
  if (!process_is_limited())
    return true;
  *attempt = (struct attempt){device_current(), bytes};
  return memory_make_room_for_data(attempt->current.device, bytes);
}

/* False without host memory to remember it by. */
static bool remember(struct table_entry entry, uint64_t *taken_bytes) {
  *taken_bytes = entry.bytes;
  if (!table_put(&allocations, entry))
    return false;
  if (entry.kind == MANAGED)
    memory_add_managed(entry.owner, entry.bytes);
  return true;
}

static bool remember_in_block(struct table_entry entry, uint64_t *taken_bytes) {
  uint64_t count;
  entry.key /= LEDGER_BLOCK_BYTES;
  entry.bytes = 1;
  bool counted = table_add(&blocks, entry, &count);
  *taken_bytes = counted && count == 1 ? LEDGER_BLOCK_BYTES : 0;
  return counted;
}

static void forget(const struct table_entry *entry) {
  if (entry->kind == ON_HOST)
    host_memory_release(entry->owner, entry->bytes);
  else
    memory_release(entry->owner, entry->bytes);
  if (entry->kind == MANAGED)
    memory_release_managed(entry->owner, entry->bytes);
}

static void forget_block(const struct table_entry *block) {
  memory_release(block->owner, LEDGER_BLOCK_BYTES);
}

/* The driver itself has no room: others than this container hold the device. */
static bool spills(const struct attempt *attempt, CUresult result) {
  if (result != CUDA_ERROR_OUT_OF_MEMORY || !memory_may_be_served(attempt->current.device))
    return false;
  memory_cancel(attempt->current.device, attempt->reserved_bytes);
  return true;
}

typedef bool (*rememberer)(struct table_entry entry, uint64_t *taken_bytes);

/* After the driver's answer: remembers the allocation, or takes back what was reserved for it. */
static CUresult end(const struct attempt *attempt, CUresult result, struct table_entry entry, rememberer remember) {
  entry.owner = attempt->current.device;
  entry.context = attempt->current.context;
  if (entry.owner == NULL)
    return result;
  uint64_t taken_bytes = 0;
  if (result == CUDA_SUCCESS && !remember(entry, &taken_bytes)) {
    real.cuMemFree_v2(entry.key);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  memory_commit(entry.owner, attempt->reserved_bytes, result == CUDA_SUCCESS ? taken_bytes : 0);
  return result;
}

static CUresult end_plain(const struct attempt *attempt, CUresult result, uint64_t pointer, uint64_t requested_bytes) {
  struct table_entry entry = {.key = pointer, .bytes = ledger_driver_size(requested_bytes), .kind = PLAIN};
  return end(attempt, result, entry, requested_bytes <= LEDGER_SHARING_BYTES ? remember_in_block : remember);
}

CUresult memory_allocate_on_host(const struct current *current, CUdeviceptr *pointer, size_t size, unsigned flags) {
  struct table_entry entry = {.owner = current->device, .context = current->context, .kind = ON_HOST};
  CUdeviceptr made;
  if (pointer == NULL || size == 0)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = host_memory_take(current, size, flags, &made, &entry.bytes);
  if (result != CUDA_SUCCESS)
    return result;
  entry.key = made;
  if (table_put(&allocations, entry)) {
    *pointer = made;
    return CUDA_SUCCESS;
  }
  real.cuMemFree_v2(made);
  host_memory_release(current->device, entry.bytes);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The calls of CUDA before 3.2 have 32-bit sizes and pointers, which memory of the host does not fit. */
#define REFUSE(pointer, size) memory_refuse(attempt.current.device, size)
#define SERVE(pointer, size) memory_allocate_on_host(&attempt.current, pointer, size, CU_MEM_ATTACH_GLOBAL)

#define ALLOCATE(name, pointer_type, size_type, past_share)                                                            \
  HOOK CUresult name(pointer_type *pointer, size_type size) {                                                          \
    struct attempt attempt;                                                                                            \
    if (!begin(&attempt, ledger_driver_size(size)))                                                                    \
      return past_share(pointer, size);                                                                                \
    CUresult result = real.name(pointer, size);                                                                        \
    if (spills(&attempt, result))                                                                                      \
      return past_share(pointer, size);                                                                                \
    return end_plain(&attempt, result, result == CUDA_SUCCESS ? *pointer : 0, size);                                   \
  }

ALLOCATE(cuMemAlloc, CUdeviceptr_v1, unsigned, REFUSE)
ALLOCATE(cuMemAlloc_v2, CUdeviceptr, size_t, SERVE)

/* Rows are padded by the driver: by how much shows only afterwards. */
static uint64_t product(uint64_t pitch, uint64_t height) {
  uint64_t bytes;
  return __builtin_mul_overflow(pitch, height, &bytes) ? UINT64_MAX : bytes;
}

static uint64_t expected_pitch(uint64_t width) {
  return width <= UINT64_MAX - 511 ? (width + 511) / 512 * 512 : width;
}

static CUresult serve_rows(const struct attempt *attempt, CUdeviceptr *pointer, size_t *pitch, size_t width,
                           size_t height, unsigned element_size) {
  if (pitch == NULL || (element_size != 4 && element_size != 8 && element_size != 16))
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t row_bytes = expected_pitch(width);
  CUresult result =
      memory_allocate_on_host(&attempt->current, pointer, product(row_bytes, height), CU_MEM_ATTACH_GLOBAL);
  if (result == CUDA_SUCCESS)
    *pitch = row_bytes;
  return result;
}

#define REFUSE_ROWS() memory_refuse(attempt.current.device, product(expected_pitch(width), height))
#define SERVE_ROWS() serve_rows(&attempt, pointer, pitch, width, height, element_size)

#define ALLOCATE_PITCH(name, pointer_type, size_type, past_share)                                                      \
  HOOK CUresult name(pointer_type *pointer, size_type *pitch, size_type width, size_type height,                       \
                     unsigned element_size) {                                                                          \
    struct attempt attempt;                                                                                            \
    if (!begin(&attempt, ledger_driver_size(product(expected_pitch(width), height))))                                  \
      return past_share();                                                                                             \
    CUresult result = real.name(pointer, pitch, width, height, element_size);                                          \
    if (spills(&attempt, result))                                                                                      \
      return past_share();                                                                                             \
    bool made = result == CUDA_SUCCESS;                                                                                \
    return end_plain(&attempt, result, made ? *pointer : 0, made ? product(*pitch, height) : 0);                       \
  }

ALLOCATE_PITCH(cuMemAllocPitch, CUdeviceptr_v1, unsigned, REFUSE_ROWS)
ALLOCATE_PITCH(cuMemAllocPitch_v2, CUdeviceptr, size_t, SERVE_ROWS)

/* Managed memory is on the device only page by page, as it is touched there. */
static uint64_t managed_bytes(uint64_t size) {
  return size <= LEDGER_SHARING_BYTES ? (size + 511) / 512 * 512 : ledger_driver_size(size);
}

HOOK CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned int flags) {
  struct attempt attempt;
  if (!begin(&attempt, managed_bytes(size)))
    return memory_allocate_on_host(&attempt.current, pointer, size, flags);
  CUresult result = real.cuMemAllocManaged(pointer, size, flags);
  struct table_entry entry = {.bytes = managed_bytes(size), .kind = MANAGED};
  if (result == CUDA_SUCCESS)
    entry.key = *pointer;
  return end(&attempt, result, entry, remember);
}

void memory_forget_context(struct device *device, CUcontext context) {
  if (device == NULL || context == NULL)
    return;
  table_take_context(&allocations, context, forget);
  table_take_context(&blocks, context, forget_block);
  host_memory_forget_context(context);
  pools_settle(device, POOLS_REREAD);
  overhead_context_ended(device, context);
}

/* The entry goes first, since the address may be another allocation's as soon as the driver has it back; the bytes go
 * last, since they are the driver's until it answers. A pointer that we do not know is the driver's to judge. */
enum release_kind { NOT_COUNTED, WHOLE, OF_BLOCK };
struct release {
  enum release_kind kind;
  struct table_entry entry;
  uint64_t leaving_bytes; /* the owner's device's or, for a block, an unknown one's */
};

static HOT void begin_free(struct release *release, uint64_t pointer) {
  *release = (struct release){0};
  if (!process_is_limited())
    return;
  if (table_take(&allocations, pointer, &release->entry)) {
    release->kind = WHOLE;
    release->leaving_bytes = release->entry.kind == ON_HOST ? 0 : release->entry.bytes;
  } else if (table_may_have(&blocks, pointer / LEDGER_BLOCK_BYTES)) {
    release->kind = OF_BLOCK;
    release->leaving_bytes = LEDGER_BLOCK_BYTES;
  }
  memory_begin_leaving(release->entry.owner, release->leaving_bytes);
}

/* Has the program given out a handle for other processes? Which of them have opened it is not known here: what is freed
 * from then on may stay, as theirs. */
static bool handles_given_out;

HOOK CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer) {
  if (process_is_limited()) {
    __atomic_store_n(&handles_given_out, true, __ATOMIC_RELAXED);
    process_note_sharing();
  }
  return real.cuIpcGetMemHandle(handle, pointer);
}

HOOK CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
  if (process_is_limited())
    process_note_sharing();
  return real.cuIpcOpenMemHandle(pointer, handle, flags);
}

HOOK CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
  if (process_is_limited())
    process_note_sharing();
  return real.cuIpcOpenMemHandle_v2(pointer, handle, flags);
}

static void ask_if_shared(struct device *device) {
  if (__atomic_load_n(&handles_given_out, __ATOMIC_RELAXED))
    overhead_ask_again(device);
}

static void forget_in_block(uint64_t pointer) {
  struct table_entry block;
  if (!table_subtract(&blocks, pointer / LEDGER_BLOCK_BYTES, 1, &block) || block.bytes > 0)
    return;
  ask_if_shared(block.owner);
  forget_block(&block);
}

static HOT CUresult end_free(const struct release *release, uint64_t pointer, CUresult result) {
  if (release->kind == WHOLE && result != CUDA_SUCCESS)
    table_put(&allocations, release->entry);
  else if (release->kind == WHOLE) {
    ask_if_shared(release->entry.owner);
    forget(&release->entry);
  } else if (release->kind == OF_BLOCK && result == CUDA_SUCCESS)
    forget_in_block(pointer);
  memory_end_leaving(release->entry.owner, release->leaving_bytes);
  return result;
}

static CUresult end_free_in_order(const struct table_entry *entry, CUstream stream) {
  struct host_memory memory = {entry->key, entry->bytes, entry->owner, entry->context};
  CUresult result = host_memory_free_in_order(&memory, stream);
  if (result != CUDA_SUCCESS)
    table_put(&allocations, *entry);
  return result;
}

#define FREE(name, pointer_type)                                                                                       \
  HOOK CUresult name(pointer_type pointer) {                                                                           \
    struct release release;                                                                                            \
    begin_free(&release, pointer);                                                                                     \
    return end_free(&release, pointer, real.name(pointer));                                                            \
  }

FREE(cuMemFree, CUdeviceptr_v1)
FREE(cuMemFree_v2, CUdeviceptr)

/* A plain allocation may be freed in stream order, too. */
#define FREE_ASYNC(name, stream_of)                                                                                    \
  HOOK CUresult name(CUdeviceptr pointer, CUstream stream) {                                                           \
    struct release release;                                                                                            \
    begin_free(&release, pointer);                                                                                     \
    bool on_host = release.kind == WHOLE && release.entry.kind == ON_HOST;                                             \
    if (on_host && !capture_is_active(stream_of(stream)))                                                              \
      return end_free_in_order(&release.entry, stream_of(stream));                                                     \
    return end_free(&release, pointer, real.name(pointer, stream));                                                    \
  }

FREE_ASYNC(cuMemFreeAsync, legacy)
FREE_ASYNC(cuMemFreeAsync_ptsz, per_thread)

static void memory_forget(void) {
  table_abandon(&allocations);
  table_abandon(&blocks);
}
PROCESS_IN_CHILD(memory_forget);
