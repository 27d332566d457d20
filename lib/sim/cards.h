/* The cards that the devices are on. A device is a whole card, or one of the MIG instances of a card: those that the
 * configuration lists one after the other with the same `mig_gpu`. */
#pragma once

#include "config.h"

#define CARD_MAX_INSTANCES 7

unsigned card_count(void);

/* The card that a device is on, the first device on it, and how many there are. */
unsigned card_of(unsigned device);
unsigned card_first(unsigned card);
unsigned card_devices(unsigned card);

static inline bool is_instance(unsigned device) {
  return sim_config.devices[device].mig_gpu != 0;
}

/* Is the card in MIG mode, its devices instances of it? */
static inline bool card_is_mig(unsigned card) {
  return is_instance(card_first(card));
}

/* A card in MIG mode has a UUID beside those of its instances. */
void card_uuid(unsigned card, char uuid[SIM_UUID_SIZE]);
