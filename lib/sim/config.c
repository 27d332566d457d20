#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "scalar.h"
#include "yaml.h"

struct sim_config sim_config;

enum value_kind { TEXT, PATH, NUMBER, VERSION, UUID, BOOLEAN };

/* A key: where its value goes, and the numbers that it may take. A number is scaled to the field's own unit. */
struct key {
  const char *name;
  enum value_kind kind;
  size_t offset;
  uint64_t scale, minimum, maximum; /* minimum and maximum in the key's unit */
};

#define AT(type, field) offsetof(struct type, field)

static const struct key top_keys[] = {
    {"state_file", PATH, AT(sim_config, state_file), 0, 0, 0},
    {"driver_version", TEXT, AT(sim_config, driver_version), 0, 0, 0},
    {"cuda_version", VERSION, AT(sim_config, cuda_version), 1, 110, 199},
    {"default_kernel_us", NUMBER, AT(sim_config, default_kernel_ns), NS_PER_US, 0, 3600000000},
    {"start_ms", NUMBER, AT(sim_config, start_ns), NS_PER_MS, 0, 60000},
    {"context_switch_us", NUMBER, AT(sim_config, context_switch_ns), NS_PER_US, 0, 1000000},
    {"nvidiactl", BOOLEAN, AT(sim_config, nvidiactl), 0, 0, 0},
    {"channels_off_us", NUMBER, AT(sim_config, channels_off_ns), NS_PER_US, 0, 1000000},
    {"channels_stay_off", BOOLEAN, AT(sim_config, channels_stay_off), 0, 0, 0},
    {"kept_data_mib", NUMBER, AT(sim_config, kept_data_bytes), MIB, 0, 1 << 20},
    {0},
};

static const struct key device_keys[] = {
    {"name", TEXT, AT(device_config, name), 0, 0, 0},
    {"uuid", UUID, AT(device_config, uuid), 0, 0, 0},
    {"memory_mib", NUMBER, AT(device_config, memory_bytes), MIB, 16, 1 << 24},
    {"context_overhead_mib", NUMBER, AT(device_config, context_overhead_bytes), MIB, 0, 1 << 20},
    {"multiprocessors", NUMBER, AT(device_config, multiprocessors), 1, 1, 4096},
    {"compute_capability", VERSION, AT(device_config, compute_capability), 1, 20, 199},
    {"launch_overhead_us", NUMBER, AT(device_config, launch_overhead_ns), NS_PER_US, 0, 1000000},
    {"launch_queue_depth", NUMBER, AT(device_config, launch_queue_depth), 1, 1, 65536},
    {"copy_mib_per_ms", NUMBER, AT(device_config, copy_bytes_per_ms), MIB, 1, 1 << 20},
    {"checkpoint_mib_per_ms", NUMBER, AT(device_config, checkpoint_bytes_per_ms), MIB, 1, 1 << 20},
    {"memory_mib_per_ms", NUMBER, AT(device_config, memory_bytes_per_ms), MIB, 1, 1 << 20},
    {"mig_gpu", NUMBER, AT(device_config, mig_gpu), 1, 1, SIM_MAX_DEVICES},
    {0},
};

static const struct key kernel_keys[] = {
    {"name", TEXT, AT(kernel_config, name), 0, 0, 0},
    {"duration_us", NUMBER, AT(kernel_config, duration_ns), NS_PER_US, 0, 3600000000},
    {0},
};

struct reader {
  const char *path;
  unsigned line_number;
  const struct key *list_keys; /* NULL: at the top level */
  char *list_entry;
  size_t item_indent; /* indent of the keys of the list's items; 0: no item yet */
  uint64_t top_seen, item_seen;
};

static bool fail(const struct reader *reader, const char *what, const char *detail) {
  complain("%s:%u: %s%s%s%s", reader->path, reader->line_number, what, detail ? " '" : "", detail ? detail : "",
           detail ? "'" : "");
  return false;
}

static void set_device_defaults(struct device_config *device, unsigned index) {
  *device = (struct device_config){
      .memory_bytes = 8 * GIB,
      .context_overhead_bytes = 518 * MIB,
      .multiprocessors = 132,
      .compute_capability = 90,
      .launch_queue_depth = 1024,
      .copy_bytes_per_ms = 24 * MIB,
      .checkpoint_bytes_per_ms = 12 * MIB,
      .memory_bytes_per_ms = 1024 * MIB,
  };
  snprintf(device->name, sizeof device->name, "Simulated GPU");
  snprintf(device->uuid, sizeof device->uuid, "GPU-51a00000-0000-4000-8000-%012x", index);
}

