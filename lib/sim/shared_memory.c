#include "shared_memory.h"

#include <string.h>

#include "state.h"

static struct state_shared *find(struct state *state, uint64_t id) {
  for (unsigned i = 0; id && i < STATE_MAX_SHARED; i++)
    if (state->shared[i].id == id && state_slot_is_live(state->shared[i].payer))
      return &state->shared[i];
  return NULL;
}

/* A row whose payer has died is free: the memory went with it. */
static struct state_shared *find_free(struct state *state) {
  for (unsigned i = 0; i < STATE_MAX_SHARED; i++)
    if (!state->shared[i].id || !state_slot_is_live(state->shared[i].payer))
      return &state->shared[i];
  return NULL;
}

uint64_t shared_memory_new(struct shared_memory memory) {
  if (!state_make_room(offsetof(struct state, last_shared_id),
                       sizeof(struct state) - offsetof(struct state, last_shared_id)))
    return 0;
  struct state *state = state_lock();
  struct state_shared *row = find_free(state);
  uint64_t id = row ? ++state->last_shared_id : 0;
  if (row)
    *row = (struct state_shared){.id = id,
                                 .size_bytes = memory.size_bytes,
                                 .charged_bytes = memory.charged_bytes,
                                 .device_row = state_row(memory.device),
                                 .payer = state_own_slot()};
  state_unlock();
  return id;
}

static bool find_device(uint32_t row, unsigned *device) {
  for (*device = 0; *device < sim_config.device_count; ++*device)
    if (state_row(*device) == row)
      return true;
  return false;
}

bool shared_memory_import(uint64_t id, enum shared_by by, struct shared_memory *memory) {
  struct state_shared *row = find(state_lock(), id);
  bool found = row && (by == SHARED_BY_ANYONE || row->payer != state_own_slot()) &&
               find_device(row->device_row, &memory->device);
  if (found) {
    memory->size_bytes = row->size_bytes;
    memory->charged_bytes = row->charged_bytes;
    row->importers++;
    row->last_importer = state_own_slot();
  }
  state_unlock();
  return found;
}

static _Atomic uint64_t *used_by(struct state *state, const struct state_shared *row, uint32_t slot) {
  return &state->processes[slot].devices[row->device_row].used_bytes;
}

void shared_memory_end_import(uint64_t id) {
  struct state *state = state_lock();
  struct state_shared *row = find(state, id);
  if (row && --row->importers == 0 && row->given_up) {
    atomic_fetch_sub(used_by(state, row, row->payer), row->charged_bytes);
    memset(row, 0, sizeof *row);
  }
  state_unlock();
}

bool shared_memory_give_up(uint64_t id) {
  struct state *state = state_lock();
  struct state_shared *row = find(state, id);
  bool passed_on = row && row->importers && state_slot_is_live(row->last_importer);
  if (passed_on) {
    atomic_fetch_add(used_by(state, row, row->last_importer), row->charged_bytes);
    atomic_fetch_sub(used_by(state, row, row->payer), row->charged_bytes);
    row->payer = row->last_importer;
    row->given_up = true;
  } else if (row) {
    memset(row, 0, sizeof *row);
  }
  state_unlock();
  return passed_on;
}
