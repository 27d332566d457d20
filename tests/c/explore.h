/* All runs of a test that makes choices: each run repeats the choices of the one before, up to the last that has
 * something untried, and takes the first ones after that. */
#pragma once

#include "check.h"

#include <stdbool.h>

#define EXPLORE_MOST_STEPS 100000

static struct {
  int choice;
  unsigned untried;
} explored[EXPLORE_MOST_STEPS];
static int explored_depth;

static int explore_take_first(unsigned *choices) {
  int choice = __builtin_ctz(*choices);
  *choices &= *choices - 1;
  return choice;
}

/* The choice at this step of the run, of those whose bits are set. */
static int explore_choose(int at, unsigned choices) {
  CHECK(at < EXPLORE_MOST_STEPS, "it does not end");
  if (at == explored_depth) {
    explored[at].choice = explore_take_first(&choices);
    explored[at].untried = choices;
    explored_depth++;
  }
  return explored[at].choice;
}

/* False when all runs have been made. */
static bool explore_go_back(void) {
  while (explored_depth > 0 && explored[explored_depth - 1].untried == 0)
    explored_depth--;
  if (explored_depth > 0)
    explored[explored_depth - 1].choice = explore_take_first(&explored[explored_depth - 1].untried);
  return explored_depth > 0;
}
