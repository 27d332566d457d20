/* The ways to give a GPU work, each for some time. */
#pragma once

struct compute_path {
  const char *name;
  int streams;
  int processes;
  int uses_graphs;
};

/* Ends with an entry without a name. */
extern const struct compute_path compute_paths[];

/* Prints how many kernels ended per second. */
void compute_run(const struct compute_path *path, double seconds);

/* Gives the current context work until an instant; returns how many kernels ended from another one on. */
long compute_ended(double from_s, double until_s);
double compute_now_s(void);
