#include "shared/limits.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

extern char **environ;

bool limits_parse_policy(const char *text, uint32_t *sm_policy) {
  static const char *const words[] = {"force", "default", "disable"};
  static const uint32_t policies[] = {VGPU_SM_HARD, VGPU_SM_BURST, VGPU_SM_OFF};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
    if (strcasecmp(skip_blanks(text), words[i]) == 0) {
      *sm_policy = policies[i];
      return true;
    }
  return false;
}

/* Unset or empty: the first, and no line. */
static uint32_t policy_from_environment(void) {
  const char *text = getenv(VGPU_ENV_SM_POLICY);
  uint32_t policy = VGPU_SM_HARD;
  if (text != NULL && *skip_blanks(text) != '\0' && !limits_parse_policy(text, &policy))
    log_line(LOG_ERROR, "%s='%s' is not force, default or disable; the compute limit holds always", VGPU_ENV_SM_POLICY,
             text);
  return policy;
}

static uint32_t priority_from_environment(void) {
  const char *text = getenv(VGPU_ENV_PRIORITY);
  const char *p = text != NULL ? skip_blanks(text) : "";
  if (*p == '\0' || (*p == '0' && *skip_blanks(p + 1) == '\0'))
    return VGPU_PRIORITY_HIGH;
  if (*p != '1' || *skip_blanks(p + 1) != '\0')
    log_line(LOG_ERROR, "%s='%s' is neither 0 (high) nor 1 (low); it is taken as low", VGPU_ENV_PRIORITY, text);
  return VGPU_PRIORITY_LOW;
}

/* NAME=... or NAME_<i>=... */
static bool is_set(const char *name) {
  size_t length = strlen(name);
  for (char **entry = environ; entry != NULL && *entry != NULL; entry++)
    if (strncmp(*entry, name, length) == 0 && ((*entry)[length] == '=' || (*entry)[length] == '_'))
      return true;
  return false;
}

bool limits_of_compute_in_environment(void) {
  const char *policy_text = getenv(VGPU_ENV_SM_POLICY);
  uint32_t policy;
  bool off = policy_text != NULL && limits_parse_policy(policy_text, &policy) && policy == VGPU_SM_OFF;
  return !off && (is_set(VGPU_ENV_SM_LIMIT) || is_set(VGPU_ENV_ALNAIR_SM));
}

bool limits_in_environment(void) {
  return is_set(VGPU_ENV_SM_LIMIT) || is_set(VGPU_ENV_ALNAIR_SM) || is_set(VGPU_ENV_MEMORY_LIMIT) ||
         is_set(VGPU_ENV_WRAPPER_MEMORY);
}

/* Has the launch taken this variable, with this value, into the limits file? The host may have changed that since. */
static bool is_taken(const char *name, const char *value) {
  size_t of_name = strlen(name), of_value = strlen(value);
  const char *entry = getenv(VGPU_ENV_LIMITS_TAKEN);
  for (; entry != NULL && *entry != '\0'; entry += strspn(entry, ";")) {
    size_t length = strcspn(entry, ";");
    if (length == of_name + 1 + of_value && strncmp(entry, name, of_name) == 0 && entry[of_name] == '=' &&
        strncmp(entry + of_name + 1, value, of_value) == 0)
      return true;
    entry += length;
  }
  return false;
}

/* An empty value counts as unset. */
static const char *value_of(const char *name) {
  const char *value = getenv(name);
  return value == NULL || *skip_blanks(value) == '\0' || is_taken(name, value) ? NULL : value;
}

bool limits_of_every_device_in_environment(void) {
  return value_of(VGPU_ENV_SM_LIMIT) != NULL || value_of(VGPU_ENV_ALNAIR_SM) != NULL ||
         value_of(VGPU_ENV_MEMORY_LIMIT) != NULL || value_of(VGPU_ENV_WRAPPER_MEMORY) != NULL;
}

HOT bool limits_of_compute_in_file(const struct vgpu_limits *file) {
  for (uint32_t i = 0; i < file->device_count && i < VGPU_MAX_DEVICES; i++) {
    const struct vgpu_device_limit *device = &file->devices[i];
    bool off = file->together != 0 || __atomic_load_n(&device->sm_policy, __ATOMIC_RELAXED) == VGPU_SM_OFF;
    bool limited = __atomic_load_n(&device->sm_limit_percent, __ATOMIC_RELAXED) != VGPU_NO_SM_LIMIT;
    bool paused = file->together == 0 && __atomic_load_n(&device->paused, __ATOMIC_RELAXED) != 0;
    if (paused || (!off && (limited || file->swap != 0)))
      return true;
  }
  return false;
}

/* The variable for one device, else the one for all, else the alias (NULL: none). */
static const char *find_variable(const char *name, int device_index, const char *alias, const char **found_name) {
  static __thread char indexed[64];
  snprintf(indexed, sizeof indexed, "%s_%d", name, device_index);
  const char *const candidates[] = {device_index != LIMITS_EVERY_DEVICE ? indexed : NULL, name, alias};
  for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
    const char *value = candidates[i] != NULL ? value_of(candidates[i]) : NULL;
    if (value != NULL) {
      *found_name = candidates[i];
      return value;
    }
  }
  return NULL;
}

