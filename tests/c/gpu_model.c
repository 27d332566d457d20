#include "gpu_model.h"

#include "check.h"

#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define START_NS (5000 * S)
#define STACK_BYTES (256 * 1024)
#define QUEUE 65536
#define SPINS 4096
#define HOST_LAUNCH_NS (3 * US)
#define SYSTEM_CALL_NS 600
#define LOOK_NS (10 * MS) /* as meters.c looks */
#define WAKE_NS (30 * US) /* from a futex's wake-up to the woken thread */
#define POLL_NS (5 * US)  /* how exactly a synchronisation sees the end of what it waits for */

struct marker {
  int64_t at_ns; /* 0: not reached */
  bool orphan;
};

struct item {
  int64_t arrives_ns, left_ns;
  int stream;
  struct marker *marker; /* instead of work */
  int spin;              /* number + 1 of a kernel that waits for its counterpart */
};

struct queue {
  struct item items[QUEUE];
  uint32_t head, tail;
  uint32_t pending[MODEL_STREAMS];
};

struct model_process {
  int slot, container;
  model_program *program;
  const void *argument;
  ucontext_t context;
  char *stack;
  int64_t now_ns;
  bool dead;
  bool waits; /* on a futex */
  struct meter meters[MODEL_GPUS];
  struct meter_stream *streams[MODEL_GPUS][MODEL_STREAMS];
  struct queue queues[MODEL_GPUS];
  int64_t worked_ns, longest_launch_ns;
  int64_t look_at_ns[MODEL_GPUS]; /* for company */
  bool company[MODEL_GPUS];
};

struct gpu {
  int64_t now_ns;
  int running; /* a process, or -1 */
  int64_t slice_left_ns;
  struct turns_file turns;
  bool spin_began[SPINS];
};

static struct gpu gpus[MODEL_GPUS];
static struct model_container containers[MODEL_CONTAINERS];
static struct model_process *processes[MODEL_PROCESSES];
static int process_count;
static struct model_process *current;
static ucontext_t scheduler;
static unsigned random_state;
static bool file_is_locked;
static int64_t run_until_ns;

/* ---- the GPU --------------------------------------------------------------------------------------------------- */

static struct item *next_item(const struct gpu *gpu, int process) {
  struct queue *queue = &processes[process]->queues[gpu - gpus];
  struct item *item = queue->tail == queue->head ? NULL : &queue->items[queue->tail % QUEUE];
  return item != NULL && item->arrives_ns <= gpu->now_ns ? item : NULL;
}

static void finish(struct gpu *gpu, int process) {
  struct queue *queue = &processes[process]->queues[gpu - gpus];
  queue->pending[queue->items[queue->tail % QUEUE].stream]--;
  queue->tail++;
}

static void reach_markers(struct gpu *gpu, int process) {
  struct item *item;
  while ((item = next_item(gpu, process)) != NULL && item->marker != NULL) {
    item->marker->at_ns = gpu->now_ns;
    if (item->marker->orphan)
      free(item->marker);
    finish(gpu, process);
  }
}

static int next_with_work(struct gpu *gpu) {
  for (int i = 1; i <= process_count; i++) {
    int process = (gpu->running + i + process_count) % process_count;
    reach_markers(gpu, process);
    if (next_item(gpu, process) != NULL)
      return process;
  }
  return -1;
}

static int64_t next_arrival_ns(const struct gpu *gpu, int64_t until_ns) {
  for (int i = 0; i < process_count; i++) {
    const struct queue *queue = &processes[i]->queues[gpu - gpus];
    if (queue->tail != queue->head && queue->items[queue->tail % QUEUE].arrives_ns < until_ns)
      until_ns = queue->items[queue->tail % QUEUE].arrives_ns;
  }
  return until_ns;
}

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* One with work of its own goes on until its slice ends, and then also, unless another has work. */
static int choose(struct gpu *gpu) {
  if (gpu->running >= 0)
    reach_markers(gpu, gpu->running);
  bool goes_on = gpu->running >= 0 && next_item(gpu, gpu->running) != NULL;
  if (goes_on && gpu->slice_left_ns > 0)
    return gpu->running;
  int chosen = next_with_work(gpu);
  gpu->slice_left_ns = MODEL_SLICE_NS;
  if (chosen >= 0 && chosen != gpu->running) {
    gpu->now_ns += goes_on ? MODEL_SWITCH_NS : 0;
    gpu->running = chosen;
  }
  return chosen;
}

