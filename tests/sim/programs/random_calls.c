/* Random calls, right and wrong ones, from several threads; at the end everything is given back, and the device holds
 * what it held before. Run under sanitizers. Arguments: a seed and how many calls each thread makes. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#define THREADS 4
#define SLOTS 24
#define MIB (1ULL << 20)

#define CHECK(condition)                                                                                               \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                                          \
      abort();                                                                                                         \
    }                                                                                                                  \
  } while (0)
#define OK(call) CHECK((call) == CUDA_SUCCESS)

enum kind { NOTHING, PLAIN, ASYNC, POOLED, MANAGED, HOST, PHYSICAL, MAPPED, ARRAY, EVENT, STREAM, GRAPH, KINDS };

struct thing {
  enum kind kind;
  uint64_t value, size, handle;
};

struct worker {
  pthread_t thread;
  CUcontext context;
  CUmemoryPool pool;
  CUfunction kernel;
  unsigned seed;
  int calls;
  struct thing things[SLOTS];
};

static unsigned pick(struct worker *worker, unsigned limit) {
  return (unsigned)rand_r(&worker->seed) % limit;
}

static size_t pick_size(struct worker *worker) {
  static const size_t sizes[] = {1, 256, 4097, 70000, MIB, MIB + 1, 3 * MIB, 40 * MIB};
  return sizes[pick(worker, sizeof sizes / sizeof *sizes)];
}

static CUmemAllocationProp on_device(void) {
  CUmemAllocationProp properties;
  memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return properties;
}

static bool make_mapping(struct thing *thing) {
  CUmemAllocationProp properties = on_device();
  CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle;
  CUdeviceptr address;
  if (cuMemCreate(&handle, thing->size, &properties, 0) != CUDA_SUCCESS)
    return false;
  OK(cuMemAddressReserve(&address, thing->size * 2, 0, 0, 0));
  OK(cuMemMap(address, thing->size, 0, handle, 0));
  OK(cuMemSetAccess(address, thing->size, &access, 1));
  OK(cuMemRelease(handle));
  thing->value = address;
  return true;
}

static bool make_graph(struct worker *worker, struct thing *thing) {
  CUstream stream;
  CUgraph graph;
  CUgraphExec exec;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamBeginCapture_v2(stream, mode));
  for (unsigned i = pick(worker, 30); i > 0; i--)
    OK(cuLaunchKernel(worker->kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
  if (pick(worker, 4) == 0) { /* given up half-way */
    OK(cuStreamDestroy_v2(stream));
    return false;
  }
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  OK(cuGraphDestroy(graph));
  OK(cuGraphLaunch(exec, stream));
  OK(cuStreamDestroy_v2(stream));
  thing->value = (uintptr_t)exec;
  return true;
}

