#include "cards.h"

#include <stdio.h>
#include <string.h>

unsigned card_of(unsigned device) {
  unsigned card = 0;
  for (unsigned i = 1; i <= device; i++)
    card += !config_shares_card(i);
  return card;
}

unsigned card_count(void) {
  return card_of(sim_config.device_count - 1) + 1;
}

unsigned card_first(unsigned card) {
  unsigned device = 0;
  while (card_of(device) < card)
    device++;
  return device;
}

unsigned card_devices(unsigned card) {
  unsigned first = card_first(card), device = first;
  while (device < sim_config.device_count && card_of(device) == card)
    device++;
  return device - first;
}

void card_uuid(unsigned card, char uuid[SIM_UUID_SIZE]) {
  const struct device_config *first = &sim_config.devices[card_first(card)];
  if (first->mig_gpu != 0)
    snprintf(uuid, SIM_UUID_SIZE, "GPU-51a00000-0000-4000-9000-%012x", (unsigned)first->mig_gpu);
  else
    strcpy(uuid, first->uuid);
}
