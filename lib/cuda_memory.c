/* Plain, pitched and managed allocations. */
#include "cuda_memory.h"

#include "contexts.h"
#include "cuda_graph_memory.h"
#include "process.h"
#include "table.h"

static struct table allocations = TABLE_INITIALIZER;

/* Requests of up to 1 MiB share blocks, which cannot be told from their sizes, but from their addresses: what a block
 * holds is counted once, for as long as something lives in it. The bytes of an entry are its number of allocations. */
static struct table blocks = TABLE_INITIALIZER;

enum kind { PLAIN, SHARING, MANAGED };

/* An allocation under way. */
struct attempt {
  struct device *device; /* NULL: nothing is counted */
  CUcontext context;
  uint64_t reserved_bytes;
};

static CUresult begin(struct attempt *attempt, uint64_t bytes) {
  *attempt = (struct attempt){0};
  if (!process_is_limited())
    return CUDA_SUCCESS;
  struct current current = device_current();
  *attempt = (struct attempt){current.device, current.context, bytes};
  return memory_reserve(current.device, bytes);
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
  if (entry->kind == SHARING)
    memory_release(entry->owner, count_in_block(entry->key, -1, &count) && count == 0 ? LEDGER_BLOCK_BYTES : 0);
  else
    memory_release(entry->owner, entry->bytes);
  if (entry->kind == MANAGED)
    memory_release_managed(entry->owner, entry->bytes);
}

/* After the driver's answer: remembers the allocation, or takes back what was reserved for it. */
static CUresult end(const struct attempt *attempt, CUresult result, uint64_t pointer, uint64_t bytes, enum kind kind) {
  if (attempt->device == NULL)
    return result;
  uint64_t taken_bytes = 0;
  if (result == CUDA_SUCCESS) {
    struct table_entry entry = {pointer, bytes, attempt->device, attempt->context, kind};
    if (!remember(&entry, &taken_bytes)) {
      real.cuMemFree_v2(pointer);
      result = CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  memory_commit(attempt->device, attempt->reserved_bytes, result == CUDA_SUCCESS ? taken_bytes : 0);
  return result;
}

static CUresult end_plain(const struct attempt *attempt, CUresult result, uint64_t pointer, uint64_t requested_bytes) {
  enum kind kind = requested_bytes <= LEDGER_SHARING_BYTES ? SHARING : PLAIN;
  return end(attempt, result, pointer, ledger_driver_size(requested_bytes), kind);
}

/* The calls of CUDA before 3.2 have 32-bit sizes and pointers. */
#define ALLOCATE(name, pointer_type, size_type)                                                                        \
  HOOK CUresult name(pointer_type *pointer, size_type size) {                                                          \
    struct attempt attempt;                                                                                            \
    CUresult result = begin(&attempt, ledger_driver_size(size));                                                       \
    if (result != CUDA_SUCCESS)                                                                                        \
      return result;                                                                                                   \
    result = real.name(pointer, size);                                                                                 \
    return end_plain(&attempt, result, result == CUDA_SUCCESS ? *pointer : 0, size);                                   \
  }

ALLOCATE(cuMemAlloc, CUdeviceptr_v1, unsigned)
ALLOCATE(cuMemAlloc_v2, CUdeviceptr, size_t)

/* Rows are padded by the driver: by how much shows only afterwards. */
static uint64_t product(uint64_t pitch, uint64_t height) {
  uint64_t bytes;
  return __builtin_mul_overflow(pitch, height, &bytes) ? UINT64_MAX : bytes;
}

static uint64_t expected_pitch(uint64_t width) {
  return width <= UINT64_MAX - 511 ? (width + 511) / 512 * 512 : width;
}

#define ALLOCATE_PITCH(name, pointer_type, size_type)                                                                  \
  HOOK CUresult name(pointer_type *pointer, size_type *pitch, size_type width, size_type height,                       \
                     unsigned element_size) {                                                                          \
    struct attempt attempt;                                                                                            \
    CUresult result = begin(&attempt, ledger_driver_size(product(expected_pitch(width), height)));                     \
    if (result != CUDA_SUCCESS)                                                                                        \
      return result;                                                                                                   \
    result = real.name(pointer, pitch, width, height, element_size);                                                   \
    bool made = result == CUDA_SUCCESS;                                                                                \
    return end_plain(&attempt, result, made ? *pointer : 0, made ? product(*pitch, height) : 0);                       \
  }

ALLOCATE_PITCH(cuMemAllocPitch, CUdeviceptr_v1, unsigned)
ALLOCATE_PITCH(cuMemAllocPitch_v2, CUdeviceptr, size_t)

/* Managed memory is on the device only page by page, as it is touched there. */
static uint64_t managed_bytes(uint64_t size) {
  return size <= LEDGER_SHARING_BYTES ? (size + 511) / 512 * 512 : ledger_driver_size(size);
}

HOOK CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned int flags) {
  struct attempt attempt;
  CUresult result = begin(&attempt, managed_bytes(size));
  if (result != CUDA_SUCCESS)
    return result;
  result = real.cuMemAllocManaged(pointer, size, flags);
  return end(&attempt, result, result == CUDA_SUCCESS ? *pointer : 0, managed_bytes(size), MANAGED);
}

void memory_forget_context(struct device *device, CUcontext context) {
  if (device == NULL || context == NULL)
    return;
  table_take_context(&allocations, context, forget);
  pools_settle(device, POOLS_REREAD);
  contexts_ended(device, context);
  device_correct_overhead(device, 0);
}

/* The entry goes first, since the address may be another allocation's as soon as the driver has it back; the bytes go
 * last, since they are the driver's until it answers. A pointer that we do not know is the driver's to judge. */
static bool begin_free(uint64_t pointer, struct table_entry *entry) {
  return process_is_limited() && table_take(&allocations, pointer, entry);
}

static CUresult end_free(bool known, const struct table_entry *entry, CUresult result) {
  if (known && result == CUDA_SUCCESS)
    forget(entry);
  else if (known)
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
HOOK CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  struct table_entry entry;
  bool known = begin_free(pointer, &entry);
  return end_free(known, &entry, real.cuMemFreeAsync(pointer, stream));
}

HOOK CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
  struct table_entry entry;
  bool known = begin_free(pointer, &entry);
  return end_free(known, &entry, real.cuMemFreeAsync_ptsz(pointer, stream));
}

void memory_forget(void) {
  table_abandon(&allocations);
  table_abandon(&blocks);
  pools_forget();
  vmm_forget();
  graph_memory_forget();
}