static void run_item(struct gpu *gpu, int process, int64_t until_ns) {
  struct item *item = next_item(gpu, process);
  if (item->spin != 0) {
    gpu->spin_began[item->spin - 1] = true;
    if (gpus[1 - (gpu - gpus)].spin_began[item->spin - 1])
      item->left_ns = least(item->left_ns, US);
  }
  int64_t step_ns = least(least(item->left_ns, gpu->slice_left_ns), until_ns - gpu->now_ns);
  if (item->spin != 0)
    step_ns = least(step_ns, 10 * US); /* and looks again */
  if (step_ns < 0)
    step_ns = 0;
  gpu->now_ns += step_ns;
  gpu->slice_left_ns -= step_ns;
  item->left_ns -= step_ns;
  processes[process]->worked_ns += step_ns;
  if (item->left_ns == 0)
    finish(gpu, process);
}

static void advance(struct gpu *gpu, int64_t until_ns) {
  while (gpu->now_ns < until_ns) {
    int process = choose(gpu);
    if (process >= 0)
      run_item(gpu, process, until_ns);
    else
      gpu->now_ns = next_arrival_ns(gpu, until_ns);
  }
  for (int i = 0; i < process_count; i++)
    reach_markers(gpu, i);
}

static void enqueue(struct model_process *process, int gpu, struct item item) {
  struct queue *queue = &process->queues[gpu];
  advance(&gpus[gpu], process->now_ns);
  CHECK(queue->head - queue->tail < QUEUE, "process %d launches without end", process->slot);
  item.arrives_ns = process->now_ns;
  queue->items[queue->head++ % QUEUE] = item;
  queue->pending[item.stream]++;
}

/* ---- time ------------------------------------------------------------------------------------------------------ */

static struct model_process *earliest(void) {
  struct model_process *found = NULL;
  for (int i = 0; i < process_count; i++)
    if (!processes[i]->dead && (found == NULL || processes[i]->now_ns < found->now_ns))
      found = processes[i];
  return found;
}

static void pass_time(int64_t duration_ns) {
  if (current == NULL) /* before the run */
    return;
  current->now_ns += duration_ns;
  if (current->now_ns >= run_until_ns || earliest() != current)
    swapcontext(&current->context, &scheduler);
}

static int64_t now(void) {
  pass_time(25);
  return current->now_ns;
}

/* Linux' timer slack and the way back. */
static int64_t oversleep_ns(void) {
  random_state = random_state * 1103515245 + 12345;
  return 50 * US + (random_state >> 16) % (20 * US);
}

static void sleep_for(int64_t duration_ns) {
  pass_time(duration_ns + oversleep_ns());
}

static void wait_on(void *file, uint32_t expected, int64_t duration_ns) {
  if (((struct turns_file *)file)->head.wake != expected)
    return;
  current->waits = true;
  sleep_for(duration_ns);
  current->waits = false;
}

static void wake_all(void *file) {
  (void)file;
  for (int i = 0; i < process_count; i++)
    if (processes[i]->waits && processes[i]->now_ns > current->now_ns + WAKE_NS)
      processes[i]->now_ns = current->now_ns + WAKE_NS;
}

static bool read_file(void *file, void *to, size_t size, size_t at) {
  pass_time(SYSTEM_CALL_NS);
  memcpy(to, (char *)file + at, size);
  return true;
}

static void write_file(void *file, const void *from, size_t size, size_t at) {
  pass_time(SYSTEM_CALL_NS);
  memcpy((char *)file + at, from, size);
}

static bool lock_file(void *file) {
  (void)file;
  if (file_is_locked)
    return false;
  return file_is_locked = true;
}

static void unlock_file(void *file) {
  (void)file;
  file_is_locked = false;
}

static bool is_held(void *file, int slot) {
  (void)file;
  return !processes[slot]->dead;
}

static const struct turns_system turns_system = {now,         sleep_for, read_file, write_file, lock_file,
                                                 unlock_file, is_held,   wait_on,   wake_all};

/* ---- the driver ------------------------------------------------------------------------------------------------- */