/* Reads a memory limit from a variable; the bytes stay as they were where it is not set. */
static void read_memory(const char *variable, int device_index, const char *alias, uint64_t device_bytes,
                        uint64_t *bytes) {
  const char *name;
  const char *text = find_variable(variable, device_index, alias, &name);
  if (text != NULL && !limits_parse_memory(text, device_bytes, bytes)) {
    *bytes = LIMITS_STRICTEST_MEMORY_BYTES;
    log_line(LOG_ERROR, "%s='%s' is not a size such as 2g, 1024m or 50%%; no GPU memory is given until it is", name,
             text);
  }
}

static bool oversubscribe_in_environment(void) {
  const char *text = getenv(VGPU_ENV_OVERSUBSCRIBE);
  if (text == NULL || *skip_blanks(text) == '\0' || strcasecmp(text, "false") == 0 || strcmp(text, "0") == 0)
    return false;
  if (strcasecmp(text, "true") == 0 || strcmp(text, "1") == 0)
    return true;
  log_line(LOG_ERROR, "%s='%s' is neither true nor false; the memory limit holds on the device", VGPU_ENV_OVERSUBSCRIBE,
           text);
  return false;
}

struct limits limits_from_environment(int device_index, uint64_t device_bytes) {
  struct limits limits = {.virtual_bytes = VGPU_NO_MEMORY_LIMIT,
                          .sm_percent = VGPU_NO_SM_LIMIT,
                          .sm_policy = policy_from_environment(),
                          .priority = priority_from_environment()};
  read_memory(VGPU_ENV_MEMORY_LIMIT, device_index, VGPU_ENV_WRAPPER_MEMORY, device_bytes, &limits.virtual_bytes);
  limits.memory_bytes = limits.virtual_bytes;
  if (limits.virtual_bytes != VGPU_NO_MEMORY_LIMIT && oversubscribe_in_environment()) {
    uint64_t share_bytes = device_bytes;
    read_memory(VGPU_ENV_MEMORY_SHARE, device_index, NULL, device_bytes, &share_bytes);
    limits.memory_bytes = share_bytes < limits.virtual_bytes ? share_bytes : limits.virtual_bytes;
  }
  const char *name;
  const char *text = find_variable(VGPU_ENV_SM_LIMIT, device_index, VGPU_ENV_ALNAIR_SM, &name);
  if (text != NULL && !limits_parse_sm(text, &limits.sm_percent)) {
    limits.sm_percent = LIMITS_STRICTEST_SM_PERCENT;
    log_line(LOG_ERROR, "%s='%s' is not a percentage from 0 to 100; compute is limited to %d %% until it is", name,
             text, LIMITS_STRICTEST_SM_PERCENT);
  }
  return limits;
}

HOT struct limits limits_within(struct limits outer, struct limits inner) {
  struct limits limits = outer;
  uint32_t outer_percent = limits_hard_percent(outer), inner_percent = limits_hard_percent(inner);
  limits.memory_bytes = (outer.memory_bytes < inner.memory_bytes ? outer : inner).memory_bytes;
  limits.virtual_bytes = (outer.virtual_bytes < inner.virtual_bytes ? outer : inner).virtual_bytes;
  limits.is_served = limits_oversubscribe(outer) || limits_oversubscribe(inner);
  limits.sm_percent = outer_percent < inner_percent ? outer_percent : inner_percent;
  if (outer.sm_policy == VGPU_SM_OFF && inner_percent < VGPU_NO_SM_LIMIT)
    limits.sm_policy = VGPU_SM_HARD;
  limits.paused |= inner.paused;
  limits.swaps |= inner.swaps;
  limits.is_together |= inner.is_together;
  return limits;
}

int limits_find_device(const struct vgpu_limits *file, const char *uuid) {
  for (uint32_t i = 0; i < file->device_count && i < VGPU_MAX_DEVICES; i++)
    if (strncmp(file->devices[i].uuid, uuid, VGPU_UUID_SIZE) == 0)
      return (int)i;
  return -1;
}

HOT struct limits limits_from_file(const struct vgpu_limits *file, int device_number) {
  struct limits limits = {.memory_bytes = LIMITS_STRICTEST_MEMORY_BYTES, .sm_percent = LIMITS_STRICTEST_SM_PERCENT};
  if (device_number < 0 || device_number >= VGPU_MAX_DEVICES)
    return limits;
  const struct vgpu_device_limit *device = &file->devices[device_number];
  limits.memory_bytes = __atomic_load_n(&device->memory_limit_bytes, __ATOMIC_RELAXED);
  limits.virtual_bytes = __atomic_load_n(&device->virtual_limit_bytes, __ATOMIC_RELAXED);
  if (limits.virtual_bytes < limits.memory_bytes)
    limits.virtual_bytes = limits.memory_bytes;
  uint32_t percent = __atomic_load_n(&device->sm_limit_percent, __ATOMIC_RELAXED);
  if (percent >= 1 && percent <= 100)
    limits.sm_percent = percent;
  uint32_t policy = __atomic_load_n(&device->sm_policy, __ATOMIC_RELAXED);
  limits.sm_policy = policy <= VGPU_SM_OFF ? policy : VGPU_SM_HARD;
  bool high = __atomic_load_n(&device->priority, __ATOMIC_RELAXED) == VGPU_PRIORITY_HIGH;
  limits.priority = high ? VGPU_PRIORITY_HIGH : VGPU_PRIORITY_LOW;
  limits.paused = __atomic_load_n(&device->paused, __ATOMIC_RELAXED) != 0;
  limits.swaps = file->swap != 0;
  if (file->together != 0) { /* a program's channels are all of its server's: the host switches them for all */
    limits.sm_policy = VGPU_SM_OFF;
    limits.is_together = true;
    limits.paused = false;
  }
  return limits;
}
