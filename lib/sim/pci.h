/* Simulated card n sits on the PCI bus at 0000:(n + 1):00.0. */
#pragma once

#include "cards.h"

#define PCI_ID_SIZE 20

static inline unsigned pci_bus(unsigned device) {
  return sim_config.devices[device].pci_bus;
}

/* "0000:01:00.0", the domain in this many digits. The text needs domain_digits + 9 bytes. */
void pci_format(unsigned device, int domain_digits, char *text);

/* The first device of the card at "[domain:]bus:device[.function]"; false when there is none. */
bool pci_find(const char *text, unsigned *device);
