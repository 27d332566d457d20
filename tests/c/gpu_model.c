/* Processes and their containers: how they begin and end, and what has become of them. */
#include "check.h"
#include "gpu_model_parts.h"

#include <stdlib.h>
#include <string.h>

#define STACK_BYTES (256 * 1024)

struct model model;

/* As meters.c does it. */
static struct meter_terms terms_of(const void *owner) {
  const struct meter *meter = owner;
  const struct model_container *container = &model.containers[meter->turns.slot >= 0 ? model.current->container : 0];
  struct meter_terms terms = {.percent = container->percent, .takes_turns = true, .paused = container->paused};
  const struct turns_terms published = {.tenant = (uint64_t)model.current->container + 1,
                                        .percent = container->percent,
                                        .policy = (uint16_t)container->policy,
                                        .priority = (uint16_t)container->priority};
  turns_set_terms((struct turns *)&meter->turns, &published);
  terms.yields = container->policy == VGPU_SM_BURST || container->percent >= VGPU_NO_SM_LIMIT;
  terms.percent = turns_share_percent((struct turns *)&meter->turns, &published);
  return terms;
}

static void begin(void) {
  struct model_process *process = model.current;
  process->program(process);
  process->dead = true;
  swapcontext(&process->context, &model.scheduler);
}

struct model_process *model_start(int container, model_program *program, const void *argument, int64_t begin_ns) {
  CHECK(model.process_count < MODEL_PROCESSES, "%d processes", model.process_count);
  struct model_process *process = calloc(1, sizeof *process);
  *process = (struct model_process){.slot = model.process_count, .container = container, .program = program};
  process->argument = argument;
  process->now_ns = MODEL_START_NS + begin_ns;
  process->stack = malloc(STACK_BYTES);
  for (int g = 0; g < MODEL_GPUS; g++) {
    struct meter *meter = &process->meters[g];
    meter_init(meter, &model_driver, &model.containers[container].device[g], model.containers[container].percent);
    meter->terms = terms_of;
    meter->owner = meter;
    meter->takes_turns = true;
    turns_begin(&meter->turns, &model_turns_system, &model.gpus[g].turns, process->slot);
    for (int s = 0; s < MODEL_STREAMS; s++)
      process->streams[g][s] = meter_add_stream(meter, meter, &process->streams[g][s]);
  }
  model.processes[model.process_count++] = process;
  getcontext(&process->context);
  process->context.uc_stack.ss_sp = process->stack;
  process->context.uc_stack.ss_size = STACK_BYTES;
  makecontext(&process->context, begin, 0);
  return process;
}

void model_kill(struct model_process *process) {
  process->dead = true;
  model.file_is_locked = false; /* the kernel gives it back */
  for (int g = 0; g < MODEL_GPUS; g++) {
    struct queue *queue = &process->queues[g];
    queue->tail = queue->head;
    memset(queue->pending, 0, sizeof queue->pending);
    if (model.gpus[g].running == process->slot)
      model.gpus[g].running = -1;
  }
}

void model_stop(struct model_process *process, int64_t until_ns) {
  process->now_ns = MODEL_START_NS + until_ns;
  process->waits = false; /* a wake-up does not reach it */
}

void model_start_over(unsigned seed) {
  for (int i = 0; i < model.process_count; i++) {
    free(model.processes[i]->stack); /* what its meters hold is kept until the test ends */
    free(model.processes[i]);
  }
  memset(&model, 0, sizeof model);
  for (int g = 0; g < MODEL_GPUS; g++) {
    model.gpus[g].now_ns = MODEL_START_NS;
    model.gpus[g].running = -1;
  }
  model.random_state = seed;
  model_set_drowsiness(5 * MS, 1.3);
}

void model_set_drowsiness(int64_t duration_ns, double times_slower) {
  model.slow_ns = duration_ns;
  model.times_slower = times_slower;
}

void model_set_lateness(int64_t late_ns) {
  model.late_ns = late_ns;
}

struct model_container *model_container(int number) {
  return &model.containers[number];
}

bool model_holds_turn(const struct model_process *process) {
  return (model.gpus[0].turns.head.turn & 0xffff) == (uint64_t)process->slot + 1;
}

int64_t model_worked_ns(const struct model_process *process) {
  return process->worked_ns;
}

int64_t model_longest_launch_ns(const struct model_process *process) {
  return process->longest_launch_ns;
}

void model_forget_stalls(struct model_process *process) {
  process->longest_launch_ns = 0;
}
