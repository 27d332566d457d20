/*
 * The cases of a program. Its arguments name those to run; without any, all are. test_policy.py reads their names in
 * the source, so that each of them is a test of its own.
 */
#pragma once

#include "check.h"

#include <stdbool.h>
#include <string.h>

static int cases_named, cases_run;
static char **case_names;
static const char *case_name; /* the running case's */

static inline void cases_begin(int argument_count, char **arguments) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  cases_named = argument_count - 1;
  case_names = arguments + 1;
}

static inline bool case_begins(const char *name) {
  bool wanted = cases_named == 0;
  for (int i = 0; i < cases_named; i++)
    wanted |= strcmp(case_names[i], name) == 0;
  if (wanted) {
    puts(case_name = name);
    cases_run++;
  }
  return wanted;
}

#define CASE(name) if (case_begins(name))

/* A name that no case has would otherwise pass for one that holds. */
static inline int cases_end(void) {
  CHECK(cases_named == 0 ? cases_run > 0 : cases_run == cases_named, "%d cases of %d were run", cases_run, cases_named);
  return 0;
}
