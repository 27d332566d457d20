#include "compute.h"

#include "child.h"
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BATCH 8
#define MAX_STREAMS 4
#define MAX_PROCESSES 2
#define NO_CONTEXT (-1.0) /* said instead of a rate: there is no room for a context */
#define WARM_UP_S 0.5

const struct compute_path compute_paths[] = {
    {"launches", 1, 1, 0}, {"launches on 4 streams", 4, 1, 0}, {"graphs", 1, 1, 1}, {"two processes", 1, 2, 0}, {0},
};

/*
 * About a millisecond of arithmetic on each multiprocessor. It is work, not a look at a clock, which would go on while
 * others have the GPU; and it fills the GPU, so that streams gain nothing by overlapping. The store keeps the loop from
 * being optimised away. The simulated GPU reads the time off the name.
 */
#define THREADS 1024
#define BLOCKS_PER_MULTIPROCESSOR 2
static const char work_1ms[] = ".version 6.0\n"
                               ".target sm_50\n"
                               ".address_size 64\n"
                               ".visible .entry work_1ms()\n"
                               "{\n"
                               "  .shared .align 4 .u32 sink;\n"
                               "  .reg .u32 %x, %i;\n"
                               "  .reg .pred %more;\n"
                               "  mov.u32 %x, %tid.x;\n"
                               "  mov.u32 %i, 0;\n"
                               "again:\n"
                               "  mad.lo.u32 %x, %x, 1664525, 1013904223;\n"
                               "  add.u32 %i, %i, 1;\n"
                               "  setp.lt.u32 %more, %i, 32768;\n"
                               "  @%more bra again;\n"
                               "  st.volatile.shared.u32 [sink], %x;\n"
                               "  ret;\n"
                               "}\n";

struct lane {
  CUstream stream;
  CUgraphExec graph;
  CUevent ends[2];
};

static CUfunction kernel;
static unsigned blocks;

double compute_now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void launch_kernels(CUstream stream) {
  for (int i = 0; i < BATCH; i++)
    must(driver.cuLaunchKernel(kernel, blocks, 1, 1, THREADS, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
}

static void launch_batch(const struct lane *lane, int which) {
  if (lane->graph != NULL)
    must(driver.cuGraphLaunch(lane->graph, lane->stream), "cuGraphLaunch");
  else
    launch_kernels(lane->stream);
  must(driver.cuEventRecord(lane->ends[which], lane->stream), "cuEventRecord");
}

static void open_lane(struct lane *lane, int uses_graphs) {
  CUgraph graph;
  must(driver.cuStreamCreate(&lane->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  for (int i = 0; i < 2; i++)
    must(driver.cuEventCreate(&lane->ends[i], CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  if (!uses_graphs)
    return;
  must(driver.cuStreamBeginCapture_v2(lane->stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
  launch_kernels(lane->stream);
  must(driver.cuStreamEndCapture(lane->stream, &graph), "cuStreamEndCapture");
  must(driver.cuGraphInstantiateWithFlags(&lane->graph, graph, 0), "cuGraphInstantiate");
}

/* The kernels that ended between two moments. A batch waits behind the one that runs on each stream, so that the GPU is
 * never without work. */
static long ended_between(struct lane *lanes, int count, double begin_s, double end_s) {
  long done = 0;
  for (int i = 0; i < count; i++)
    launch_batch(&lanes[i], 0);
  for (int which = 1; compute_now_s() < end_s; which = 1 - which) {
    for (int i = 0; i < count; i++)
      launch_batch(&lanes[i], which);
    for (int i = 0; i < count; i++) {
      must(driver.cuEventSynchronize(lanes[i].ends[1 - which]), "cuEventSynchronize");
      done += compute_now_s() >= begin_s && compute_now_s() < end_s ? BATCH : 0;
    }
  }
  must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
  return done;
}

/* Says that it is ready, and is told when the measurement begins: the same time for all, since what counts is the sum.
 */
static double agree_on_begin(int from_first, int to_first) {
  double begin_s = 0;
  if (write(to_first, &begin_s, sizeof begin_s) != sizeof begin_s ||
      read(from_first, &begin_s, sizeof begin_s) != sizeof begin_s)
    exit(3);
  return begin_s;
}

static void load_kernel(void) {
  CUmodule module;
  int multiprocessors;
  must(driver.cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0),
       "cuDeviceGetAttribute");
  blocks = (unsigned)multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
  must(driver.cuModuleLoadData(&module, work_1ms), "cuModuleLoadData");
  must(driver.cuModuleGetFunction(&kernel, module, "work_1ms"), "cuModuleGetFunction");
}

long compute_ended(double from_s, double until_s) {
  long ended = 0;
  load_kernel();
  while (compute_now_s() < until_s) {
    launch_kernels(NULL);
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    ended += compute_now_s() >= from_s && compute_now_s() < until_s ? BATCH : 0;
  }
  return ended;
}

static void work(const struct compute_path *path, double seconds, int from_first, int to_first) {
  struct lane lanes[MAX_STREAMS] = {0};
  CUresult started = driver_try_start();
  if (started == CUDA_ERROR_OUT_OF_MEMORY) {
    double none = NO_CONTEXT;
    _exit(write(to_first, &none, sizeof none) == sizeof none ? 0 : 3);
  }
  must(started, "cuDevicePrimaryCtxRetain");
  load_kernel();
  for (int i = 0; i < path->streams; i++)
    open_lane(&lanes[i], path->uses_graphs);
  double begin_s = agree_on_begin(from_first, to_first);
  double rate = (double)ended_between(lanes, path->streams, begin_s, begin_s + seconds) / seconds;
  _exit(write(to_first, &rate, sizeof rate) == sizeof rate ? 0 : 3);
}

/* Returns where its answers are read. Each process has a pipe of its own, so that its end is seen. */
static int begin_process(const struct compute_path *path, double seconds, const int starts[2]) {
  int ends[2];
  if (pipe(ends) != 0)
    exit(3);
  if (fork_child() == 0) {
    close(starts[1]);
    work(path, seconds, starts[0], ends[1]);
  }
  close(ends[1]);
  return ends[0];
}

/* The next answer of a process; the end of the program where one has ended without, having said why. */
static double answer(int from_process) {
  double said;
  if (read(from_process, &said, sizeof said) != sizeof said)
    exit(3);
  return said;
}

void compute_run(const struct compute_path *path, double seconds) {
  int answers[MAX_PROCESSES], starts[2];
  double sum = 0, least = 0;
  if (pipe(starts) != 0)
    exit(3);
  for (int i = 0; i < path->processes; i++)
    answers[i] = begin_process(path, seconds, starts);
  for (int i = 0; i < path->processes; i++)
    if (answer(answers[i]) == NO_CONTEXT) {
      printf("{\"path\": \"%s\", \"contexts\": %d, \"no_room\": true}\n", path->name, path->processes);
      return;
    }
  double begin_s = compute_now_s() + WARM_UP_S;
  for (int i = 0; i < path->processes; i++)
    if (write(starts[1], &begin_s, sizeof begin_s) != sizeof begin_s)
      exit(3);
  for (int i = 0; i < path->processes; i++) {
    double one = answer(answers[i]);
    least = i == 0 || one < least ? one : least;
    sum += one;
  }
  while (wait(NULL) > 0) {
  }
  printf("{\"work\": \"%s\", \"kernels_per_second\": %.1f, \"least_of_a_process\": %.1f}\n", path->name, sum, least);
}