static void set_defaults(void) {
  sim_config = (struct sim_config){.driver_version = "580.0",
                                   .cuda_version = 130,
                                   .default_kernel_ns = 10 * NS_PER_US,
                                   .context_switch_ns = 150 * NS_PER_US,
                                   .nvidiactl = true,
                                   .channels_off_ns = 450 * NS_PER_US,
                                   .channels_stay_off = true,
                                   .kept_data_bytes = 64 * MIB};
}

static bool store(const struct reader *reader, const struct key *key, char *target, const char *value) {
  char *field = target + key->offset;
  uint64_t number = 0;
  if (*value == '\0')
    return fail(reader, "no value for", key->name);
  switch (key->kind) {
  case TEXT:
    if (strlen(value) >= SIM_TEXT_SIZE)
      return fail(reader, "the value is too long for", key->name);
    strcpy(field, value);
    return true;
  case PATH:
    if (value[0] != '/' || strlen(value) >= SIM_PATH_SIZE)
      return fail(reader, "expected an absolute path, not", value);
    strcpy(field, value);
    return true;
  case UUID:
    if (!scalar_parse_uuid(value, field, SIM_UUID_SIZE))
      return fail(reader, "expected GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx (or MIG-...) with hex digits, not", value);
    return true;
  case BOOLEAN:
    number = strcmp(value, "true") == 0;
    if (!number && strcmp(value, "false") != 0)
      return fail(reader, "expected true or false, not", value);
    break;
  case VERSION:
    if (!scalar_parse_version(value, &number) || number < key->minimum || number > key->maximum)
      return fail(reader, "expected a version such as 13.0, not", value);
    break;
  case NUMBER:
    if (!scalar_parse(value, key->scale, &number) || number < key->minimum * key->scale ||
        number > key->maximum * key->scale) {
      complain("%s:%u: %s is a number from %llu to %llu, not '%s'", reader->path, reader->line_number, key->name,
               (unsigned long long)key->minimum, (unsigned long long)key->maximum, value);
      return false;
    }
    break;
  }
  memcpy(field, &number, sizeof number);
  return true;
}

static bool set_key(const struct reader *reader, const struct key *keys, uint64_t *seen, char *target,
                    const struct yaml_line *line) {
  for (unsigned i = 0; keys[i].name; i++) {
    if (strcmp(keys[i].name, line->key) != 0)
      continue;
    if (*seen & (1ULL << i))
      return fail(reader, "a second", line->key);
    *seen |= 1ULL << i;
    return store(reader, &keys[i], target, line->value);
  }
  return fail(reader, "unknown key", line->key);
}

static bool begin_list(struct reader *reader, const struct yaml_line *line, const struct key *keys, unsigned bit) {
  if (*line->value)
    return fail(reader, "expected a list of '- key: value' lines below", line->key);
  if (reader->top_seen & (1ULL << bit))
    return fail(reader, "a second", line->key);
  reader->top_seen |= 1ULL << bit;
  reader->list_keys = keys;
  reader->item_indent = 0;
  return true;
}

static bool read_top(struct reader *reader, const struct yaml_line *line) {
  if (line->item)
    return fail(reader, "a list item without its list", NULL);
  if (strcmp(line->key, "devices") == 0)
    return begin_list(reader, line, device_keys, 62);
  if (strcmp(line->key, "kernels") == 0)
    return begin_list(reader, line, kernel_keys, 63);
  reader->list_keys = NULL;
  return set_key(reader, top_keys, &reader->top_seen, (char *)&sim_config, line);
}

static bool begin_item(struct reader *reader) {
  bool devices = reader->list_keys == device_keys;
  unsigned *count = devices ? &sim_config.device_count : &sim_config.kernel_count;
  if (*count == (devices ? SIM_MAX_DEVICES : SIM_MAX_KERNELS))
    return fail(reader, devices ? "more than 16 devices" : "more than 256 kernels", NULL);
  reader->item_seen = 0;
  if (devices) {
    set_device_defaults(&sim_config.devices[*count], *count);
    reader->list_entry = (char *)&sim_config.devices[*count];
  } else {
    reader->list_entry = (char *)&sim_config.kernels[*count];
  }
  (*count)++;
  return true;
}

