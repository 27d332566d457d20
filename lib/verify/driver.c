#include "driver.h"

#include "start.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* dlopen and dlsym; where they moved to in newer ones, glibc keeps them under these names too. */
__asm__(".symver first_dlopen, dlopen@" FIRST_GLIBC);
__asm__(".symver first_dlsym, dlsym@" FIRST_GLIBC);
void *first_dlopen(const char *name, int flags);
void *first_dlsym(void *library, const char *name);
#define NOW 2 /* RTLD_NOW */

struct driver driver;

static void fail(const char *what) {
  printf("{\"error\": \"%s\"}\n", what);
  exit(3);
}

void must(CUresult result, const char *what) {
  char text[128];
  if (result == CUDA_SUCCESS)
    return;
  snprintf(text, sizeof text, "%s answered %d", what, (int)result);
  fail(text);
}

static void *load(const char *name) {
  void *library = first_dlopen(name, NOW);
  char text[128];
  if (library == NULL) {
    snprintf(text, sizeof text, "%s is not there", name);
    fail(text);
  }
  return library;
}

CUresult driver_try_start(void) {
  void *cuda = load("libcuda.so.1"), *nvml = load("libnvidia-ml.so.1");
#define X(f) driver.f = (__typeof__(driver.f))first_dlsym(cuda, #f);
  DRIVER_FUNCTIONS(X)
#undef X
#define X(f) driver.f = (__typeof__(driver.f))first_dlsym(nvml, #f);
  NVML_FUNCTIONS(X)
#undef X
  CUcontext context;
  must(driver.cuInit(0), "cuInit");
  CUresult result = driver.cuDevicePrimaryCtxRetain(&context, 0);
  return result == CUDA_SUCCESS ? driver.cuCtxSetCurrent(context) : result;
}

void driver_start(void) {
  CUresult result = driver_try_start();
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    printf("{\"no_room\": true}\n");
    exit(3);
  }
  must(result, "cuDevicePrimaryCtxRetain");
}

/* Writes a UUID as NVML does: GPU-, and the bytes in groups of 4, 2, 2, 2 and 6. */
static void write_uuid(const CUuuid *uuid, char text[48]) {
  char *end = text + sprintf(text, "GPU");
  for (int i = 0; i < 16; i++) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10)
      *end++ = '-';
    end += sprintf(end, "%02x", (unsigned char)uuid->bytes[i]);
  }
}

unsigned long long nvml_total_bytes(void) {
  CUuuid uuid;
  char text[48];
  nvmlDevice_t device;
  nvmlMemory_t memory;
  if (driver.cuDeviceGetUuid(&uuid, 0) != CUDA_SUCCESS || driver.nvmlInit_v2() != NVML_SUCCESS)
    return 0;
  write_uuid(&uuid, text);
  if (driver.nvmlDeviceGetHandleByUUID(text, &device) != NVML_SUCCESS ||
      driver.nvmlDeviceGetMemoryInfo(device, &memory) != NVML_SUCCESS)
    return 0;
  return memory.total;
}
