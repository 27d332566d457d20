#include "pieces.h"

#define PIECE (1ULL << 62)
#define COPY (1ULL << 61)
#define NUMBER_BITS 50
#define NUMBER_MASK ((1ULL << NUMBER_BITS) - 1)
#define LONG_AGO_NS 1

uint64_t piece_name(unsigned row, uint64_t number, bool is_copy) {
  return PIECE | (is_copy ? COPY : 0) | (uint64_t)row << NUMBER_BITS | number;
}

bool time_is_piece(uint64_t time_ns) {
  return time_ns >> 62 == 1;
}

bool time_is_copy(uint64_t time_ns) {
  return time_is_piece(time_ns) && time_ns & COPY;
}

unsigned piece_row(uint64_t name) {
  return (unsigned)(name >> NUMBER_BITS) % STATE_MAX_QUEUES;
}

uint64_t piece_number(uint64_t name) {
  return name & NUMBER_MASK;
}

uint64_t time_with_all_before(uint64_t time_ns) {
  return time_is_piece(time_ns) ? time_ns & ~COPY : time_ns;
}

/* Work that has passed without an end has been dropped with its context. `passed` grows after the end is written. */
uint64_t piece_end(uint64_t name) {
  unsigned row = piece_row(name);
  uint64_t number = piece_number(name);
  struct state_group *group = group_at(row);
  if (number + STATE_QUEUE <= atomic_load(&group->queued))
    return LONG_AGO_NS;
  const struct state_piece *piece = piece_at(row, number);
  bool has_passed = atomic_load(&group->passed) >= number;
  uint64_t copied = name & COPY ? atomic_load(&piece->copied) : STATE_PENDING;
  uint64_t ended = atomic_load(&piece->ended);
  if (!(copied & STATE_PENDING))
    return copied;
  if (!(ended & STATE_PENDING))
    return ended;
  return has_passed ? LONG_AGO_NS : 0;
}

static void grow(_Atomic uint64_t *counter, uint64_t to) {
  uint64_t seen = atomic_load(counter);
  while (seen < to && !atomic_compare_exchange_weak(counter, &seen, to))
    continue;
}

void piece_set_end(const struct schedule_effect *effect) {
  struct state_piece *piece = piece_at(effect->row, effect->number);
  uint64_t pending = STATE_PENDING | effect->number;
  if (effect->kind == EFFECT_COPIED) {
    atomic_compare_exchange_strong(&piece->copied, &pending, effect->time_ns);
    return;
  }
  atomic_compare_exchange_strong(&piece->ended, &pending, effect->time_ns);
  grow(&group_at(effect->row)->passed, effect->number);
}

void record_set(const struct schedule_effect *effect) {
  uint64_t word = effect->time_ns << STATE_RECORD_BITS | (uint64_t)effect->row << 1 | (effect->kind == EFFECT_BEGUN);
  grow(&state_mapped()->records[effect->device_row][effect->number % STATE_RECORDS], word);
}
