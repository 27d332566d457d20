/* Processes and their containers: how they begin and end, and what has become of them. */
#include "check.h"
#include "gpu_model_parts.h"

#include <stdlib.h>
#include <string.h>

#define STACK_BYTES (256 * 1024)

struct model model;

static void begin(void) {
  struct model_process *process = model.current;
  process->program(process);
  model_drop(process, process->now_ns);
  process->dead = true;
  model_go_on(&process->context);
}

static struct model_process *start(int container, model_program *program, const void *argument, int64_t begin_ns) {
  CHECK(model.process_count < MODEL_PROCESSES, "%d processes", model.process_count);
  struct model_process *process = calloc(1, sizeof *process);
  *process = (struct model_process){.slot = model.process_count, .container = container, .program = program};
  process->argument = argument;
  process->now_ns = MODEL_START_NS + begin_ns;
  process->random_state = ((uint64_t)model.random_state << 8) + (uint64_t)process->slot;
  process->stack = malloc(STACK_BYTES);
  process->of = process;
  model.processes[model.process_count++] = process;
  getcontext(&process->context);
  process->context.uc_stack.ss_sp = process->stack;
  process->context.uc_stack.ss_size = STACK_BYTES;
  makecontext(&process->context, begin, 0);
  return process;
}

struct model_process *model_start(int container, model_program *program, const void *argument, int64_t begin_ns) {
  struct model_process *process = start(container, program, argument, begin_ns);
  library_begin(process);
  return process;
}

struct model_process *model_start_thread(struct model_process *process, model_program *program, const void *argument) {
  struct model_process *thread = start(process->container, program, argument, process->now_ns - MODEL_START_NS);
  thread->of = process;
  return thread;
}

void model_kill(struct model_process *process) {
  for (int i = 0; i < model.process_count; i++)
    model.processes[i]->dead |= model.processes[i]->of == process;
  model_drop(process, model.run_until_ns);
}

void model_begin_anew(struct model_process *process) {
  model_drop(process, process->now_ns);
  library_begin(process);
}

void model_stop(struct model_process *process, int64_t until_ns) {
  process->now_ns = MODEL_START_NS + until_ns;
}

void model_start_over(unsigned seed) {
  for (int i = 0; i < model.process_count; i++) {
    struct model_process *process = model.processes[i];
    for (int g = 0; g < MODEL_GPUS; g++)
      for (int s = 0; s < MODEL_STREAMS; s++)
        free(process->queues[g].lanes[s].items);
    free(process->stack); /* what its meters hold is kept until the test ends */
    free(process);
  }
  memset(&model, 0, sizeof model);
  for (int g = 0; g < MODEL_GPUS; g++) {
    model.gpus[g].now_ns = MODEL_START_NS;
    model.gpus[g].running = -1;
  }
  model.random_state = seed;
  model_set_wake_up_slowdown(5 * MS, 1.3);
}

void model_set_wake_up_slowdown(int64_t duration_ns, double times_slower) {
  model.slow_ns = duration_ns;
  model.times_slower = times_slower;
}

void model_set_look(int64_t look_ns) {
  model.look_ns = look_ns;
}

void model_set_lateness(int64_t late_ns) {
  model.late_ns = late_ns;
}

struct model_container *model_container(int number) {
  return &model.containers[number];
}

struct turns_slot *model_turns_slots_of(int container) {
  struct model_turns *turns = &model.gpus[0].turns[container];
  turns->used = TURNS_SLOTS; /* by a stranger */
  return turns->slots;
}

int64_t model_file_now_ns(void) {
  return model.current->now_ns;
}

bool model_holds_turn(const struct model_process *process) {
  return model_turns_slots_of(process->container)[process->slot].turn_ends_ns > process->now_ns;
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
