#include "launch.h"

#include "capture.h"
#include "modules.h"
#include "spins.h"
#include "stream_work.h"
#include "times.h"

CUresult launch_enter(CUstream handle, enum default_stream default_stream, struct stream **stream) {
  for (;;) {
    CUresult result = stream_enter(handle, default_stream, stream);
    if (result != CUDA_SUCCESS || (*stream)->capture)
      return result;
    uint64_t room_at_ns = stream_room_at(*stream);
    if (room_at_ns <= clock_ns())
      return CUDA_SUCCESS;
    driver_leave(CUDA_SUCCESS);
    time_wait(room_at_ns);
  }
}

uint64_t launch_return_at(const struct stream *stream) {
  uint64_t overhead_ns = sim_config.devices[stream->context->device].launch_overhead_ns;
  return overhead_ns ? clock_ns() + overhead_ns : 0;
}

struct dimensions {
  unsigned x, y, z;
};

static CUresult check_dimensions(struct dimensions grid, struct dimensions block, unsigned shared_bytes) {
  if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z)
    return CUDA_ERROR_INVALID_VALUE;
  if (grid.x > INT32_MAX || grid.y > UINT16_MAX || grid.z > UINT16_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  if (block.x > 1024 || block.y > 1024 || block.z > 64 || shared_bytes > MAX_SHARED_BYTES)
    return CUDA_ERROR_INVALID_VALUE;
  return (uint64_t)block.x * block.y * block.z > MAX_THREADS_PER_BLOCK ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* All blocks of a cooperative kernel run at the same time. */
static CUresult check_cooperative(const struct stream *stream, struct dimensions grid, struct dimensions block) {
  uint64_t threads = (uint64_t)block.x * block.y * block.z;
  uint64_t blocks = sim_config.devices[stream->context->device].multiprocessors *
                    (MAX_THREADS_PER_MULTIPROCESSOR / round_up(threads, 32));
  return (uint64_t)grid.x * grid.y > blocks || (uint64_t)grid.x * grid.y * grid.z > blocks
             ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
             : CUDA_SUCCESS;
}

static CUresult queue_spin(struct stream *stream, const struct kernel *kernel, uint64_t *end_ns) {
  uint64_t begins_ns = stream_queue(stream, 0);
  *end_ns = spin_launch(kernel->name, stream->context->group, begins_ns, kernel->duration_ns);
  if (*end_ns == 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  stream_wait_until(stream, *end_ns);
  return CUDA_SUCCESS;
}

/* Puts it into the stream. */
static CUresult queue(struct stream *stream, const struct kernel *kernel) {
  uint64_t end_ns;
  CUresult result = CUDA_SUCCESS;
  if (spin_is_one(kernel->name)) {
    result = queue_spin(stream, kernel, &end_ns);
  } else {
    if (spin_is_awaited(kernel->name))
      spin_note_launch(kernel->name, stream_queue(stream, 0));
    end_ns = stream_queue(stream, kernel->duration_ns);
  }
  if (result == CUDA_SUCCESS)
    stream_count_launch(stream, end_ns);
  return result;
}

static CUresult launch(CUfunction function, struct dimensions grid, struct dimensions block, unsigned shared_bytes,
                       CUstream handle, bool cooperative, enum default_stream default_stream) {
  struct stream *stream;
  FORWARD_IF_ERROR(launch_enter(handle, default_stream, &stream));
  uint64_t return_at_ns = launch_return_at(stream);
  const struct kernel *kernel = kernel_find(function);
  if (!kernel || (kernel->context && kernel->context != stream->context))
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  CUresult result = check_dimensions(grid, block, shared_bytes);
  if (result == CUDA_SUCCESS && cooperative)
    result = check_cooperative(stream, grid, block);
  if (result == CUDA_SUCCESS && stream->capture && spin_is_one(kernel->name))
    result = CUDA_ERROR_NOT_SUPPORTED;
  else if (result == CUDA_SUCCESS && stream->capture)
    result =
        capture_add(stream, (struct graph_node){.type = CU_GRAPH_NODE_TYPE_KERNEL, .duration_ns = kernel->duration_ns});
  else if (result == CUDA_SUCCESS)
    result = queue(stream, kernel);
  driver_leave(result);
  if (return_at_ns)
    clock_spin_until(return_at_ns);
  return result;
}

static CUresult cuLaunchKernel_on(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                  unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                  unsigned int shared_bytes, CUstream stream, void **parameters, void **extra,
                                  enum default_stream default_stream) {
  if (driver_check_ready() != CUDA_SUCCESS)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (parameters && extra)
    return CUDA_ERROR_INVALID_VALUE;
  return launch(function, (struct dimensions){grid_x, grid_y, grid_z}, (struct dimensions){block_x, block_y, block_z},
                shared_bytes, stream, false, default_stream);
}

STREAM_API(cuLaunchKernel, cuLaunchKernel_ptsz,
           (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
            unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters,
            void **extra),
           function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra)

static CUresult cuLaunchCooperativeKernel_on(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                             unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                             unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                             void **parameters, enum default_stream default_stream) {
  (void)parameters;
  return launch(function, (struct dimensions){grid_x, grid_y, grid_z}, (struct dimensions){block_x, block_y, block_z},
                shared_bytes, stream, true, default_stream);
}

STREAM_API(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz,
           (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
            unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters),
           function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters)

static CUresult cuLaunchKernelEx_on(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra,
                                    enum default_stream default_stream) {
  bool cooperative = false;
  if (driver_check_ready() != CUDA_SUCCESS)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (!config || (parameters && extra) || (config->numAttrs && !config->attrs))
    return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < config->numAttrs; i++)
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
      cooperative = config->attrs[i].value.cooperative != 0;
  return launch(function, (struct dimensions){config->gridDimX, config->gridDimY, config->gridDimZ},
                (struct dimensions){config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes,
                config->hStream, cooperative, default_stream);
}

STREAM_API(cuLaunchKernelEx, cuLaunchKernelEx_ptsz,
           (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra), config, function,
           parameters, extra)
