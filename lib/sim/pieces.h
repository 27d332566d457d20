/*
 * Pieces of work by name. A time that is not known yet is the name of the piece with whose end it comes, and later than
 * all that are known. Of two such times of one group the greater is the later one.
 */
#pragma once

#include "state.h"

static inline struct state_group *group_at(unsigned row) {
  return &state_mapped()->groups[row];
}

static inline struct state_piece *piece_at(unsigned row, uint64_t number) {
  return &state_mapped()->queues[row][number % STATE_QUEUE];
}

/* A copy may end before work that was queued before it, while its group is off. */
uint64_t piece_name(unsigned row, uint64_t number, bool is_copy);
bool time_is_piece(uint64_t time_ns);
bool time_is_copy(uint64_t time_ns);
unsigned piece_row(uint64_t name);
uint64_t piece_number(uint64_t name);

/* The time at which all before the copy has ended as well. */
uint64_t time_with_all_before(uint64_t time_ns);

/* When the piece ended, as is written by now; 0: it has not. To be asked by the group's owner. */
uint64_t piece_end(uint64_t name);

/* Writes what has happened, if nobody has yet: that a piece has ended, or a context switch. Late or repeated, it
 * changes nothing. */
void piece_set_end(const struct schedule_effect *effect);
void record_set(const struct schedule_effect *effect);
