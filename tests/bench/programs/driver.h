/*
 * For small programs that measure: finds the driver as frameworks do, by dlopen and cuGetProcAddress, so that a
 * preloaded library is met as usual.
 */
#pragma once

#include <cuda.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void check(CUresult result, const char *what) {
  if (result != CUDA_SUCCESS) {
    fprintf(stderr, "%s: error %d\n", what, (int)result);
    exit(1);
  }
}

/* A program that has another dlsym gets the functions by it. */
static void *(*find_symbol)(void *, const char *) = dlsym;

static void *find(const char *name) {
  CUresult (*lookup)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
  *(void **)&lookup = find_symbol(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2");
  void *function = NULL;
  if (lookup == NULL || lookup(name, &function, 12000, 0, NULL) != CUDA_SUCCESS || function == NULL) {
    fprintf(stderr, "no %s\n", name);
    exit(1);
  }
  return function;
}

#define FIND(name) __typeof__(name) *name##_ = (__typeof__(name) *)find(#name)

static double now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}
