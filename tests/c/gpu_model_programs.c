/* Programs: they launch, wait and think. */
#include "check.h"
#include "gpu_model_parts.h"

#define HOST_LAUNCH_NS (3 * US)
#define HOST_RECORD_NS US
#define HOST_QUERY_NS (500LL)
#define MOST_QUEUED 1000 /* by the driver, in a stream */
#define POLL_NS (5 * US) /* how exactly a synchronisation sees the end of what it waits for */
#define POLL_PART 256    /* and, after long waits, in parts of them */
#define LATE_EVERY_NS S
#define LATE_FOR_NS (70 * MS)

const void *model_argument(const struct model_process *process) {
  return process->argument;
}

int64_t model_now_ns(const struct model_process *process) {
  return process->now_ns - MODEL_START_NS;
}

/* Steele, Lea and Flood's SplitMix64. */
int64_t model_random_ns(struct model_process *process, int64_t least_ns, int64_t most_ns) {
  uint64_t mixed = process->random_state += 0x9e3779b97f4a7c15;
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
  mixed ^= mixed >> 31;
  return least_ns + (int64_t)(mixed % (uint64_t)(most_ns - least_ns + 1));
}

void model_think(struct model_process *process, int64_t duration_ns) {
  model_pass_time(process->now_ns < process->slow_until_ns ? (int64_t)((double)duration_ns * model.times_slower)
                                                           : duration_ns);
}

static void pass_poll(const struct model_process *process, int64_t began_ns) {
  int64_t part_ns = (process->now_ns - began_ns) / POLL_PART;
  model_pass_time(part_ns > POLL_NS ? part_ns : POLL_NS);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

void model_launch_kernel(struct model_process *process, const struct model_kernel *kernel) {
  CHECK(kernel->raises < MODEL_FLAGS && kernel->awaits < MODEL_FLAGS, "%d, %d", kernel->raises, kernel->awaits);
  int64_t began_ns = process->now_ns;
  bool measured = library_before_launch(process, kernel->gpu, kernel->stream, kernel->work);
  model_pass_time(HOST_LAUNCH_NS);
  model_enqueue(process, kernel->gpu, kernel->stream,
                (struct item){.left_ns = kernel->duration_ns,
                              .narrow = kernel->narrow,
                              .raises = kernel->raises,
                              .awaits = kernel->awaits});
  if (measured)
    library_after_launch(process, kernel->gpu, kernel->stream);
  if (process->now_ns - began_ns > process->longest_launch_ns)
    process->longest_launch_ns = process->now_ns - began_ns;
  for (began_ns = process->now_ns; model_pending(process, kernel->gpu, kernel->stream) > MOST_QUEUED;) {
    pass_poll(process, began_ns);
    model_advance(process->now_ns);
  }
}

void model_launch_as(struct model_process *process, int gpu, int stream, int64_t duration_ns, uint64_t work) {
  model_launch_kernel(process, &(const struct model_kernel){gpu, stream, duration_ns, work, false, 0, 0});
}

void model_launch(struct model_process *process, int gpu, int stream, int64_t duration_ns) {
  model_launch_as(process, gpu, stream, duration_ns, (uint64_t)duration_ns);
}

void model_copy(struct model_process *process, int gpu, int stream, int64_t duration_ns) {
  model_enqueue(process, gpu, stream, (struct item){.left_ns = duration_ns});
}

void model_launch_spin(struct model_process *process, int gpu, int number) {
  int first = 1 + 2 * number;
  model_launch_kernel(process, &(const struct model_kernel){gpu, 0, US, 1, false, first + gpu, first + 1 - gpu});
}

void model_renew_stream(struct model_process *process, int gpu, int stream) {
  model_pass_time(HOST_RECORD_NS);
  library_forget_stream(process, gpu, stream);
}

/* ---- waits ------------------------------------------------------------------------------------------------------- */

static void wait_until(struct model_process *process, bool (*is_over)(struct model_process *, int gpu, uint32_t number),
                       int gpu, uint32_t number) {
  int64_t began_ns = process->now_ns;
  model_advance(process->now_ns);
  while (!is_over(process, gpu, number)) {
    pass_poll(process, began_ns);
    model_advance(process->now_ns);
  }
  if (process->now_ns % LATE_EVERY_NS < LATE_FOR_NS)
    model_pass_time(model.late_ns);
}

static bool has_at_most(struct model_process *process, int gpu, uint32_t most_pending) {
  return process->of->queues[gpu].pending <= most_pending;
}

static bool is_empty(struct model_process *process, int gpu, uint32_t stream) {
  return model_pending(process, gpu, (int)stream) == 0;
}

static void synchronize(struct model_process *process, int gpu, uint32_t most_pending) {
  library_before_wait_all(process, gpu);
  wait_until(process, has_at_most, gpu, most_pending);
  library_after_wait_all(process, gpu);
}

void model_synchronize(struct model_process *process, int gpu) {
  synchronize(process, gpu, 0);
}

void model_wait_behind(struct model_process *process, int gpu, uint32_t most_pending) {
  synchronize(process, gpu, most_pending);
}

void model_synchronize_stream(struct model_process *process, int gpu, int stream) {
  library_before_wait(process, gpu, stream);
  wait_until(process, is_empty, gpu, (uint32_t)stream);
  library_after_wait(process, gpu, stream);
}

/* ---- questions --------------------------------------------------------------------------------------------------- */

void model_poll(struct model_process *process, int gpu) {
  wait_until(process, has_at_most, gpu, 0);
}

void model_watch(struct model_process *process, int gpu, int stream, uint32_t most_pending, int64_t left_ns) {
  const struct lane *lane = &process->of->queues[gpu].lanes[stream];
  model_advance(process->now_ns);
  while (model_pending(process, gpu, stream) > most_pending ||
         (model_pending(process, gpu, stream) == most_pending &&
          lane->items[lane->tail % MODEL_QUEUE].left_ns > left_ns)) {
    model_pass_time(left_ns);
    model_advance(process->now_ns);
  }
}

bool model_is_done(struct model_process *process, int gpu, int stream) {
  library_before_wait_all(process, gpu);
  model_pass_time(HOST_QUERY_NS);
  model_advance(process->now_ns);
  bool is_done = model_pending(process, gpu, stream) == 0;
  library_after_poll(process, gpu, is_done);
  return is_done;
}

struct marker *model_record(struct model_process *process, int gpu, int stream) {
  struct marker *marker = calloc(1, sizeof *marker);
  model_pass_time(HOST_RECORD_NS);
  model_enqueue(process, gpu, stream, (struct item){.marker = marker});
  return marker;
}

bool model_has_reached(struct model_process *process, struct marker *event) {
  for (int g = 0; g < MODEL_GPUS; g++)
    library_before_wait_all(process, g);
  model_pass_time(HOST_QUERY_NS);
  model_advance(process->now_ns);
  for (int g = 0; g < MODEL_GPUS; g++)
    library_after_poll(process, g, event->at_ns != 0);
  return event->at_ns != 0;
}
