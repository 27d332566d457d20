#include "shared_schedule.h"

#include <string.h>

#include "pieces.h"

/* The word that says which is true: how often that has changed, and the place. */
#define PLACE_BITS 11
#define PLACES (1U << PLACE_BITS)
_Static_assert(PLACES == 2 * STATE_MAX_PROCESSES, "two for each process");

static struct schedule look; /* for a process without a slot */
static struct schedule *copy;
static uint64_t copied_from;
static uint64_t effects_of; /* the true one whose effects this process has written last */

static struct schedule *at(uint64_t word) {
  return &state_mapped()->schedules[word % PLACES / 2][word % 2];
}

static uint64_t own_place(void) {
  uint64_t place = 2 * (uint64_t)state_own_slot();
  return place == copied_from % PLACES ? place + 1 : place;
}

static void write_effects(uint64_t word) {
  for (unsigned i = 0; effects_of != word && i < copy->effect_count; i++)
    (copy->effects[i].kind >= EFFECT_BEGUN ? record_set : piece_set_end)(&copy->effects[i]);
  effects_of = word;
}

/* False when it has been written meanwhile. */
static bool copy_true(void) {
  const struct schedule *from = at(copied_from);
  size_t groups = from->group_count % (STATE_MAX_QUEUES + 1), effects = from->effect_count % (STATE_EFFECTS + 1);
  memcpy(copy, from, offsetof(struct schedule, effects));
  memcpy(copy->effects, from->effects, effects * sizeof *from->effects);
  memcpy(copy->groups, from->groups, groups * sizeof *from->groups);
  uint64_t expected = copied_from; /* an exchange, since a load could come before those above */
  if (copied_from % PLACES / 2 == state_own_slot())
    return true; /* nobody else writes there */
  return atomic_compare_exchange_strong(&state_mapped()->schedule, &expected, copied_from) &&
         groups == copy->group_count && effects == copy->effect_count;
}

/* Copies the published schedule, and writes its effects before anything takes its place. */
struct schedule *shared_schedule_copy(void) {
  do {
    copied_from = atomic_load(&state_mapped()->schedule);
    copy = state_own_slot() == STATE_NO_SLOT ? &look : at(own_place());
  } while (!copy_true());
  write_effects(copied_from);
  copy->effect_count = 0;
  return copy;
}

bool shared_schedule_publish(void) {
  uint64_t expected = copied_from;
  if (copy == &look)
    return true;
  uint64_t next = (copied_from / PLACES + 1) * PLACES + own_place();
  if (!atomic_compare_exchange_strong(&state_mapped()->schedule, &expected, next))
    return false;
  write_effects(next);
  return true;
}
