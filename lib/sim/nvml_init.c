/* The life of the simulated NVML, and what it says about the system. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "nvml_api.h"
#include "state.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;
static bool opened;

nvmlReturn_t nvml_ready(void) {
  pthread_mutex_lock(&lock);
  bool ready = users > 0;
  pthread_mutex_unlock(&lock);
  return ready ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

/* The state stays open after the last shutdown: closing a descriptor of it would drop the record lock by which other
 * processes learn our PID. */
nvmlReturn_t DECLDIR nvmlInitWithFlags(unsigned int flags) {
  (void)flags;
  pthread_mutex_lock(&lock);
  if (!opened)
    opened = config_load() && state_open();
  if (opened)
    users++;
  pthread_mutex_unlock(&lock);
  return opened ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
}

nvmlReturn_t DECLDIR nvmlInit_v2(void) {
  return nvmlInitWithFlags(0);
}

nvmlReturn_t DECLDIR nvmlInit(void) {
  return nvmlInitWithFlags(0);
}

nvmlReturn_t DECLDIR nvmlShutdown(void) {
  pthread_mutex_lock(&lock);
  nvmlReturn_t result = users > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
  if (users > 0)
    users--;
  pthread_mutex_unlock(&lock);
  return result;
}

static nvmlReturn_t copy_text(const char *text, char *target, unsigned length) {
  FORWARD_IF_ERROR(nvml_ready());
  if (!target)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (length <= strlen(text))
    return NVML_ERROR_INSUFFICIENT_SIZE;
  strcpy(target, text);
  return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlSystemGetDriverVersion(char *version, unsigned int length) {
  return copy_text(sim_config.driver_version, version, length);
}

nvmlReturn_t DECLDIR nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
  char text[SIM_TEXT_SIZE + 16];
  snprintf(text, sizeof text, "%u.%s", (unsigned)sim_config.cuda_version / 10, sim_config.driver_version);
  return copy_text(text, version, length);
}

nvmlReturn_t DECLDIR nvmlSystemGetCudaDriverVersion_v2(int *version) {
  FORWARD_IF_ERROR(nvml_ready());
  if (!version)
    return NVML_ERROR_INVALID_ARGUMENT;
  *version = (int)(sim_config.cuda_version / 10 * 1000 + sim_config.cuda_version % 10 * 10);
  return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlSystemGetCudaDriverVersion(int *version) {
  return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* Only of processes in the caller's PID namespace, as on a card. */
nvmlReturn_t DECLDIR nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
  char path[64], text[256];
  FORWARD_IF_ERROR(nvml_ready());
  if (!name || length == 0)
    return NVML_ERROR_INVALID_ARGUMENT;
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  FILE *file = fopen(path, "re");
  if (!file)
    return NVML_ERROR_NOT_FOUND;
  size_t size = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[size] = '\0';
  if (length <= strlen(text))
    return NVML_ERROR_INSUFFICIENT_SIZE;
  strcpy(name, text);
  return NVML_SUCCESS;
}

#define ERROR_TEXTS(X)                                                                                                 \
  X(NVML_SUCCESS, "Success")                                                                                           \
  X(NVML_ERROR_UNINITIALIZED, "Uninitialized")                                                                         \
  X(NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument")                                                                   \
  X(NVML_ERROR_NOT_SUPPORTED, "Not Supported")                                                                         \
  X(NVML_ERROR_NO_PERMISSION, "Insufficient Permissions")                                                              \
  X(NVML_ERROR_NOT_FOUND, "Not Found")                                                                                 \
  X(NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size")                                                                 \
  X(NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded")                                                                 \
  X(NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found")                                                     \
  X(NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found")                                                               \
  X(NVML_ERROR_MEMORY, "Insufficient Memory")                                                                          \
  X(NVML_ERROR_OPERATING_SYSTEM, "Operating System Error")                                                             \
  X(NVML_ERROR_IN_USE, "In use by another client")                                                                     \
  X(NVML_ERROR_TIMEOUT, "Timeout")                                                                                     \
  X(NVML_ERROR_GPU_IS_LOST, "GPU is lost")                                                                             \
  X(NVML_ERROR_NO_DATA, "No data")                                                                                     \
  X(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch")

const char DECLDIR *nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
#define TEXT(code, text)                                                                                               \
  case code:                                                                                                           \
    return text;
    ERROR_TEXTS(TEXT)
#undef TEXT
  default:
    return "Unknown Error";
  }
}
