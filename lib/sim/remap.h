/* A process that was on one GPU goes on on another one of the same kind. */
#pragma once

#include "state.h"

/* Puts the new device of each pair where the old one was, for this process alone. No pairs: nothing changes. False, and
 * nothing changes, where the pairs leave out a GPU that this process has, as a card's driver wants all of them, or name
 * one that it does not have, that is of another kind, or twice. */
bool remap_devices(const struct state_gpu_pair *pairs, unsigned count);
