/*
 * An NVML that differs from the simulated one, which it needs under another name: what is not here comes from there.
 * LONG_ROWS=1: the third version's rows are of 32 bytes, as with drivers from 535.43 to 535.97.
 * HOST_PIDS=1: processes have PIDs of another namespace, as drivers list them that do not translate PIDs.
 * GRAPHICS_PIDS and MPS_PIDS, each "1,2,3": who is in these lists, with 7 MiB each.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define LONG_ROW 32

typedef nvmlReturn_t list_function(nvmlDevice_t, unsigned int *, nvmlProcessInfo_t *);

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_t *rows) {
  void *library = dlopen("libsimulated.so.1", RTLD_NOW | RTLD_NOLOAD);
  list_function *next = (list_function *)dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
  nvmlReturn_t result = next(device, count, rows);
  if (result == NVML_SUCCESS && getenv("HOST_PIDS"))
    for (unsigned i = 0; i < *count; i++)
      rows[i].pid += 1000000;
  if (result == NVML_SUCCESS && getenv("LONG_ROWS"))
    for (unsigned i = *count; i-- > 0;)
      memmove((char *)rows + i * LONG_ROW, &rows[i], sizeof rows[i]);
  return result;
}

static nvmlReturn_t list(const char *text, unsigned *count, nvmlProcessInfo_t *rows) {
  unsigned room = *count;
  for (*count = 0; text && *text; (*count)++) {
    if (*count < room)
      rows[*count] = (nvmlProcessInfo_t){(unsigned)atoi(text), 7 << 20, 0xFFFFFFFFu, 0xFFFFFFFFu};
    text += strcspn(text, ",");
    text += *text == ',';
  }
  return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *rows) {
  (void)device;
  return list(getenv("GRAPHICS_PIDS"), count, rows);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *rows) {
  (void)device;
  return list(getenv("MPS_PIDS"), count, rows);
}
