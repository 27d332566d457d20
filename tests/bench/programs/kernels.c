/*
 * Runs one kind of GPU work flat out, and prints how evenly it progresses as one line of JSON.
 *
 * kernels WORKLOAD SECONDS [AT [SETTLE]]    AT: when to begin, in seconds of CLOCK_MONOTONIC; 0: at once
 *                                           SETTLE: seconds of work before it measures, by default 1
 *
 * Every kernel counts its own progress, and shows it in host memory, in units of work of up to about a millisecond, so
 * that what is completed is seen from outside, without a call that the driver or the library would notice. A kernel of
 * 1 ms shows it in quarters: of whole ones a window of 250 ms at a limit of 10 has 24 or 25, which by itself deviates
 * by 2 %.
 */
#include "driver.h"
#include "simulated.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define MAX_STREAMS 4
#define MAX_SAMPLES 4000
#define MAX_REQUESTS 4000
#define SAMPLE_NS 50e6        /* the series that is printed */
#define LOOK_US 20.0          /* what is done; of long kernels rarer, since many programs share the processors */
#define AHEAD_US 2000.0       /* how far a program is ahead of the GPU, as those that use it well are */
#define MOST_AHEAD 250.0      /* in launches: the driver's own queue, when it is full, slows them down */
#define ITERATIONS_PER_US 290 /* iterations of the kernel's loop, on an H200 at 1980 MHz */

