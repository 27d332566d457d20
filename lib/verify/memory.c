#include "memory.h"

#include "child.h"
#include "driver.h"
#include "talk.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_PIECES 4096
#define LEAST_BYTES (2u << 20) /* the driver's own step: with it the limit is met closely */
#define ABSENT (-1)            /* the driver has no such function */
#define ENDLESS (-2)           /* never refused */
#define NO_ROOM (-3)           /* the limit is less than two contexts take */

static void *pieces[MAX_PIECES];
static int count;

void memory_show_view(void) {
  size_t free_bytes = 0, total_bytes = 0, device_bytes = 0;
  must(driver.cuMemGetInfo_v2(&free_bytes, &total_bytes), "cuMemGetInfo");
  must(driver.cuDeviceTotalMem_v2(&device_bytes, 0), "cuDeviceTotalMem");
  printf("{\"view\": {\"cuMemGetInfo\": %zu, \"cuDeviceTotalMem\": %zu, \"NVML\": %llu}}\n", total_bytes, device_bytes,
         nvml_total_bytes());
}

/* ---- until refused -------------------------------------------------------------------------------------------- */

static size_t fill(const struct memory_path *path, size_t chunk_bytes, int *answer) {
  size_t granted_bytes = 0;
  *answer = ENDLESS;
  for (size_t bytes = chunk_bytes; bytes >= LEAST_BYTES && count < MAX_PIECES;) {
    int result = path->take(bytes, &pieces[count]);
    if (result == CUDA_SUCCESS) {
      granted_bytes += bytes;
      count++;
      continue;
    }
    *answer = result;
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
      break;
    bytes /= 2;
  }
  return granted_bytes;
}

static void give_all_back(const struct memory_path *path) {
  while (count > 0)
    path->give_back(pieces[--count]);
  driver.cuCtxSynchronize();
}

/* Fill, let the host look, free all, and ask once more. */
static void run_one(const struct memory_path *path, size_t chunk_bytes) {
  int answer;
  size_t granted_bytes = fill(path, chunk_bytes, &answer);
  printf("{\"path\": \"%s\", \"granted_bytes\": %zu, \"answer\": %d, \"hold\": true}\n", path->name, granted_bytes,
         answer);
  await_host();
  give_all_back(path);
  int again = path->take(LEAST_BYTES, &pieces[0]);
  if (again == CUDA_SUCCESS)
    path->give_back(pieces[0]);
  printf("{\"path\": \"%s\", \"again\": %d}\n", path->name, again);
}

/* ---- one after the other ---------------------------------------------------------------------------------------- */

static int of_pointer(CUresult result, CUdeviceptr pointer, void **piece) {
  *piece = (void *)(uintptr_t)pointer;
  return (int)result;
}

static void free_pointer(void *piece) {
  driver.cuMemFree_v2((CUdeviceptr)(uintptr_t)piece);
}

static int take_plain(size_t bytes, void **piece) {
  CUdeviceptr pointer = 0;
  CUresult result = driver.cuMemAlloc_v2(&pointer, bytes);
  return of_pointer(result, pointer, piece);
}

static int take_by_lookup(size_t bytes, void **piece) {
  static CUresult (*alloc)(CUdeviceptr *, size_t);
  CUdeviceptr pointer = 0;
  if (driver.cuGetProcAddress == NULL)
    return ABSENT;
  if (alloc == NULL)
    must(driver.cuGetProcAddress("cuMemAlloc", (void **)&alloc, 12000, 0), "cuGetProcAddress");
  CUresult result = alloc(&pointer, bytes);
  return of_pointer(result, pointer, piece);
}

static int take_pitch(size_t bytes, void **piece) {
  CUdeviceptr pointer = 0;
  size_t pitch;
  CUresult result = driver.cuMemAllocPitch_v2(&pointer, &pitch, 1 << 20, bytes >> 20, 16);
  return of_pointer(result, pointer, piece);
}

static int take_managed(size_t bytes, void **piece) {
  CUdeviceptr pointer = 0;
  CUresult result = driver.cuMemAllocManaged(&pointer, bytes, CU_MEM_ATTACH_GLOBAL);
  return of_pointer(result, pointer, piece);
}

static int take_async(size_t bytes, void **piece) {
  CUdeviceptr pointer = 0;
  if (driver.cuMemAllocAsync == NULL)
    return ABSENT;
  CUresult result = driver.cuMemAllocAsync(&pointer, bytes, NULL);
  return of_pointer(result, pointer, piece);
}

