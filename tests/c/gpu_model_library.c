/* The library in a process, as its hooks use the meter: stream/meters.c, cuda/launch.c and cuda/sync.c without CUDA. */
#include "gpu_model_parts.h"

/* Reads the terms as stream/meters.c does. */
static struct meter_terms terms_of(const void *owner) {
  struct meter *meter = (struct meter *)owner;
  const struct model_container *container = &model.containers[meter->turns.slot >= 0 ? model.current->container : 0];
  struct meter_terms terms = {.percents = {container->percent}, .paused = container->paused};
  if (container->policy == VGPU_SM_OFF) {
    terms.percents[0] = VGPU_NO_SM_LIMIT;
    terms.yields = true;
    return terms;
  }
  const struct turns_terms own = {container->percent, (uint16_t)container->policy, (uint16_t)container->priority};
  terms.takes_turns = true;
  terms.is_apart = container->policy == VGPU_SM_APART;
  terms.yields = container->policy == VGPU_SM_BURST || container->percent >= VGPU_NO_SM_LIMIT;
  terms.percents[0] = turns_share_percent(&meter->turns, &own);
  return terms;
}

void library_begin(struct model_process *process) {
  for (int g = 0; g < MODEL_GPUS; g++) {
    struct model_container *container = &model.containers[process->container];
    struct meter *meter = &process->meters[g];
    container->state[g].memory = &container->device[g];
    container->device[g].uuid[0] = 'G';
    container->states[g] = &container->state[g];
    meter_init(meter, &model_driver, terms_of, meter);
    meter_add_bucket(meter, &container->state[g], container->states);
    meter->takes_turns = true;
    meter->others = process->made_meters;
    container->is_there = true;
    process->files[g] = (struct model_files){g, process->container, &meter->turns};
    turns_begin(&meter->turns, &model_turns_system, &process->files[g], process->slot);
    process->refresh_at_ns[g] = 0;
    process->made_meters[g] = NULL;
    process->company[g] = process->measured[g] = false;
    for (int s = 0; s < MODEL_STREAMS; s++)
      process->streams[g][s] = NULL;
  }
}

/* ---- is it measured? --------------------------------------------------------------------------------------------- */

/* Closes all, as stream/meters.c does: open batches would grow with work that is not measured. */
static void leave_off(struct meter *meter) {
  meter_close_all(meter);
  meter_harvest(meter);
}

static bool is_limited(const struct model_container *container) {
  return container->paused || (container->policy != VGPU_SM_OFF && container->percent < VGPU_NO_SM_LIMIT);
}

/* Decides as stream/meters.c does: without a limit, and alone, nothing is measured. */
static bool is_measured(struct model_process *process, int gpu) {
  const struct model_container *container = &model.containers[process->container];
  struct turns *turns = &process->meters[gpu].turns;
  if (model.current->now_ns >= process->refresh_at_ns[gpu]) {
    process->refresh_at_ns[gpu] = model.current->now_ns + TURNS_KNOWN_NS;
    bool was_measured = process->measured[gpu];
    process->company[gpu] = false;
    if (container->policy != VGPU_SM_OFF) {
      (void)meter_terms(&process->meters[gpu]); /* publishes them */
      turns_note_presence(turns);
      process->company[gpu] = turns_refresh(turns).another_tenant;
    }
    process->measured[gpu] = process->company[gpu] || is_limited(container);
    if (was_measured && !process->measured[gpu])
      leave_off(&process->meters[gpu]);
  }
  return is_limited(container) || process->company[gpu];
}

/* ---- around the calls of the program ----------------------------------------------------------------------------- */

/* Makes a meter when something is launched on its GPU, as stream/meters.c does. */
static void note_made(struct model_process *process, struct meter *meter) {
  for (int i = 0; i < MODEL_GPUS; i++) {
    struct meter *_Atomic *place = &process->made_meters[i];
    if (*place == NULL)
      *place = meter;
    if (*place == meter)
      return;
  }
}

bool library_before_launch(struct model_process *process, int gpu, int stream, uint64_t work) {
  struct model_process *of = process->of;
  struct meter *meter = &of->meters[gpu];
  struct meter_stream **place = &of->streams[gpu][stream];
  if (!is_measured(of, gpu))
    return false;
  if (*place == NULL) {
    *place = meter_add_stream(meter, meter, place);
    note_made(of, meter);
  }
  return *place != NULL && meter_launch(*place, work, meter->driver->now_ns());
}

void library_after_launch(struct model_process *process, int gpu, int stream) {
  meter_launched(process->of->streams[gpu][stream]);
}

void library_before_wait(struct model_process *process, int gpu, int stream) {
  if (process->of->streams[gpu][stream] != NULL)
    meter_before_wait(process->of->streams[gpu][stream]);
}

void library_after_wait(struct model_process *process, int gpu, int stream) {
  if (process->of->streams[gpu][stream] != NULL)
    meter_after_wait(process->of->streams[gpu][stream], METER_STREAM_IS_IDLE, model_clock_ns());
}

void library_before_wait_all(struct model_process *process, int gpu) {
  meter_before_wait_all(&process->of->meters[gpu]);
}

void library_after_wait_all(struct model_process *process, int gpu) {
  meter_after_wait_all(&process->of->meters[gpu], model_clock_ns());
}

void library_after_poll(struct model_process *process, int gpu, bool is_done) {
  if (is_done)
    meter_after_poll(&process->of->meters[gpu]);
}

void library_forget_stream(struct model_process *process, int gpu, int stream) {
  if (process->of->streams[gpu][stream] != NULL)
    meter_remove_stream(process->of->streams[gpu][stream]);
  process->of->streams[gpu][stream] = NULL;
}
