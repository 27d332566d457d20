/* Time: whoever is earliest goes on; and what takes a process time on its host. */
#include "compute/meter_parts.h"
#include "gpu_model_parts.h"

#include <string.h>

#define SYSTEM_CALL_NS 600

/* No thread of this machine has such a number, and none is known to have ended. */
static int32_t thread_of(const struct model_process *process) {
  return -1 - process->slot;
}

/* By another thread of its process, which gets on within a claim that others wait for. */
static bool is_held_up(const struct model_process *process) {
  bool held_up = false;
  for (int g = 0; g < MODEL_GPUS; g++) {
    int32_t claimed_by = process->of->meters[g].turns.lock;
    held_up |= claimed_by != 0 && claimed_by != thread_of(process);
  }
  return held_up;
}

static struct model_process *earliest(void) {
  struct model_process *found = NULL;
  for (int i = 0; i < model.process_count; i++)
    if (!model.processes[i]->dead && !is_held_up(model.processes[i]) &&
        (found == NULL || model.processes[i]->now_ns < found->now_ns))
      found = model.processes[i];
  return found;
}

void model_go_on(ucontext_t *from) {
  struct model_process *next = earliest();
  model.current = next != NULL && next->now_ns < model.run_until_ns ? next : NULL;
  ucontext_t *to = model.current != NULL ? &model.current->context : &model.outside;
  if (model.current != NULL)
    claim_thread = thread_of(model.current);
  if (to != from)
    swapcontext(from, to);
}

void model_pass_time(int64_t duration_ns) {
  if (model.current == NULL) /* before the run */
    return;
  model.current->now_ns += duration_ns;
  model_go_on(&model.current->context);
}

void model_run(int64_t until_ns) {
  model.run_until_ns = MODEL_START_NS + until_ns;
  model_go_on(&model.outside);
}

int64_t model_clock_ns(void) {
  model_pass_time(25);
  return model.current->now_ns;
}

/* Linux' timer slack and the way back. */
static int64_t oversleep_ns(void) {
  model.random_state = model.random_state * 1103515245 + 12345;
  return 50 * US + (model.random_state >> 16) % (20 * US);
}

void model_sleep(int64_t duration_ns) {
  model_pass_time(duration_ns + oversleep_ns());
  if (duration_ns >= MS)
    model.current->slow_until_ns = model.current->now_ns + model.slow_ns;
}

/* The terms of those that are known. */
static int list(void *of, struct turns_tenant *tenants, int count) {
  const struct model_files *files = of;
  tenants[0].id = (uint64_t)files->container + 1;
  for (int i = 1; i < count; i++) {
    const struct model_container *container = &model.containers[tenants[i].id - 1];
    model_pass_time(4 * SYSTEM_CALL_NS);
    tenants[i].terms =
        (struct turns_terms){container->percent, (uint16_t)container->policy, (uint16_t)container->priority};
  }
  return count;
}

/* Adds the tenants that there are and are not known yet; ours stays first. */
static int look(void *of, struct turns_tenant *tenants, int count) {
  const struct model_files *files = of;
  model_pass_time(max(model.look_ns, 3 * SYSTEM_CALL_NS));
  tenants[0].id = (uint64_t)files->container + 1;
  for (int c = 0; c < MODEL_CONTAINERS; c++) {
    if (!model.containers[c].is_there || c == files->container)
      continue;
    int i = 1;
    while (i < count && tenants[i].id != (uint64_t)c + 1)
      i++;
    if (i == count)
      tenants[count++] = (struct turns_tenant){.id = (uint64_t)c + 1};
  }
  return list(of, tenants, count);
}

/* All slots would take most of the tests' time. */
static int read_slots(void *of, int tenant, struct turns_slot *slots) {
  const struct model_files *files = of;
  model_pass_time(SYSTEM_CALL_NS);
  uint64_t container = files->turns->tenants[tenant].id - 1;
  const struct model_turns *turns = &model.gpus[files->gpu].turns[container];
  memcpy(slots, turns->slots, (size_t)turns->used * sizeof *slots);
  return turns->used;
}

static void write_slot(void *of, int slot, const struct turns_slot *own) {
  const struct model_files *files = of;
  model_pass_time(SYSTEM_CALL_NS);
  struct model_turns *turns = &model.gpus[files->gpu].turns[files->container];
  turns->slots[slot] = *own;
  turns->used = max(turns->used, slot + 1);
}

const struct turns_system model_turns_system = {model_clock_ns, model_sleep, list, look, read_slots, write_slot};
