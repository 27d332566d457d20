/*
 * Tables of cases: each row prints what was measured, and a mark where that does not hold. The program goes on, and
 * fails when all rows have been printed.
 */
#ifndef ROWS_H
#define ROWS_H

#include "cases.h"
#include "gpu_model.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static int rows_failed;

static inline void print_row(bool holds, bool is_open, const char *format, va_list values) {
  vprintf(format, values);
  puts(holds ? "" : is_open ? "  <-- open" : "  <-- FAILS");
  rows_failed += !holds && !is_open;
}

__attribute__((format(printf, 2, 3))) static inline void row(bool holds, const char *format, ...) {
  va_list values;
  va_start(values, format);
  print_row(holds, false, format, values);
  va_end(values);
}

/* A row that is_open is wanted and does not hold yet: docs/dev/compute.md lists it. */
__attribute__((format(printf, 3, 4))) static inline void row_unless(bool is_open, bool holds, const char *format, ...) {
  va_list values;
  va_start(values, format);
  print_row(holds, is_open, format, values);
  va_end(values);
}

static inline int rows_end(void) {
  printf("%d rows do not hold\n", rows_failed);
  return cases_end() || rows_failed > 0;
}

/* The share of the first GPU that each has between two times, in percent. */
static inline void measure_shares(struct model_process **processes, int count, int64_t from_ns, int64_t to_ns,
                                  double *shares) {
  int64_t before_ns[MODEL_PROCESSES];
  model_run(from_ns);
  for (int i = 0; i < count; i++)
    before_ns[i] = model_worked_ns(processes[i]);
  model_run(to_ns);
  for (int i = 0; i < count; i++)
    shares[i] = 100.0 * (double)(model_worked_ns(processes[i]) - before_ns[i]) / (double)(to_ns - from_ns);
}

static inline double measure_share(struct model_process *process, int64_t from_ns, int64_t to_ns) {
  double share;
  measure_shares(&process, 1, from_ns, to_ns, &share);
  return share;
}

static inline bool is_within(double value, double of, double tolerance) {
  return value >= of - tolerance && value <= of + tolerance;
}

#endif
