#include "pci.h"

#include <stdio.h>

void pci_format(unsigned device, int domain_digits, char *text) {
  snprintf(text, (size_t)domain_digits + 9, "%0*X:%02X:00.0", domain_digits, 0u, pci_bus(device));
}

bool pci_find(const char *text, unsigned *device) {
  unsigned domain = 0, bus, slot, function = 0;
  int end = -1;
  if (sscanf(text, "%8x:%2x:%2x%n.%1x%n", &domain, &bus, &slot, &end, &function, &end) < 3) {
    domain = function = 0;
    end = -1;
    if (sscanf(text, "%2x:%2x%n.%1x%n", &bus, &slot, &end, &function, &end) < 2)
      return false;
  }
  if (end < 0 || text[end] != '\0' || domain || slot || function)
    return false;
  for (*device = 0; *device < sim_config.device_count; (*device)++)
    if (pci_bus(*device) == bus)
      return true;
  return false;
}
