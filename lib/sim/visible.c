#include "visible.h"

#include <stdlib.h>
#include <string.h>

#include "scalar.h"

static unsigned ordinals[SIM_MAX_DEVICES];
static unsigned count;

/* The device that an index or the beginning of one UUID names; -1 when it names none or several. */
static int find_device(const char *text, size_t length) {
  int found = -1;
  if (length > 0 && strspn(text, "0123456789") >= length) {
    unsigned index;
    scalar_digits(text, 10, &index);
    return index < sim_config.device_count ? (int)index : -1;
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
  count = 0;
  if (!list) {
    while (count < sim_config.device_count) {
      ordinals[count] = count;
      count++;
    }
    return count;
  }
  while (*list) {
    list += strspn(list, " ");
    size_t length = strcspn(list, ", ");
    int device = find_device(list, length);
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
