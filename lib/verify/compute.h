/* The ways to give a GPU work, each for some time. */
#ifndef VERIFY_COMPUTE_H
#define VERIFY_COMPUTE_H

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

#endif