/* Adds to a float for a number of iterations and counts a unit, as often as there are units. */
static const char *const source =
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry work(.param .u64 progress, .param .u64 seen, .param .u32 units,\n"
    ".param .u32 iterations, .param .u32 mask) {\n"
    ".reg .pred %p<5>; .reg .u32 %r<8>; .reg .u64 %d<6>; .reg .f32 %f<3>;\n"
    "ld.param.u64 %d1, [progress]; ld.param.u64 %d3, [seen]; ld.param.u32 %r1, [units]; ld.param.u32 %r2, "
    "[iterations];\n"
    "ld.param.u32 %r7, [mask]; cvt.u64.u32 %d4, %r7; mov.u64 %d2, 0;\n"
    "mov.u32 %r4, %tid.x; mov.u32 %r5, %ctaid.x; or.b32 %r4, %r4, %r5; setp.eq.u32 %p1, %r4, 0;\n"
    "mov.f32 %f1, 0f3F800000; mov.u32 %r6, 0;\n"
    "unit: mov.u32 %r3, 0;\n"
    "step: fma.rn.f32 %f1, %f1, 0f3F7FFFFF, 0f33800000; add.u32 %r3, %r3, 1;\n"
    "setp.lt.u32 %p2, %r3, %r2; @%p2 bra step;\n"
    "setp.lt.f32 %p3, %f1, 0f00000000; @%p3 st.global.f32 [%d1+8], %f1;\n"
    "@%p1 ld.volatile.global.u64 %d2, [%d1]; @%p1 add.u64 %d2, %d2, 1; @%p1 st.volatile.global.u64 [%d1], %d2;\n"
    "and.b64 %d5, %d2, %d4; setp.eq.and.u64 %p4, %d5, 0, %p1; @%p4 st.volatile.global.u64 [%d3], %d2;\n"
    "add.u32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, %r1; @%p2 bra unit;\n"
    "ret; }\n";

struct workload {
  const char *name;
  unsigned units;
  double unit_us;
  unsigned blocks;
  int streams;
  int burst;         /* launches on a stream before the next one's turn; 0: one */
  int graph_kernels; /* 0: launches, not graphs */
  int waits;         /* synchronises after each launch */
  double pause_us;   /* and then does something else, for up to so much longer or shorter: */
  double varies_us;
  size_t allocates_mib; /* instead of launches, and frees it at once */
};

static const struct workload workloads[] = {
    {.name = "5s", .units = 5000, .unit_us = 1000, .blocks = 132, .streams = 1},
    {.name = "1s", .units = 1000, .unit_us = 1000, .blocks = 132, .streams = 1},
    {.name = "300ms", .units = 300, .unit_us = 1000, .blocks = 132, .streams = 1},
    {.name = "100ms", .units = 100, .unit_us = 1000, .blocks = 132, .streams = 1},
    {.name = "5ms", .units = 5, .unit_us = 1000, .blocks = 132, .streams = 1},
    {.name = "1ms", .units = 4, .unit_us = 250, .blocks = 132, .streams = 1},
    {.name = "50us", .units = 1, .unit_us = 50, .blocks = 132, .streams = 1},
    {.name = "wide", .units = 1, .unit_us = 50, .blocks = 132 * 16, .streams = 1}, /* all that its SMs can hold */
    {.name = "4us", .units = 1, .unit_us = 2.5, .blocks = 132, .streams = 1},      /* to begin a kernel takes 1.5 us */
    {.name = "2us", .units = 1, .unit_us = 0.5, .blocks = 132, .streams = 1},
    {.name = "graph", .units = 1, .unit_us = 10, .blocks = 132, .streams = 1, .graph_kernels = 100},
    {.name = "sync", .units = 1, .unit_us = 50, .blocks = 132, .streams = 1, .waits = 1},
    {.name = "streams", .units = 1, .unit_us = 200, .blocks = 33, .streams = 4},
    {.name = "bursts", .units = 1, .unit_us = 1000, .blocks = 33, .streams = 4, .burst = 8},
    {.name = "third", .units = 1, .unit_us = 1000, .blocks = 132, .streams = 1, .waits = 1, .pause_us = 2300},
    {.name = "request",
     .units = 2,
     .unit_us = 1000,
     .blocks = 132,
     .streams = 1,
     .waits = 1,
     .pause_us = 18000,
     .varies_us = 1000},
    {.name = "short request",
     .units = 1,
     .unit_us = 200,
     .blocks = 132,
     .streams = 1,
     .waits = 1,
     .pause_us = 19800,
     .varies_us = 1000},
    {.name = "allocation", .streams = 1, .pause_us = 20000, .varies_us = 1000, .allocates_mib = 64},
    {.name = "endless", .units = 4000000000u, .unit_us = 1000, .blocks = 132, .streams = 1, .waits = 1},
};

static struct {
  const struct workload *workload;
  CUcontext context;
  CUfunction function;
  CUstream streams[MAX_STREAMS];
  CUgraphExec graph;
  CUdeviceptr progress[MAX_STREAMS];
  volatile unsigned long long *seen[MAX_STREAMS]; /* the same in host memory, each in a line of its own */
  bool simulated;
  double begin_at_ns, settle_ns;
  double requests_ns[MAX_REQUESTS]; /* how long each launch took to be done, of programs that pause between them */
  _Atomic int requests;             /* since the measurement began */
} bench;

static void sleep_ns(double duration_ns) {
  struct timespec time = {(time_t)(duration_ns / 1e9), (long)duration_ns % 1000000000L};
  nanosleep(&time, NULL);
}

static void launch(int stream) {
  static __typeof__(cuLaunchKernel) *call;
  if (call == NULL)
    call = (__typeof__(cuLaunchKernel) *)find("cuLaunchKernel");
  CUdeviceptr seen = (CUdeviceptr)bench.seen[stream];
  unsigned units = bench.workload->units;
  unsigned iterations = (unsigned)(bench.workload->unit_us * ITERATIONS_PER_US);
  unsigned mask = bench.workload->unit_us < 20 ? 15 : 0; /* a store to the host takes longer than a short kernel */
  void *parameters[] = {&bench.progress[stream], &seen, &units, &iterations, &mask};
  check(call(bench.function, bench.workload->blocks, 1, 1, 128, 1, 1, 0, bench.streams[stream], parameters, NULL),
        "cuLaunchKernel");
}

static void allocate(void) {
  FIND(cuMemAlloc);
  FIND(cuMemFree);
  CUdeviceptr memory;
  check(cuMemAlloc_(&memory, bench.workload->allocates_mib << 20), "cuMemAlloc");
  check(cuMemFree_(memory), "cuMemFree");
}

static void capture_graph(void) {
  FIND(cuStreamBeginCapture);
  FIND(cuStreamEndCapture);
  FIND(cuGraphInstantiateWithFlags);
  CUgraph graph;
  check(cuStreamBeginCapture_(bench.streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
  for (int i = 0; i < bench.workload->graph_kernels; i++)
    launch(0);
  check(cuStreamEndCapture_(bench.streams[0], &graph), "cuStreamEndCapture");
  check(cuGraphInstantiateWithFlags_(&bench.graph, graph, 0), "cuGraphInstantiate");
}

static void set_up(void) {
  FIND(cuInit);
  FIND(cuDevicePrimaryCtxRetain);
  FIND(cuCtxSetCurrent);
  FIND(cuModuleLoadData);
  FIND(cuModuleGetFunction);
  FIND(cuStreamCreate);
  FIND(cuMemHostAlloc);
  FIND(cuMemAlloc);
  FIND(cuMemsetD8);
  CUmodule module;
  check(cuInit_(0), "cuInit");
  check(cuDevicePrimaryCtxRetain_(&bench.context, 0), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent_(bench.context), "cuCtxSetCurrent");
  check(cuModuleLoadData_(&module, source), "cuModuleLoadData");
  bench.simulated = simulated_gpu();
  const char *name = bench.simulated ? simulated_name(bench.workload->units * bench.workload->unit_us) : "work";
  check(cuModuleGetFunction_(&bench.function, module, name), "cuModuleGetFunction");
  for (int i = 0; i < bench.workload->streams; i++) {
    void *memory;
    check(cuStreamCreate_(&bench.streams[i], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(cuMemHostAlloc_(&memory, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
    memset(memory, 0, 4096);
    bench.seen[i] = memory;
    check(cuMemAlloc_(&bench.progress[i], 4096), "cuMemAlloc");
    check(cuMemsetD8_(bench.progress[i], 0, 4096), "cuMemsetD8");
  }
  if (bench.workload->graph_kernels > 0)
    capture_graph();
}

static void wait_until(double instant_ns) {
  if (instant_ns > now_ns())
    sleep_ns(instant_ns - now_ns());
}

static unsigned long long done(void) {
  unsigned long long sum = 0;
  if (bench.simulated)
    simulated_look();
  for (int i = 0; i < bench.workload->streams; i++)
    sum += *bench.seen[i];
  return sum;
}

/* Launches until the program ends, always a little ahead. */
static void *work(void *unused) {
  FIND(cuCtxSetCurrent);
  FIND(cuStreamSynchronize);
  FIND(cuGraphLaunch);
  const struct workload *workload = bench.workload;
  check(cuCtxSetCurrent_(bench.context), "cuCtxSetCurrent");
  wait_until(bench.begin_at_ns);
  unsigned long long each =
      workload->units * (unsigned long long)(workload->graph_kernels ? workload->graph_kernels : 1);
  double launch_us = (double)each * workload->unit_us / workload->streams;
  int burst = workload->burst > 0 ? workload->burst : 1;
  double launches_ahead = AHEAD_US / launch_us < MOST_AHEAD ? AHEAD_US / launch_us : MOST_AHEAD;
  unsigned long long ahead = each * (unsigned long long)(2 * workload->streams * burst + launches_ahead);
  double look_ns = 1000 * (launch_us / 10 > LOOK_US ? launch_us / 10 : LOOK_US);
  unsigned long long launched = 0, known_done = 0;
  for (int count = 0;; count++, launched += each) {
    int turn = count / burst % workload->streams;
    while (!workload->allocates_mib && launched > known_done + ahead && launched > (known_done = done()) + ahead)
      sleep_ns(look_ns);
    double asked_ns = now_ns();
    if (workload->allocates_mib > 0)
      allocate();
    else if (workload->graph_kernels > 0)
      check(cuGraphLaunch_(bench.graph, bench.streams[turn]), "cuGraphLaunch");
    else
      launch(turn);
    if (bench.simulated)
      simulated_follow(bench.streams[turn], bench.seen[turn], each);
    if (workload->waits)
      check(cuStreamSynchronize_(bench.streams[turn]), "cuStreamSynchronize");
    if (workload->pause_us > 0) {
      if (bench.requests < MAX_REQUESTS && asked_ns >= bench.begin_at_ns + bench.settle_ns)
        bench.requests_ns[bench.requests++] = now_ns() - asked_ns;
      sleep_ns((workload->pause_us + workload->varies_us * (count * 13 % 34 - 17) / 17) * 1000);
    }
  }
  return unused;
}

static int by_size(const void *one, const void *other) {
  double difference = *(const double *)one - *(const double *)other;
  return (difference > 0) - (difference < 0);
}

/* Prints the median and the 99th percentile of the requests. */
static void print_requests(void) {
  static double sorted_ns[MAX_REQUESTS];
  int count = bench.requests;
  if (count == 0)
    return;
  memcpy(sorted_ns, bench.requests_ns, (size_t)count * sizeof *sorted_ns);
  qsort(sorted_ns, (size_t)count, sizeof *sorted_ns, by_size);
  printf(", \"median_ms\": %.3f, \"p99_ms\": %.3f", sorted_ns[count / 2] / 1e6, sorted_ns[count * 99 / 100] / 1e6);
}

/* Prints what was completed in each sample, and the longest time without any progress, over all and of those that
 * ended in each sample. */
static void observe(double seconds) {
  static unsigned long long samples[MAX_SAMPLES];
  static double stalls_ns[MAX_SAMPLES];
  double began = now_ns(), last_progress = began, longest = 0, longest_at = began;
  unsigned long long at_begin = done(), before = at_begin, sampled = at_begin;
  int count = 0;
  double now = began;
  while (now < began + seconds * 1e9) {
    sleep_ns(bench.workload->unit_us < 1000 ? 200e3 : 1e6);
    now = now_ns();
    unsigned long long completed = done();
    if (completed != before) {
      if (count < MAX_SAMPLES && now - last_progress > stalls_ns[count])
        stalls_ns[count] = now - last_progress;
      if (now - last_progress > longest) {
        longest = now - last_progress;
        longest_at = last_progress;
      }
      last_progress = now;
      before = completed;
    }
    if (now >= began + (count + 1) * SAMPLE_NS && count < MAX_SAMPLES) {
      samples[count++] = completed - sampled;
      sampled = completed;
    }
  }
  if (now - last_progress > longest) {
    longest = now - last_progress;
    longest_at = last_progress;
  }
  printf("{\"per_second\": %.4f, \"longest_stall_ms\": %.2f, \"stalled_at_s\": %.3f, \"sample_s\": %.3f, "
         "\"began_at_s\": %.6f, \"samples\": [",
         (double)(done() - at_begin) / (now_ns() - began) * 1e9, longest / 1e6, (longest_at - began) / 1e9,
         SAMPLE_NS / 1e9, began / 1e9);
  for (int i = 0; i < count; i++)
    printf("%s%llu", i > 0 ? ", " : "", samples[i]);
  printf("], \"stalls_ms\": [");
  for (int i = 0; i < count; i++)
    printf("%s%.2f", i > 0 ? ", " : "", stalls_ns[i] / 1e6);
  printf("]");
  print_requests();
  printf("}\n");
}

int main(int argc, char **argv) {
  for (size_t i = 0; argc > 2 && i < sizeof workloads / sizeof *workloads; i++)
    if (strcmp(argv[1], workloads[i].name) == 0)
      bench.workload = &workloads[i];
  if (bench.workload == NULL) {
    fprintf(stderr, "usage: kernels WORKLOAD SECONDS [AT [SETTLE]]\n");
    return 2;
  }
  set_up();
  bench.begin_at_ns = argc > 3 && atof(argv[3]) > 0 ? atof(argv[3]) * 1e9 : now_ns();
  bench.settle_ns = argc > 4 ? atof(argv[4]) * 1e9 : 1e9;
  pthread_t worker;
  pthread_create(&worker, NULL, work, NULL);
  wait_until(bench.begin_at_ns + bench.settle_ns);
  observe(atof(argv[2]));
  fflush(stdout);
  _exit(0); /* queued work is not waited for */
}