/* A stream's handle is its meter_stream's place in the process: that tells the GPU and the number. */
static void find(void *handle, int *gpu, int *stream) {
  struct meter_stream **place = handle;
  *gpu = (int)((place - &current->streams[0][0]) / MODEL_STREAMS);
  *stream = (int)((place - &current->streams[0][0]) % MODEL_STREAMS);
}

static void *record(void *handle) {
  int gpu, stream;
  find(handle, &gpu, &stream);
  pass_time(US);
  struct marker *marker = calloc(1, sizeof *marker);
  enqueue(current, gpu, (struct item){.stream = stream, .marker = marker});
  return marker;
}

static void recycle(void *marker_) {
  struct marker *marker = marker_;
  if (marker->at_ns == 0)
    marker->orphan = true;
  else
    free(marker);
}

static void advance_all(void) {
  for (int i = 0; i < MODEL_GPUS; i++)
    advance(&gpus[i], current->now_ns);
}

static enum meter_state query(void *marker) {
  pass_time(200);
  advance_all();
  return ((struct marker *)marker)->at_ns != 0 ? METER_DONE : METER_PENDING;
}

/* As cuEventElapsedTime answers. */
static bool elapsed(void *start, void *end, int64_t *elapsed_ns) {
  float milliseconds = (float)((double)(((struct marker *)end)->at_ns - ((struct marker *)start)->at_ns) / 1e6);
  *elapsed_ns = (int64_t)((double)milliseconds * 1e6);
  return true;
}

static bool is_capturing(void *handle) {
  (void)handle;
  return false;
}

static bool is_idle(void *handle) {
  int gpu, stream;
  find(handle, &gpu, &stream);
  pass_time(200);
  advance(&gpus[gpu], current->now_ns);
  return current->queues[gpu].pending[stream] == 0;
}

static bool is_here(void *context, void *thread) {
  (void)context, (void)thread;
  return true;
}

static const struct meter_driver driver = {now,     sleep_for,    record,  recycle, query,
                                           elapsed, is_capturing, is_idle, is_here};

/* ---- processes -------------------------------------------------------------------------------------------------- */

/* As meters.c does it. */
static struct meter_terms terms_of(const void *owner) {
  const struct meter *meter = owner;
  const struct model_container *container = &containers[meter->turns.slot >= 0 ? current->container : 0];
  struct meter_terms terms = {.percent = container->percent, .takes_turns = true, .paused = container->paused};
  const struct turns_terms published = {.tenant = (uint64_t)current->container + 1,
                                        .percent = container->percent,
                                        .policy = (uint16_t)container->policy,
                                        .priority = (uint16_t)container->priority};
  turns_set_terms((struct turns *)&meter->turns, &published);
  terms.yields = container->policy == VGPU_SM_BURST || container->percent >= VGPU_NO_SM_LIMIT;
  terms.percent = turns_share_percent((struct turns *)&meter->turns, &published);
  return terms;
}

static void begin(void) {
  struct model_process *process = current;
  process->program(process);
  process->dead = true;
  swapcontext(&process->context, &scheduler);
}

struct model_process *model_start(int container, model_program *program, const void *argument, int64_t begin_ns) {
  CHECK(process_count < MODEL_PROCESSES, "%d processes", process_count);
  struct model_process *process = calloc(1, sizeof *process);
  *process = (struct model_process){.slot = process_count, .container = container, .program = program};
  process->argument = argument;
  process->now_ns = START_NS + begin_ns;
  process->stack = malloc(STACK_BYTES);
  for (int g = 0; g < MODEL_GPUS; g++) {
    struct meter *meter = &process->meters[g];
    meter_init(meter, &driver, &containers[container].device[g], containers[container].percent);
    meter->terms = terms_of;
    meter->owner = meter;
    meter->takes_turns = true;
    turns_begin(&meter->turns, &turns_system, &gpus[g].turns, process->slot);
    for (int s = 0; s < MODEL_STREAMS; s++)
      process->streams[g][s] = meter_add_stream(meter, meter, &process->streams[g][s], NULL);
  }
  processes[process_count++] = process;
  getcontext(&process->context);
  process->context.uc_stack.ss_sp = process->stack;
  process->context.uc_stack.ss_size = STACK_BYTES;
  makecontext(&process->context, begin, 0);
  return process;
}

