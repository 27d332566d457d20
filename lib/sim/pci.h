/* Where the simulated devices sit on the PCI bus: device n at 0000:(n + 1):00.0. */
#ifndef SIM_PCI_H
#define SIM_PCI_H

#include "config.h"

#define PCI_ID_SIZE 20

static inline unsigned pci_bus(unsigned device) {
  return device + 1;
}

/* "0000:01:00.0", the domain in this many digits. The text needs domain_digits + 9 bytes. */
void pci_format(unsigned device, int domain_digits, char *text);

/* The device at "[domain:]bus:device[.function]"; false when there is none. */
bool pci_find(const char *text, unsigned *device);

#endif