static bool make(struct worker *worker, struct thing *thing) {
  CUDA_ARRAY_DESCRIPTOR descriptor = {.Width = 100, .Height = 100, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
  CUmemAllocationProp properties = on_device();
  void *pointer = NULL;
  thing->size = pick_size(worker);
  switch (thing->kind) {
  case PLAIN:
    return cuMemAlloc_v2((CUdeviceptr *)&thing->value, thing->size) == CUDA_SUCCESS;
  case ASYNC:
    return cuMemAllocAsync((CUdeviceptr *)&thing->value, thing->size, NULL) == CUDA_SUCCESS;
  case POOLED:
    return cuMemAllocFromPoolAsync((CUdeviceptr *)&thing->value, thing->size, worker->pool, NULL) == CUDA_SUCCESS;
  case MANAGED:
    return cuMemAllocManaged((CUdeviceptr *)&thing->value, thing->size, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS;
  case HOST:
    OK(cuMemHostAlloc(&pointer, thing->size, 0));
    memset(pointer, 1, thing->size);
    thing->value = (uintptr_t)pointer;
    return true;
  case PHYSICAL:
    thing->size = 4 * MIB;
    return cuMemCreate((CUmemGenericAllocationHandle *)&thing->value, thing->size, &properties, 0) == CUDA_SUCCESS;
  case MAPPED:
    thing->size = 4 * MIB;
    return make_mapping(thing);
  case ARRAY:
    return cuArrayCreate_v2((CUarray *)&thing->value, &descriptor) == CUDA_SUCCESS;
  case EVENT:
    OK(cuEventCreate((CUevent *)&thing->value, CU_EVENT_DEFAULT));
    return true;
  case STREAM:
    OK(cuStreamCreate((CUstream *)&thing->value, pick(worker, 2)));
    return true;
  case GRAPH:
    return make_graph(worker, thing);
  default:
    return false;
  }
}

static void use(struct worker *worker, const struct thing *thing) {
  char bytes[300] = {0};
  size_t size = thing->size < sizeof bytes ? thing->size : sizeof bytes;
  CUdeviceptr base;
  size_t length;
  switch (thing->kind) {
  case PLAIN:
  case ASYNC:
  case POOLED:
  case MANAGED:
    OK(cuMemsetD8_v2(thing->value, (unsigned char)thing->value, thing->size));
    OK(cuMemcpyDtoH_v2(bytes, thing->value + thing->size - size, size));
    CHECK(bytes[size - 1] == (char)thing->value);
    OK(cuMemGetAddressRange_v2(&base, &length, thing->value + thing->size - 1));
    CHECK(base == thing->value && length >= thing->size);
    break;
  case MAPPED:
    OK(cuMemcpyHtoD_v2(thing->value + thing->size - size, bytes, size));
    CHECK(cuMemcpyHtoD_v2(thing->value + thing->size - 1, bytes, 2) == CUDA_ERROR_INVALID_VALUE);
    break;
  case EVENT:
    OK(cuEventRecord((CUevent)thing->value, NULL));
    OK(cuStreamWaitEvent_ptsz(NULL, (CUevent)thing->value, 0));
    if (pick(worker, 2))
      OK(cuEventSynchronize((CUevent)thing->value));
    break;
  case STREAM:
    OK(cuLaunchKernel(worker->kernel, 1, 1, 1, 1, 1, 1, 0, (CUstream)thing->value, NULL, NULL));
    if (pick(worker, 4) == 0)
      OK(cuStreamSynchronize((CUstream)thing->value));
    break;
  case GRAPH:
    OK(cuGraphLaunch_ptsz((CUgraphExec)thing->value, NULL));
    break;
  default:
    break;
  }
}

static void unmake(struct thing *thing) {
  switch (thing->kind) {
  case PLAIN:
  case MANAGED:
    OK(cuMemFree_v2(thing->value));
    CHECK(cuMemFree_v2(thing->value + 1) == CUDA_ERROR_INVALID_VALUE);
    break;
  case ASYNC:
  case POOLED:
    OK(cuMemFreeAsync(thing->value, NULL));
    break;
  case HOST:
    OK(cuMemFreeHost((void *)thing->value));
    break;
  case PHYSICAL:
    OK(cuMemRelease(thing->value));
    break;
  case MAPPED:
    OK(cuMemUnmap(thing->value, thing->size));
    OK(cuMemAddressFree(thing->value, thing->size * 2));
    break;
  case ARRAY:
    OK(cuArrayDestroy((CUarray)thing->value));
    break;
  case EVENT:
    OK(cuEventDestroy_v2((CUevent)thing->value));
    break;
  case STREAM:
    OK(cuStreamDestroy_v2((CUstream)thing->value));
    break;
  case GRAPH:
    OK(cuGraphExecDestroy((CUgraphExec)thing->value));
    break;
  default:
    break;
  }
  *thing = (struct thing){NOTHING, 0, 0, 0};
}

/* Any number as any handle, and no pointer where one is needed: an error, and nothing else. */
static void call_wrongly(struct worker *worker) {
  static _Atomic uint64_t some;
  uint64_t number = pick(worker, 2) ? pick(worker, 3) : atomic_fetch_add(&some, 0x10001000100ULL);
  void *handle = (void *)(uintptr_t)number;
  if (number > 2) {
    CHECK(cuStreamDestroy_v2(handle) != CUDA_SUCCESS);
    CHECK(cuMemFree_v2(number) != CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(number, NULL) != CUDA_SUCCESS);
  }
  CHECK(cuLaunchKernel(handle, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) != CUDA_SUCCESS);
  CHECK(cuEventQuery(handle) != CUDA_SUCCESS);
  CHECK(cuGraphLaunch(handle, NULL) != CUDA_SUCCESS);
  CHECK(cuGraphDestroy(handle) != CUDA_SUCCESS);
  CHECK(cuModuleUnload(handle) != CUDA_SUCCESS);
  CHECK(cuMemPoolDestroy(handle) != CUDA_SUCCESS);
  CHECK(cuMemRelease(number) != CUDA_SUCCESS);
  CHECK(cuArrayDestroy(handle) != CUDA_SUCCESS);
  CHECK(cuMemFreeHost(handle) != CUDA_SUCCESS);
  CHECK(cuMemUnmap(number, 2 * MIB) != CUDA_SUCCESS);
  CHECK(cuMemAlloc_v2(NULL, 1) != CUDA_SUCCESS);
  CHECK(cuMemHostAlloc(NULL, 1, 0) != CUDA_SUCCESS);
  CHECK(cuStreamCreate(NULL, 0) != CUDA_SUCCESS);
  CHECK(cuEventCreate(NULL, 0) != CUDA_SUCCESS);
  CHECK(cuGraphInstantiateWithFlags(NULL, NULL, 0) != CUDA_SUCCESS);
  CHECK(cuMemCreate(NULL, 2 * MIB, NULL, 0) != CUDA_SUCCESS);
  CHECK(cuMemcpyHtoD_v2(number, NULL, 1) != CUDA_SUCCESS);
}

static void *work(void *argument) {
  struct worker *worker = argument;
  OK(cuCtxSetCurrent(worker->context));
  for (int i = 0; i < worker->calls; i++) {
    struct thing *thing = &worker->things[pick(worker, SLOTS)];
    if (thing->kind == NOTHING) {
      thing->kind = 1 + pick(worker, KINDS - 1);
      if (!make(worker, thing))
        *thing = (struct thing){NOTHING, 0, 0, 0};
    } else if (pick(worker, 3) == 0) {
      unmake(thing);
    } else {
      use(worker, thing);
    }
    if (pick(worker, 10) == 0)
      call_wrongly(worker);
  }
  for (int i = 0; i < SLOTS; i++)
    unmake(&worker->things[i]);
  return NULL;
}

int main(int argument_count, char **arguments) {
  static struct worker workers[THREADS];
  CHECK(argument_count == 3);
  CUmemPoolProps properties;
  size_t free_before, free_after, total;
  CUcontext context;
  CUmodule module;
  memset(&properties, 0, sizeof properties);
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  OK(cuMemGetInfo_v2(&free_before, &total));
  OK(cuModuleLoadData(&module, "image"));
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (struct worker){
        .context = context, .seed = (unsigned)atoi(arguments[1]) * THREADS + (unsigned)i, .calls = atoi(arguments[2])};
    OK(cuMemPoolCreate(&workers[i].pool, &properties));
    OK(cuModuleGetFunction(&workers[i].kernel, module, "spin_3us"));
    CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
  }
  for (int i = 0; i < THREADS; i++)
    CHECK(pthread_join(workers[i].thread, NULL) == 0);
  OK(cuCtxSynchronize());
  OK(cuMemGetInfo_v2(&free_after, &total));
  CHECK(free_before == free_after);
  for (int i = 0; i < THREADS; i++)
    OK(cuMemPoolDestroy(workers[i].pool));
  OK(cuDevicePrimaryCtxRelease_v2(0));
  puts("done");
  return 0;
}