static void free_async(void *piece) {
  driver.cuMemFreeAsync((CUdeviceptr)(uintptr_t)piece, NULL);
  driver.cuStreamSynchronize(NULL);
}

static int take_from_pool(size_t bytes, void **piece) {
  static CUmemoryPool pool;
  CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                               .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUdeviceptr pointer = 0;
  if (driver.cuMemPoolCreate == NULL)
    return ABSENT;
  if (pool == NULL)
    must(driver.cuMemPoolCreate(&pool, &properties), "cuMemPoolCreate");
  CUresult result = driver.cuMemAllocFromPoolAsync(&pointer, bytes, pool, NULL);
  return of_pointer(result, pointer, piece);
}

static int take_physical(size_t bytes, void **piece) {
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemGenericAllocationHandle handle = 0;
  if (driver.cuMemCreate == NULL)
    return ABSENT;
  CUresult result = driver.cuMemCreate(&handle, bytes / LEAST_BYTES * LEAST_BYTES, &properties, 0);
  *piece = (void *)(uintptr_t)handle;
  return (int)result;
}

static void release_physical(void *piece) {
  driver.cuMemRelease((CUmemGenericAllocationHandle)(uintptr_t)piece);
}

static int take_array(size_t bytes, void **piece) {
  CUDA_ARRAY_DESCRIPTOR shape = {.Width = 1024, .Height = bytes >> 12, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
  CUarray array = NULL;
  CUresult result = driver.cuArrayCreate_v2(&array, &shape);
  *piece = array;
  return (int)result;
}

static CUDA_ARRAY3D_DESCRIPTOR volume(size_t bytes) {
  CUDA_ARRAY3D_DESCRIPTOR shape = {
      .Width = 512, .Height = 512, .Depth = bytes >> 20, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
  return shape;
}

static int take_volume(size_t bytes, void **piece) {
  CUDA_ARRAY3D_DESCRIPTOR shape = volume(bytes);
  CUarray array = NULL;
  CUresult result = driver.cuArray3DCreate_v2(&array, &shape);
  *piece = array;
  return (int)result;
}

static void destroy_array(void *piece) {
  driver.cuArrayDestroy(piece);
}

static int take_mipmapped(size_t bytes, void **piece) {
  CUDA_ARRAY3D_DESCRIPTOR shape = volume(bytes);
  CUmipmappedArray array = NULL;
  CUresult result = driver.cuMipmappedArrayCreate(&array, &shape, 1);
  *piece = array;
  return (int)result;
}

static void destroy_mipmapped(void *piece) {
  driver.cuMipmappedArrayDestroy(piece);
}

/* ---- graphs, contexts, processes ------------------------------------------------------------------------------ */

/* A graph that allocates and does not free: the memory is the program's until cuMemFree. */
static int take_in_graph(size_t bytes, void **piece) {
  CUDA_MEM_ALLOC_NODE_PARAMS parameters = {
      .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
      .bytesize = bytes};
  CUgraph graph;
  CUgraphNode node;
  CUgraphExec executable;
  if (driver.cuGraphAddMemAllocNode == NULL || driver.cuGraphInstantiateWithFlags == NULL)
    return ABSENT;
  must(driver.cuGraphCreate(&graph, 0), "cuGraphCreate");
  CUresult result = driver.cuGraphAddMemAllocNode(&node, graph, NULL, 0, &parameters);
  if (result == CUDA_SUCCESS)
    result = driver.cuGraphInstantiateWithFlags(&executable, graph, 0);
  if (result == CUDA_SUCCESS)
    result = driver.cuGraphLaunch(executable, NULL);
  if (result == CUDA_SUCCESS)
    result = driver.cuStreamSynchronize(NULL);
  return of_pointer(result, parameters.dptr, piece);
}

static int take_context(size_t bytes, void **piece) {
  CUcontext context = NULL;
  (void)bytes;
  CUresult result = driver.cuCtxCreate_v2(&context, 0, 0);
  *piece = context;
  return (int)result;
}

static void destroy_context(void *piece) {
  driver.cuCtxDestroy_v2(piece);
}

/* A context costs hundreds of MiB: one more is asked for when there is no room for it. */
static void run_context(const struct memory_path *path, size_t chunk_bytes) {
  static const struct memory_path plain = {.take = take_plain, .give_back = free_pointer};
  CUcontext first = NULL;
  void *context = NULL;
  int answer;
  size_t granted_bytes = fill(&plain, chunk_bytes, &answer);
  answer = path->take(0, &context);
  printf("{\"path\": \"%s\", \"granted_bytes\": %zu, \"answer\": %d, \"hold\": true}\n", path->name, granted_bytes,
         answer == CUDA_SUCCESS ? ENDLESS : answer);
  await_host();
  must(driver.cuDevicePrimaryCtxRetain(&first, 0), "cuDevicePrimaryCtxRetain");
  driver.cuCtxSetCurrent(first);
  give_all_back(&plain);
  printf("{\"path\": \"%s\", \"again\": %d}\n", path->name, take_plain(LEAST_BYTES, &pieces[0]));
}

/* The other of two processes: takes when it is told to, says how much it got, and holds it until the pipe is closed. */
static void be_second(const struct memory_path *path, size_t chunk_bytes, int from_first, int to_first) {
  int answer;
  char word = 0;
  size_t granted_bytes = 0;
  if (driver_try_start() != CUDA_SUCCESS)
    _exit(0); /* which closes the pipe */
  if (write(to_first, &granted_bytes, sizeof granted_bytes) == sizeof granted_bytes &&
      read(from_first, &word, 1) == 1) {
    granted_bytes = fill(path, chunk_bytes, &answer);
    if (write(to_first, &granted_bytes, sizeof granted_bytes) == sizeof granted_bytes)
      while (read(from_first, &word, 1) > 0) {
      }
  }
  _exit(0);
}

/* Both have a context before either takes; what counts is the sum. */
static void run_two(const struct memory_path *path, size_t chunk_bytes) {
  int to_first[2], to_second[2], answer;
  size_t others_bytes = 0;
  if (pipe(to_first) != 0 || pipe(to_second) != 0)
    exit(3);
  pid_t second = fork_child();
  if (second == 0) {
    close(to_second[1]);
    be_second(path, chunk_bytes, to_second[0], to_first[1]);
  }
  close(to_second[0]);
  close(to_first[1]);
  bool has_room = driver_try_start() == CUDA_SUCCESS;
  if (read(to_first[0], &others_bytes, sizeof others_bytes) != sizeof others_bytes || !has_room) {
    printf("{\"path\": \"%s\", \"answer\": %d, \"again\": 0}\n", path->name, NO_ROOM);
    return;
  }
  if (write(to_second[1], "", 1) != 1)
    exit(3);
  size_t granted_bytes = fill(path, chunk_bytes, &answer);
  if (read(to_first[0], &others_bytes, sizeof others_bytes) != sizeof others_bytes)
    exit(3);
  printf("{\"path\": \"%s\", \"granted_bytes\": %zu, \"answer\": %d, \"hold\": true}\n", path->name,
         granted_bytes + others_bytes, answer);
  await_host();
  close(to_second[1]);
  waitpid(second, NULL, 0);
  give_all_back(path);
  int again = path->take(LEAST_BYTES, &pieces[0]);
  printf("{\"path\": \"%s\", \"again\": %d}\n", path->name, again);
}

static void run_alone(const struct memory_path *path, size_t chunk_bytes) {
  driver_start();
  run_one(path, chunk_bytes);
}

static void run_full(const struct memory_path *path, size_t chunk_bytes) {
  driver_start();
  run_context(path, chunk_bytes);
}

const struct memory_path memory_paths[] = {
    {"cuMemAlloc", run_alone, take_plain, free_pointer},
    {"cuMemAlloc, looked up", run_alone, take_by_lookup, free_pointer},
    {"cuMemAllocPitch", run_alone, take_pitch, free_pointer},
    {"cuMemAllocManaged", run_alone, take_managed, free_pointer},
    {"cuMemAllocAsync", run_alone, take_async, free_async},
    {"cuMemAllocFromPoolAsync", run_alone, take_from_pool, free_async},
    {"cuMemCreate", run_alone, take_physical, release_physical},
    {"cuArrayCreate", run_alone, take_array, destroy_array},
    {"cuArray3DCreate", run_alone, take_volume, destroy_array},
    {"cuMipmappedArrayCreate", run_alone, take_mipmapped, destroy_mipmapped},
    {"graph memory", run_alone, take_in_graph, free_pointer},
    {"cuCtxCreate", run_full, take_context, destroy_context},
    {"two processes", run_two, take_plain, free_pointer},
    {0},
};
