/* Time: whoever is earliest goes on; and what takes a process time on its host. */
#include "compute/meter_parts.h"
#include "gpu_model_parts.h"

#include <string.h>

#define SYSTEM_CALL_NS 600
#define WAKE_NS (30 * US) /* from a futex's wake-up to the woken thread */

static struct model_process *earliest(void) {
  struct model_process *found = NULL;
  for (int i = 0; i < model.process_count; i++)
    if (!model.processes[i]->dead && (found == NULL || model.processes[i]->now_ns < found->now_ns))
      found = model.processes[i];
  return found;
}

void model_pass_time(int64_t duration_ns) {
  if (model.current == NULL) /* before the run */
    return;
  model.current->now_ns += duration_ns;
  if (model.current->now_ns >= model.run_until_ns || earliest() != model.current)
    swapcontext(&model.current->context, &model.scheduler);
}

void model_run(int64_t until_ns) {
  model.run_until_ns = MODEL_START_NS + until_ns;
  while ((model.current = earliest()) != NULL && model.current->now_ns < model.run_until_ns) {
    struct model_process *current = model.current;
    swapcontext(&model.scheduler, &current->context);
  }
  model.current = NULL;
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

static void wait_on(void *file, uint32_t expected, int64_t duration_ns, bool awake) {
  int64_t until_ns = model.current->now_ns + duration_ns;
  while (awake && ((struct turns_file *)file)->wake == expected && model.current->now_ns < until_ns)
    model_pass_time(SYSTEM_CALL_NS);
  if (awake || ((struct turns_file *)file)->wake != expected)
    return;
  model.current->waits = true;
  model_sleep(duration_ns);
  model.current->waits = false;
}

static void wake_all(void *file) {
  (void)file;
  for (int i = 0; i < model.process_count; i++)
    if (model.processes[i]->waits && model.processes[i]->now_ns > model.current->now_ns + WAKE_NS)
      model.processes[i]->now_ns = model.current->now_ns + WAKE_NS;
}

static bool read_file(void *file, void *to, size_t size, size_t at) {
  model_pass_time(SYSTEM_CALL_NS);
  memcpy(to, (char *)file + at, size);
  return true;
}

static void write_file(void *file, const void *from, size_t size, size_t at) {
  model_pass_time(SYSTEM_CALL_NS);
  memcpy((char *)file + at, from, size);
}

static bool is_held(void *file, int slot) {
  (void)file;
  model_pass_time(SYSTEM_CALL_NS);
  return slot < model.process_count ? !model.processes[slot]->dead : model.strangers_hold_slots;
}

const struct turns_system model_turns_system = {model_clock_ns, read_file, write_file, is_held, wait_on, wake_all};