static bool read_item(struct reader *reader, const struct yaml_line *line) {
  if (reader->item_indent == 0 && !line->item)
    return fail(reader, "expected '- key: value'", NULL);
  if (reader->item_indent == 0)
    reader->item_indent = line->indent;
  if (line->indent != reader->item_indent)
    return fail(reader, "the indentation does not match the lines above", NULL);
  if (line->item && !begin_item(reader))
    return false;
  return set_key(reader, reader->list_keys, &reader->item_seen, reader->list_entry, line);
}

static bool read_line(struct reader *reader, char *text) {
  struct yaml_line line;
  const char *problem = yaml_parse_line(text, &line);
  if (problem)
    return fail(reader, problem, NULL);
  if (!line.key)
    return true;
  if (line.indent == 0)
    return read_top(reader, &line);
  return reader->list_keys ? read_item(reader, &line) : fail(reader, "unexpected indentation", NULL);
}

static bool check_whole(struct reader *reader) {
  if (sim_config.device_count == 0 && (reader->top_seen & (1ULL << 62)))
    return fail(reader, "no device in the list of devices", NULL);
  for (unsigned i = 0; i < sim_config.kernel_count; i++)
    if (sim_config.kernels[i].name[0] == '\0')
      return fail(reader, "a kernel without a name", NULL);
  for (unsigned i = 0; i < sim_config.device_count; i++) {
    if ((sim_config.devices[i].mig_gpu != 0) != (strncmp(sim_config.devices[i].uuid, "MIG-", 4) == 0))
      return fail(reader, "mig_gpu goes with a UUID that begins with MIG-, unlike", sim_config.devices[i].uuid);
    for (unsigned j = 0; j < i; j++)
      if (strcmp(sim_config.devices[i].uuid, sim_config.devices[j].uuid) == 0)
        return fail(reader, "two devices with the UUID", sim_config.devices[i].uuid);
  }
  return true;
}

static bool read_file(struct reader *reader) {
  FILE *file = fopen(reader->path, "re");
  if (!file) {
    complain("%s: %s", reader->path, strerror(errno));
    return false;
  }
  char text[2048];
  bool good = true;
  while (good && fgets(text, sizeof text, file)) {
    reader->line_number++;
    size_t length = strcspn(text, "\n");
    if (text[length] != '\n' && !feof(file))
      good = fail(reader, "the line is too long, or the file is not text", NULL);
    text[length] = '\0';
    good = good && read_line(reader, text);
  }
  if (good && ferror(file)) {
    complain("%s: %s", reader->path, strerror(errno));
    good = false;
  }
  fclose(file);
  return good && check_whole(reader);
}

/* NULL: no file, all defaults. */
static const char *choose_file(void) {
  const char *named = getenv("VGPUSIM_CONFIG");
  if (named && *named)
    return named;
  return access(SIM_CONTAINER_CONFIG, F_OK) == 0 ? SIM_CONTAINER_CONFIG : NULL;
}

bool config_shares_card(unsigned device) {
  const struct device_config *devices = sim_config.devices;
  return device > 0 && devices[device].mig_gpu != 0 && devices[device].mig_gpu == devices[device - 1].mig_gpu;
}

static bool load(void) {
  struct reader reader = {.path = choose_file()};
  set_defaults();
  if (reader.path && !read_file(&reader))
    return false;
  if (sim_config.device_count == 0)
    set_device_defaults(&sim_config.devices[sim_config.device_count++], 0);
  for (unsigned i = 0, card = 0; i < sim_config.device_count; i++) {
    card += !config_shares_card(i);
    sim_config.devices[i].pci_bus = card;
  }
  return true;
}

bool config_load(void) {
  static enum { NOT_READ, GOOD, BAD } state;
  if (state == NOT_READ)
    state = load() ? GOOD : BAD;
  return state == GOOD;
}

void config_uuid_bytes(const struct device_config *device, unsigned char bytes[16]) {
  const char *text = device->uuid + strlen("GPU-");
  for (unsigned i = 0; i < 16; i++) {
    text += *text == '-';
    char pair[3] = {text[0], text[1], '\0'};
    unsigned value;
    scalar_digits(pair, 16, &value);
    bytes[i] = (unsigned char)value;
    text += 2;
  }
}

uint64_t config_kernel_ns(const char *name) {
  uint64_t duration_ns;
  for (unsigned i = 0; i < sim_config.kernel_count; i++)
    if (strcmp(sim_config.kernels[i].name, name) == 0)
      return sim_config.kernels[i].duration_ns;
  const char *ending = strrchr(name, '_');
  if (ending && scalar_parse_duration(ending + 1, &duration_ns) && duration_ns <= 3600 * NS_PER_S)
    return duration_ns;
  return sim_config.default_kernel_ns;
}
