#include "visible.h"

#include <stdlib.h>
#include <string.h>

#include "scalar.h"

static unsigned ordinals[SIM_MAX_DEVICES];
static unsigned count;

static bool is_faster(unsigned device, unsigned other) {
  const struct device_config *a = &sim_config.devices[device], *b = &sim_config.devices[other];
  return a->multiprocessors != b->multiprocessors ? a->multiprocessors > b->multiprocessors
                                                  : a->compute_capability > b->compute_capability;
}

/* How CUDA numbers the devices before any is hidden: by PCI bus ID, which is the order of the configuration, or else
 * the faster before the slower. */
static void find_order(unsigned order[SIM_MAX_DEVICES]) {
  const char *wanted = getenv("CUDA_DEVICE_ORDER");
  bool by_bus = wanted && strcmp(wanted, "PCI_BUS_ID") == 0;
  for (unsigned device = 0; device < sim_config.device_count; device++) {
    unsigned place = device;
    for (; !by_bus && place > 0 && is_faster(device, order[place - 1]); place--)
      order[place] = order[place - 1];
    order[place] = device;
  }
}

/* The device that an index or the beginning of one UUID names; -1 when it names none or several. */
static int find_device(const unsigned *order, const char *text, size_t length) {
  int found = -1;
  if (length > 0 && strspn(text, "0123456789") >= length) {
    unsigned index;
    scalar_digits(text, 10, &index);
    return index < sim_config.device_count ? (int)order[index] : -1;
  }
  if (length <= strlen("GPU-") || strncmp(text, "GPU-", strlen("GPU-")) != 0)
    return -1;
  for (unsigned device = 0; device < sim_config.device_count; device++) {
    if (strncasecmp(sim_config.devices[device].uuid, text, length) != 0)
      continue;
    if (found >= 0)
      return -1;
    found = (int)device;
  }
  return found;
}

static bool is_listed(unsigned device) {
  for (unsigned i = 0; i < count; i++)
    if (ordinals[i] == device)
      return true;
  return false;
}

/* As the driver does: the first entry that names no device ends the list, and a device named twice leaves none. */
unsigned visible_find(void) {
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  unsigned order[SIM_MAX_DEVICES];
  find_order(order);
  count = 0;
  if (!list) {
    while (count < sim_config.device_count) {
      ordinals[count] = order[count];
      count++;
    }
    return count;
  }
  while (*list) {
    list += strspn(list, " ");
    size_t length = strcspn(list, ", ");
    int device = find_device(order, list, length);
    if (device < 0)
      break;
    if (is_listed((unsigned)device))
      return count = 0;
    ordinals[count++] = (unsigned)device;
    list += length + strspn(list + length, " ");
    if (*list != ',')
      break;
    list++;
  }
  return count;
}

unsigned visible_count(void) {
  return count;
}

bool visible_device(CUdevice ordinal, unsigned *device) {
  if (ordinal < 0 || (unsigned)ordinal >= count)
    return false;
  *device = ordinals[ordinal];
  return true;
}

CUdevice visible_ordinal(unsigned device) {
  for (unsigned i = 0; i < count; i++)
    if (ordinals[i] == device)
      return (CUdevice)i;
  return -1;
}
