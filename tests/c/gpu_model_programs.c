/* What programs do: they launch, wait and think. */
#include "check.h"
#include "gpu_model_parts.h"

#define HOST_LAUNCH_NS (3 * US)
#define LOOK_NS (10 * MS) /* as meters.c looks */
#define POLL_NS (5 * US)  /* how exactly a synchronisation sees the end of what it waits for */
#define LATE_EVERY_NS S
#define LATE_FOR_NS (70 * MS)

const void *model_argument(const struct model_process *process) {
  return process->argument;
}

int64_t model_now_ns(const struct model_process *process) {
  return process->now_ns - MODEL_START_NS;
}

/* As meters.c: what is open would grow with what is not measured. */
static void leave_off(struct meter *meter) {
  meter_close_all(meter);
  meter_harvest(meter);
}

/* As meters.c finds it: without a limit, and alone, nothing is measured. */
static bool is_measured(struct model_process *process, int gpu) {
  const struct model_container *container = &model.containers[process->container];
  struct turns *turns = &process->meters[gpu].turns;
  if (process->now_ns >= process->look_at_ns[gpu]) {
    process->look_at_ns[gpu] = process->now_ns + LOOK_NS;
    (void)meter_terms(&process->meters[gpu]); /* publishes them */
    turns_note_presence(turns);
    bool had_company = process->company[gpu], was_measured = process->measured[gpu];
    process->company[gpu] = turns_have_another_tenant(turns);
    bool limited = container->percent < VGPU_NO_SM_LIMIT || container->paused;
    process->measured[gpu] = process->company[gpu] || limited;
    if (process->company[gpu] && !had_company && !limited)
      meter_begin_measuring(&process->meters[gpu]);
    else if (was_measured && !process->measured[gpu])
      leave_off(&process->meters[gpu]);
  }
  return container->percent < VGPU_NO_SM_LIMIT || container->paused || process->company[gpu];
}

static void launch(struct model_process *process, int gpu, uint64_t work, struct item item) {
  int64_t began_ns = process->now_ns;
  struct meter_stream *stream = process->streams[gpu][item.stream];
  bool metered = is_measured(process, gpu) && meter_launch(stream, work, process->meters[gpu].driver->now_ns());
  model_pass_time(HOST_LAUNCH_NS);
  model_enqueue(process, gpu, item);
  if (metered)
    meter_launched(stream);
  if (process->now_ns - began_ns > process->longest_launch_ns)
    process->longest_launch_ns = process->now_ns - began_ns;
  while (process->queues[gpu].pending[item.stream] > 1000) { /* the driver's own queue is full */
    model_pass_time(POLL_NS);
    model_advance(&model.gpus[gpu], process->now_ns);
  }
}

void model_launch_as(struct model_process *process, int gpu, int stream, int64_t duration_ns, uint64_t work) {
  launch(process, gpu, work, (struct item){.stream = stream, .left_ns = duration_ns});
}

void model_launch(struct model_process *process, int gpu, int stream, int64_t duration_ns) {
  model_launch_as(process, gpu, stream, duration_ns, (uint64_t)duration_ns);
}

void model_launch_spin(struct model_process *process, int gpu, int number) {
  CHECK(number < MODEL_SPINS, "%d", number);
  launch(process, gpu, 1, (struct item){.left_ns = MODEL_ENDLESS_NS, .spin = number + 1});
}

/* Nobody sees that it waits. */
static void wait_for(struct model_process *process, int gpu, uint32_t most_pending) {
  const uint32_t *pending = process->queues[gpu].pending;
  model_advance_all();
  while (pending[0] + pending[1] + pending[2] + pending[3] > most_pending) {
    model_pass_time(POLL_NS);
    model_advance_all();
  }
  if (process->now_ns % LATE_EVERY_NS < LATE_FOR_NS)
    model_pass_time(model.late_ns);
}

void model_poll(struct model_process *process, int gpu) {
  wait_for(process, gpu, 0);
}

static void synchronize(struct model_process *process, int gpu, uint32_t most_pending, enum meter_scope scope) {
  struct meter *meter = &process->meters[gpu];
  int64_t began_ns = process->now_ns;
  meter_before_wait_all(meter);
  wait_for(process, gpu, most_pending);
  meter_after_wait_all(meter, scope, began_ns, meter->driver->now_ns());
  meter_harvest(meter);
}

void model_synchronize(struct model_process *process, int gpu) {
  synchronize(process, gpu, 0, METER_FOR_ALL);
}

void model_wait_behind(struct model_process *process, int gpu, uint32_t most_pending) {
  synchronize(process, gpu, most_pending, METER_FOR_SOME);
}

void model_think(struct model_process *process, int64_t duration_ns) {
  model_pass_time(process->now_ns < process->slow_until_ns ? (int64_t)((double)duration_ns * model.times_slower)
                                                           : duration_ns);
}