void model_run(int64_t until_ns) {
  run_until_ns = START_NS + until_ns;
  while ((current = earliest()) != NULL && current->now_ns < run_until_ns)
    swapcontext(&scheduler, &current->context);
  current = NULL;
}

void model_kill(struct model_process *process) {
  process->dead = true;
  file_is_locked = false; /* the kernel gives it back */
  for (int g = 0; g < MODEL_GPUS; g++) {
    struct queue *queue = &process->queues[g];
    queue->tail = queue->head;
    memset(queue->pending, 0, sizeof queue->pending);
    if (gpus[g].running == process->slot)
      gpus[g].running = -1;
  }
}

void model_stop(struct model_process *process, int64_t until_ns) {
  process->now_ns = START_NS + until_ns;
  process->waits = false; /* a wake-up does not reach it */
}

void model_start_over(unsigned seed) {
  for (int i = 0; i < process_count; i++) {
    free(processes[i]->stack); /* what its meters hold is kept until the test ends */
    free(processes[i]);
  }
  process_count = 0;
  current = NULL;
  file_is_locked = false;
  memset(gpus, 0, sizeof gpus);
  memset(containers, 0, sizeof containers);
  for (int g = 0; g < MODEL_GPUS; g++) {
    gpus[g].now_ns = START_NS;
    gpus[g].running = -1;
  }
  random_state = seed;
}

struct model_container *model_container(int number) {
  return &containers[number];
}

bool model_holds_turn(const struct model_process *process) {
  return (gpus[0].turns.head.turn & 0xffff) == (uint64_t)process->slot + 1;
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

/* ---- programs --------------------------------------------------------------------------------------------------- */

const void *model_argument(const struct model_process *process) {
  return process->argument;
}

int64_t model_now_ns(const struct model_process *process) {
  return process->now_ns - START_NS;
}

/* As meters.c finds it: without a limit, and alone, nothing is measured. */
static bool is_measured(struct model_process *process, int gpu) {
  const struct model_container *container = &containers[process->container];
  struct turns *turns = &process->meters[gpu].turns;
  if (process->now_ns >= process->look_at_ns[gpu]) {
    process->look_at_ns[gpu] = process->now_ns + LOOK_NS;
    (void)meter_terms(&process->meters[gpu]); /* publishes them */
    turns_note_presence(turns);
    bool before = process->company[gpu];
    process->company[gpu] = turns_have_another_tenant(turns);
    if (process->company[gpu] && !before && container->percent >= VGPU_NO_SM_LIMIT)
      meter_begin_measuring(&process->meters[gpu]);
  }
  return container->percent < VGPU_NO_SM_LIMIT || container->paused || process->company[gpu];
}

static void launch(struct model_process *process, int gpu, uint64_t work, struct item item) {
  int64_t began_ns = process->now_ns;
  struct meter_stream *stream = process->streams[gpu][item.stream];
  bool metered = is_measured(process, gpu) && meter_launch(stream, work);
  pass_time(HOST_LAUNCH_NS);
  enqueue(process, gpu, item);
  if (metered)
    meter_launched(stream);
  if (process->now_ns - began_ns > process->longest_launch_ns)
    process->longest_launch_ns = process->now_ns - began_ns;
  while (process->queues[gpu].pending[item.stream] > 1000) { /* the driver's own queue is full */
    pass_time(POLL_NS);
    advance(&gpus[gpu], process->now_ns);
  }
}

void model_launch(struct model_process *process, int gpu, int stream, int64_t duration_ns) {
  launch(process, gpu, (uint64_t)duration_ns, (struct item){.stream = stream, .left_ns = duration_ns});
}

void model_launch_spin(struct model_process *process, int gpu, int number) {
  CHECK(number < SPINS, "%d", number);
  launch(process, gpu, 1, (struct item){.left_ns = MODEL_ENDLESS_NS, .spin = number + 1});
}

void model_synchronize(struct model_process *process, int gpu) {
  struct meter *meter = &process->meters[gpu];
  const uint32_t *pending = process->queues[gpu].pending;
  meter_before_wait_all(meter);
  advance_all();
  while (pending[0] + pending[1] + pending[2] + pending[3] > 0) {
    pass_time(POLL_NS);
    advance_all();
  }
  meter_after_wait_all(meter);
  meter_harvest(meter);
}

void model_think(struct model_process *process, int64_t duration_ns) {
  (void)process;
  pass_time(duration_ns);
}
