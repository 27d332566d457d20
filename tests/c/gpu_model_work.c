/* The GPUs: whose work runs when, and how far it is. */
#include "check.h"
#include "gpu_model_parts.h"

#include <stdlib.h>

static struct item *next_item(const struct gpu *gpu, int process) {
  struct queue *queue = &model.processes[process]->queues[gpu - model.gpus];
  struct item *item = queue->tail == queue->head ? NULL : &queue->items[queue->tail % MODEL_QUEUE];
  return item != NULL && item->arrives_ns <= gpu->now_ns ? item : NULL;
}

static void finish(struct gpu *gpu, int process) {
  struct queue *queue = &model.processes[process]->queues[gpu - model.gpus];
  queue->pending[queue->items[queue->tail % MODEL_QUEUE].stream]--;
  queue->tail++;
}

static void reach_markers(struct gpu *gpu, int process) {
  struct item *item;
  bool reached = false;
  while ((item = next_item(gpu, process)) != NULL && item->marker != NULL) {
    item->marker->at_ns = gpu->now_ns;
    if (item->marker->orphan)
      free(item->marker);
    finish(gpu, process);
    reached = true;
  }
  if (reached && item != NULL && process == gpu->running)
    gpu->now_ns += MODEL_MARKER_NS;
}

/* Of those with work the next one, to which the GPU switches. */
static int next_with_work(struct gpu *gpu, int64_t switch_ns) {
  int first = gpu->running;
  for (int i = 1; i <= model.process_count; i++) {
    int process = (first + i + model.process_count) % model.process_count;
    if (next_item(gpu, process) == NULL)
      continue;
    if (process != gpu->running) {
      gpu->now_ns += gpu->running >= 0 ? switch_ns : 0;
      gpu->running = process;
    }
    reach_markers(gpu, process);
    if (next_item(gpu, process) != NULL)
      return process;
  }
  return -1;
}

static int64_t next_arrival_ns(const struct gpu *gpu, int64_t until_ns) {
  for (int i = 0; i < model.process_count; i++) {
    const struct queue *queue = &model.processes[i]->queues[gpu - model.gpus];
    if (queue->tail != queue->head && queue->items[queue->tail % MODEL_QUEUE].arrives_ns < until_ns)
      until_ns = queue->items[queue->tail % MODEL_QUEUE].arrives_ns;
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
  int chosen = next_with_work(gpu, goes_on ? MODEL_SWITCH_NS : MODEL_HAND_OVER_NS);
  gpu->slice_left_ns = MODEL_SLICE_NS;
  return chosen;
}

static void run_item(struct gpu *gpu, int process, int64_t until_ns) {
  struct item *item = next_item(gpu, process);
  if (item->spin != 0) {
    gpu->spin_began[item->spin - 1] = true;
    if (model.gpus[1 - (gpu - model.gpus)].spin_began[item->spin - 1])
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
  model.processes[process]->worked_ns += step_ns;
  if (item->left_ns == 0)
    finish(gpu, process);
}

void model_advance(struct gpu *gpu, int64_t until_ns) {
  while (gpu->now_ns < until_ns) {
    int process = choose(gpu);
    if (process >= 0)
      run_item(gpu, process, until_ns);
    else if (gpu->now_ns < until_ns)
      gpu->now_ns = next_arrival_ns(gpu, until_ns);
  }
  bool busy = gpu->running >= 0 && next_item(gpu, gpu->running) != NULL;
  for (int i = 0; i < model.process_count; i++)
    if (!busy || i == gpu->running) /* also a marker waits for the slice of another to end */
      reach_markers(gpu, i);
}

void model_advance_all(void) {
  for (int i = 0; i < MODEL_GPUS; i++)
    model_advance(&model.gpus[i], model.current->now_ns);
}

void model_enqueue(struct model_process *process, int gpu, struct item item) {
  struct queue *queue = &process->queues[gpu];
  model_advance(&model.gpus[gpu], process->now_ns);
  CHECK(queue->head - queue->tail < MODEL_QUEUE, "process %d launches without end", process->slot);
  item.arrives_ns = process->now_ns;
  queue->items[queue->head++ % MODEL_QUEUE] = item;
  queue->pending[item.stream]++;
}
