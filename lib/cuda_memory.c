/* Plain, pitched and managed allocations. */
#include "cuda_memory.h"

#include "capture.h"
#include "contexts.h"
#include "cuda_graph_memory.h"
#include "cuda_host_memory.h"
#include "cuda_launch.h"
#include "process.h"
#include "table.h"

static struct table allocations = TABLE_INITIALIZER;

/* Requests of up to 1 MiB share blocks, which cannot be told from their sizes, but from their addresses: what a block
 * holds is counted once, for as long as something lives in it. The bytes of an entry are its number of allocations. */
static struct table blocks = TABLE_INITIALIZER;

enum kind { PLAIN, SHARING, MANAGED, ON_HOST };

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

static bool count_in_block(uint64_t pointer, int change, uint64_t *count) {
  return table_add(&blocks, pointer / LEDGER_BLOCK_BYTES, change, count);
}

/* False without host memory to remember it by. */
static bool remember(const struct table_entry *entry, uint64_t *taken_bytes) {
  uint64_t count;
  *taken_bytes = entry->bytes;
  if (!table_put(&allocations, *entry))
    return false;
  if (entry->kind == SHARING) {
    if (!count_in_block(entry->key, 1, &count)) {
      struct table_entry removed;
      table_take(&allocations, entry->key, &removed);
      return false;
    }
    *taken_bytes = count == 1 ? LEDGER_BLOCK_BYTES : 0;
  }
  if (entry->kind == MANAGED)
    memory_add_managed(entry->owner, entry->bytes);
  return true;
}

static void forget(const struct table_entry *entry) {
  uint64_t count;
  if (entry->kind == ON_HOST)
    host_memory_release(entry->owner, entry->bytes);
  else if (entry->kind == SHARING)
    memory_release(entry->owner, count_in_block(entry->key, -1, &count) && count == 0 ? LEDGER_BLOCK_BYTES : 0);
  else
    memory_release(entry->owner, entry->bytes);
  if (entry->kind == MANAGED)
    memory_release_managed(entry->owner, entry->bytes);
}

/* The driver itself has no room: others than this container hold the device. */
static bool spills(const struct attempt *attempt, CUresult result) {
  if (result != CUDA_ERROR_OUT_OF_MEMORY || !memory_may_be_served(attempt->current.device))
    return false;
  memory_cancel(attempt->current.device, attempt->reserved_bytes);
  return true;
}

/* After the driver's answer: remembers the allocation, or takes back what was reserved for it. */
static CUresult end(const struct attempt *attempt, CUresult result, uint64_t pointer, uint64_t bytes, enum kind kind) {
  struct device *device = attempt->current.device;
  if (device == NULL)
    return result;
  uint64_t taken_bytes = 0;
  if (result == CUDA_SUCCESS) {
    struct table_entry entry = {pointer, bytes, device, attempt->current.context, kind};
    if (!remember(&entry, &taken_bytes)) {
      real.cuMemFree_v2(pointer);
      result = CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  memory_commit(device, attempt->reserved_bytes, result == CUDA_SUCCESS ? taken_bytes : 0);
  return result;
}

static CUresult end_plain(const struct attempt *attempt, CUresult result, uint64_t pointer, uint64_t requested_bytes) {
  enum kind kind = requested_bytes <= LEDGER_SHARING_BYTES ? SHARING : PLAIN;
  return end(attempt, result, pointer, ledger_driver_size(requested_bytes), kind);
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
  return end(&attempt, result, result == CUDA_SUCCESS ? *pointer : 0, managed_bytes(size), MANAGED);
}

void memory_forget_context(struct device *device, CUcontext context) {
  if (device == NULL || context == NULL)
    return;
  table_take_context(&allocations, context, forget);
  host_memory_forget_context(context);
  pools_settle(device, POOLS_REREAD);
  contexts_ended(device, context);
  device_correct_overhead(device, 0);
}

/* The entry goes first, since the address may be another allocation's as soon as the driver has it back; the bytes go
 * last, since they are the driver's until it answers. A pointer that we do not know is the driver's to judge. */
static bool begin_free(uint64_t pointer, struct table_entry *entry) {
  return process_is_limited() && table_take(&allocations, pointer, entry);
}

/* Has the program given out a handle for other processes? Which of them have opened it is not known here: what is freed
 * from then on may stay, as theirs. */
static bool handles_given_out;

HOOK CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer) {
  if (process_is_limited())
    __atomic_store_n(&handles_given_out, true, __ATOMIC_RELAXED);
  return real.cuIpcGetMemHandle(handle, pointer);
}

static CUresult end_free(bool known, const struct table_entry *entry, CUresult result) {
  if (known && result == CUDA_SUCCESS && __atomic_load_n(&handles_given_out, __ATOMIC_RELAXED))
    device_ask_again(entry->owner);
  if (known && result == CUDA_SUCCESS)
    forget(entry);
  else if (known)
    table_put(&allocations, *entry);
  return result;
}

static CUresult end_free_in_order(const struct table_entry *entry, CUstream stream) {
  struct host_memory memory = {entry->key, entry->bytes, entry->owner, entry->context};
  CUresult result = host_memory_free_in_order(&memory, stream);
  if (result != CUDA_SUCCESS)
    table_put(&allocations, *entry);
  return result;
}

HOOK CUresult cuMemFree_v2(CUdeviceptr pointer) {
  struct table_entry entry;
  bool known = begin_free(pointer, &entry);
  return end_free(known, &entry, real.cuMemFree_v2(pointer));
}

HOOK CUresult cuMemFree(CUdeviceptr_v1 pointer) {
  struct table_entry entry;
  bool known = begin_free(pointer, &entry);
  return end_free(known, &entry, real.cuMemFree(pointer));
}

/* A plain allocation may be freed in stream order, too. */
#define FREE_ASYNC(name, stream_of)                                                                                    \
  HOOK CUresult name(CUdeviceptr pointer, CUstream stream) {                                                           \
    struct table_entry entry;                                                                                          \
    bool known = begin_free(pointer, &entry);                                                                          \
    if (known && entry.kind == ON_HOST && !capture_is_active(stream_of(stream)))                                       \
      return end_free_in_order(&entry, stream_of(stream));                                                             \
    return end_free(known, &entry, real.name(pointer, stream));                                                        \
  }

FREE_ASYNC(cuMemFreeAsync, legacy)
FREE_ASYNC(cuMemFreeAsync_ptsz, per_thread)

void memory_forget(void) {
  table_abandon(&allocations);
  table_abandon(&blocks);
  pools_forget();
  vmm_forget();
  graph_memory_forget();
  host_memory_forget();
}
