#include "compute.h"

#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BATCH 8
#define MAX_STREAMS 4
#define START_S 2.0 /* within which every process has its context, and work under way */

const struct compute_path compute_paths[] = {
    {"launches", 1, 1, 0}, {"launches on 4 streams", 4, 1, 0}, {"graphs", 1, 1, 1}, {"two processes", 1, 2, 0}, {0},
};

/* One thread that watches the GPU's clock until a millisecond has passed. The simulated GPU reads the time off the
 * name. */
static const char spin_1ms[] = ".version 6.0\n"
                               ".target sm_50\n"
                               ".address_size 64\n"
                               ".visible .entry spin_1ms()\n"
                               "{\n"
                               "  .reg .u64 %start, %now;\n"
                               "  .reg .pred %busy;\n"
                               "  mov.u64 %start, %globaltimer;\n"
                               "again:\n"
                               "  mov.u64 %now, %globaltimer;\n"
                               "  sub.u64 %now, %now, %start;\n"
                               "  setp.lt.u64 %busy, %now, 1000000;\n"
                               "  @%busy bra again;\n"
                               "  ret;\n"
                               "}\n";

struct lane {
  CUstream stream;
  CUgraphExec graph;
  CUevent ends[2];
};

static CUfunction kernel;

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void launch_kernels(CUstream stream) {
  for (int i = 0; i < BATCH; i++)
    must(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
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
  for (int which = 1; now_s() < end_s; which = 1 - which) {
    for (int i = 0; i < count; i++)
      launch_batch(&lanes[i], which);
    for (int i = 0; i < count; i++) {
      must(driver.cuEventSynchronize(lanes[i].ends[1 - which]), "cuEventSynchronize");
      done += now_s() >= begin_s && now_s() < end_s ? BATCH : 0;
    }
  }
  must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
  return done;
}

static double rate(const struct compute_path *path, double begin_s, double seconds) {
  struct lane lanes[MAX_STREAMS] = {0};
  CUmodule module;
  driver_start();
  must(driver.cuModuleLoadData(&module, spin_1ms), "cuModuleLoadData");
  must(driver.cuModuleGetFunction(&kernel, module, "spin_1ms"), "cuModuleGetFunction");
  for (int i = 0; i < path->streams; i++)
    open_lane(&lanes[i], path->uses_graphs);
  if (now_s() > begin_s)
    must(CUDA_ERROR_TIMEOUT, "the start of the driver");
  return (double)ended_between(lanes, path->streams, begin_s, begin_s + seconds) / seconds;
}

void compute_run(const struct compute_path *path, double seconds) {
  int answers[2];
  double sum = 0, least = 0, one = 0, begin_s = now_s() + START_S; /* the same time for all: what counts is the sum */
  if (pipe(answers) != 0)
    exit(3);
  for (int i = 0; i < path->processes; i++)
    if (fork() == 0) {
      one = rate(path, begin_s, seconds);
      _exit(write(answers[1], &one, sizeof one) == sizeof one ? 0 : 3);
    }
  close(answers[1]);
  int answered = 0;
  while (read(answers[0], &one, sizeof one) == sizeof one) {
    least = answered++ == 0 || one < least ? one : least;
    sum += one;
  }
  while (wait(NULL) > 0) {
  }
  if (answered < path->processes)
    exit(3); /* it has said why */
  printf("{\"work\": \"%s\", \"kernels_per_second\": %.1f, \"least_of_a_process\": %.1f}\n", path->name, sum, least);
}
