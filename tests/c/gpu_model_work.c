/* The GPUs: whose work runs when, and how far it is. */
#include "check.h"
#include "gpu_model_parts.h"

#include <stdlib.h>
#include <string.h>

#define SPIN_POLL_INTERVAL_NS (10 * US) /* at its flag */

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static struct queue *queue_of(const struct gpu *gpu, int process) {
  return &model.processes[process]->queues[gpu - model.gpus];
}

/* ---- lanes: the streams of a process ----------------------------------------------------------------------------- */

static struct item *first_of(const struct lane *lane) {
  return &lane->items[lane->tail % MODEL_QUEUE];
}

/* The next one with items, beginning there, or -1. */
static int next_busy(const struct queue *queue, int from) {
  for (int word = from / 64; word < MODEL_STREAMS / 64; word++, from = word * 64) {
    uint64_t busy = queue->busy[word] >> from % 64;
    if (busy != 0)
      return from + __builtin_ctzll(busy);
  }
  return -1;
}

#define EACH_BUSY(stream, queue)                                                                                       \
  int stream = next_busy(queue, 0);                                                                                    \
  stream >= 0;                                                                                                         \
  stream = next_busy(queue, stream + 1)

static void finish_first(struct queue *queue, int stream) {
  struct lane *lane = &queue->lanes[stream];
  lane->tail++;
  queue->pending--;
  if (lane->tail == lane->head)
    queue->busy[stream / 64] &= ~(1ULL << stream % 64);
}

static void reach_markers(struct gpu *gpu, int process) {
  struct queue *queue = queue_of(gpu, process);
  for (EACH_BUSY(stream, queue)) {
    struct lane *lane = &queue->lanes[stream];
    while (lane->tail != lane->head) {
      struct item *item = first_of(lane);
      if (item->marker == NULL || item->arrives_ns > gpu->now_ns)
        break;
      item->marker->at_ns = gpu->now_ns;
      if (item->marker->orphan)
        free(item->marker);
      finish_first(queue, stream);
      lane->free_from_ns = gpu->now_ns + MODEL_MARKER_NS;
    }
  }
}

static bool has_arrived(const struct gpu *gpu, const struct lane *lane) {
  return first_of(lane)->arrives_ns <= gpu->now_ns;
}

/* Also what waits behind a marker keeps the GPU. */
static bool has_work(const struct gpu *gpu, int process) {
  const struct queue *queue = queue_of(gpu, process);
  for (EACH_BUSY(stream, queue))
    if (has_arrived(gpu, &queue->lanes[stream]))
      return true;
  return false;
}

/* ---- who runs ---------------------------------------------------------------------------------------------------- */

/* The next one that has work, to which the GPU switches. */
static int next_with_work(struct gpu *gpu, int64_t switch_ns) {
  int first = gpu->running;
  for (int i = 1; i <= model.process_count; i++) {
    int process = (first + i + model.process_count) % model.process_count;
    if (!has_work(gpu, process))
      continue;
    if (process != gpu->running) {
      gpu->now_ns += gpu->running >= 0 ? switch_ns : 0;
      gpu->running = process;
    }
    reach_markers(gpu, process);
    if (has_work(gpu, process))
      return process;
  }
  return -1;
}

/* Chooses the process that runs: the one that runs goes on until its slice ends, and beyond that unless another has
 * work. */
static int choose(struct gpu *gpu) {
  if (gpu->running >= 0)
    reach_markers(gpu, gpu->running);
  bool goes_on = gpu->running >= 0 && has_work(gpu, gpu->running);
  if (goes_on && gpu->slice_left_ns > 0)
    return gpu->running;
  int chosen = next_with_work(gpu, goes_on ? MODEL_SWITCH_NS : MODEL_HAND_OVER_NS);
  gpu->slice_left_ns = MODEL_SLICE_NS;
  return chosen;
}

static int64_t next_arrival_ns(const struct gpu *gpu, int64_t until_ns) {
  for (int i = 0; i < model.process_count; i++) {
    const struct queue *queue = queue_of(gpu, i);
    for (EACH_BUSY(stream, queue))
      until_ns = least(until_ns, first_of(&queue->lanes[stream])->arrives_ns);
  }
  return until_ns;
}

/* ---- what runs --------------------------------------------------------------------------------------------------- */

struct running {
  int streams[MODEL_STREAMS];
  int count;
  int64_t step_ns; /* until something changes */
};

