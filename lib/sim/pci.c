#include "pci.h"

#include <stdio.h>

#include "scalar.h"

void pci_format(unsigned device, int domain_digits, char *text) {
  snprintf(text, (size_t)domain_digits + 9, "%0*X:%02X:00.0", domain_digits, 0u, pci_bus(device));
}

/* [domain:]bus:slot[.function], in hex. */
bool pci_find(const char *text, unsigned *device) {
  unsigned numbers[4] = {0};
  unsigned count = 0, colons = 0;
  bool dot = false;
  do {
    text = scalar_digits(text, 16, &numbers[count++]);
    if (!text)
      return false;
    colons += *text == ':' && !dot;
    dot = dot || *text == '.';
  } while (count < 4 && (*text == ':' || *text == '.') && *text++);
  if (*text != '\0' || colons < 1 || colons > 2 || count != colons + 1 + dot)
    return false;
  unsigned domain = colons == 2 ? numbers[0] : 0;
  unsigned function = dot ? numbers[count - 1] : 0;
  if (domain || numbers[colons] || function)
    return false;
  for (*device = 0; *device < sim_config.device_count; (*device)++)
    if (pci_bus(*device) == numbers[colons - 1])
      return true;
  return false;
}
