#include "visible.h"

#include <stdlib.h>
#include <string.h>

#include "cards.h"
#include "scalar.h"

static unsigned ordinals[SIM_MAX_DEVICES];
static unsigned count;

static bool is_faster(unsigned device, unsigned other) {
  const struct device_config *a = &sim_config.devices[device], *b = &sim_config.devices[other];
  return a->multiprocessors != b->multiprocessors ? a->multiprocessors > b->multiprocessors
                                                  : a->compute_capability > b->compute_capability;
}

/* How CUDA numbers the cards before any is hidden, each by its first device: by PCI bus ID, which is the order of the
 * configuration, or else the faster before the slower. */
static void find_order(unsigned order[SIM_MAX_DEVICES]) {
  const char *wanted = getenv("CUDA_DEVICE_ORDER");
  bool by_bus = wanted && strcmp(wanted, "PCI_BUS_ID") == 0;
  for (unsigned card = 0; card < card_count(); card++) {
    unsigned device = card_first(card), place = card;
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
    return index < card_count() ? (int)order[index] : -1;
  }
  bool has_prefix = strncmp(text, "GPU-", strlen("GPU-")) == 0 || strncmp(text, "MIG-", strlen("MIG-")) == 0;
  if (length <= strlen("GPU-") || !has_prefix)
    return -1;
  for (unsigned device = 0; device < sim_config.device_count; device++) {
    if (strncasecmp(sim_config.devices[device].uuid, text, length) != 0)
      continue;
    if (found >= 0)
      return -1;
    found = (int)device;
  }
  for (unsigned card = 0; card < card_count() && found < 0; card++) {
    char uuid[SIM_UUID_SIZE];
    card_uuid(card, uuid);
    if (strncasecmp(uuid, text, length) == 0)
      found = (int)card_first(card);
  }
  return found;
}

/* A program has one instance at the most, and no whole card beside it. */
static unsigned with_one_instance(void) {
  for (unsigned i = 0; i < count; i++)
    if (is_instance(ordinals[i])) {
      ordinals[0] = ordinals[i];
      count = 1;
    }
  return count;
}

static bool is_listed(unsigned device) {
  for (unsigned i = 0; i < count; i++)
    if (ordinals[i] == device)
      return true;
  return false;
}

/* Reads the list as the driver does: the first entry that names no device ends the list, and a device named twice
 * leaves none. */
unsigned visible_find(void) {
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  unsigned order[SIM_MAX_DEVICES];
  find_order(order);
  count = 0;
  if (!list) {
    while (count < card_count()) {
      ordinals[count] = order[count];
      count++;
    }
    return with_one_instance();
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
  return with_one_instance();
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