/* All narrow ones, and of those that fill the GPU the one that was launched first. */
static void find_running(const struct gpu *gpu, const struct queue *queue, struct running *running) {
  int filling = -1;
  running->count = 0;
  running->step_ns = INT64_MAX;
  for (EACH_BUSY(stream, queue)) {
    const struct lane *lane = &queue->lanes[stream];
    const struct item *item = first_of(lane);
    int64_t from_ns = item->arrives_ns > lane->free_from_ns ? item->arrives_ns : lane->free_from_ns;
    if (from_ns > gpu->now_ns)
      running->step_ns = least(running->step_ns, from_ns - gpu->now_ns);
    else if (item->narrow)
      running->streams[running->count++] = stream;
    else if (filling < 0 || item->number < first_of(&queue->lanes[filling])->number)
      filling = stream;
  }
  if (filling >= 0)
    running->streams[running->count++] = filling;
}

static bool spins(const struct item *item) {
  return item->awaits != 0 && !model.flags[item->awaits];
}

static void run(struct gpu *gpu, int process, int64_t until_ns) {
  struct queue *queue = queue_of(gpu, process);
  struct running running;
  find_running(gpu, queue, &running);
  for (int i = 0; i < running.count; i++)
    model.flags[first_of(&queue->lanes[running.streams[i]])->raises] = true;
  for (int i = 0; i < running.count; i++) {
    const struct item *item = first_of(&queue->lanes[running.streams[i]]);
    running.step_ns = least(running.step_ns, spins(item) ? SPIN_POLL_INTERVAL_NS : item->left_ns);
  }
  int64_t step_ns = least(least(running.step_ns, gpu->slice_left_ns), until_ns - gpu->now_ns);
  if (step_ns < 0)
    step_ns = 0;
  gpu->now_ns += step_ns;
  if (running.count > 0) {
    gpu->slice_left_ns -= step_ns;
    model.processes[process]->worked_ns += step_ns;
  }
  for (int i = 0; i < running.count; i++) {
    struct item *item = first_of(&queue->lanes[running.streams[i]]);
    if (spins(item))
      continue;
    item->left_ns -= step_ns;
    if (item->left_ns <= 0)
      finish_first(queue, running.streams[i]);
  }
}

/* ---- how far it is ----------------------------------------------------------------------------------------------- */

static void step(struct gpu *gpu, int64_t until_ns) {
  int process = choose(gpu);
  if (process >= 0)
    run(gpu, process, until_ns);
  else if (gpu->now_ns < until_ns)
    gpu->now_ns = next_arrival_ns(gpu, until_ns);
}

/* Work on one GPU that waits for the other sees it in time: the one that is behind goes on. */
void model_advance(int64_t until_ns) {
  struct gpu *behind = model.gpus;
  while (behind->now_ns < until_ns) {
    step(behind, until_ns);
    for (int g = 0; g < MODEL_GPUS; g++)
      if (model.gpus[g].now_ns < behind->now_ns)
        behind = &model.gpus[g];
  }
  for (struct gpu *gpu = model.gpus; gpu < model.gpus + MODEL_GPUS; gpu++) {
    bool busy = gpu->running >= 0 && has_work(gpu, gpu->running);
    for (int i = 0; i < model.process_count; i++)
      if (!busy || i == gpu->running) /* also a marker waits for the slice of another to end */
        reach_markers(gpu, i);
  }
}

void model_enqueue(struct model_process *process, int gpu, int stream, struct item item) {
  struct queue *queue = &process->of->queues[gpu];
  struct lane *lane = &queue->lanes[stream];
  model_advance(process->now_ns);
  CHECK(lane->head - lane->tail < MODEL_QUEUE, "process %d launches without end", process->slot);
  if (lane->items == NULL)
    lane->items = calloc(MODEL_QUEUE, sizeof *lane->items);
  item.arrives_ns = process->now_ns;
  item.number = queue->launched++;
  lane->items[lane->head++ % MODEL_QUEUE] = item;
  queue->busy[stream / 64] |= 1ULL << stream % 64;
  queue->pending++;
}

uint32_t model_pending(const struct model_process *process, int gpu, int stream) {
  const struct lane *lane = &process->of->queues[gpu].lanes[stream];
  return lane->head - lane->tail;
}

void model_drop(struct model_process *process, int64_t now_ns) {
  model_advance(now_ns);
  for (int g = 0; g < MODEL_GPUS; g++) {
    struct queue *queue = &process->queues[g];
    for (int s = 0; s < MODEL_STREAMS; s++)
      queue->lanes[s].tail = queue->lanes[s].head;
    memset(queue->busy, 0, sizeof queue->busy);
    queue->pending = 0;
    if (model.gpus[g].running == process->slot)
      model.gpus[g].running = -1;
  }
}
