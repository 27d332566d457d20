/* A tenant of high priority wants the GPU for 2 ms after every 4, beside one of low priority that is flat out, on
 * simulated time: it does not wait for the other's slice to end, and the other has what is left. */
#include "check.h"
#include "gpu_model.h"

#include <stdlib.h>

#define REQUESTS 600

static int64_t took_ns[REQUESTS];
static int requests;

static int by_time(const void *one, const void *other) {
  int64_t first = *(const int64_t *)one, second = *(const int64_t *)other;
  return (first > second) - (first < second);
}

static void serve(struct model_process *process) {
  for (requests = 0; requests < REQUESTS; requests++) {
    int64_t began_ns = model_now_ns(process);
    model_launch(process, 0, 0, 2 * MS);
    model_synchronize(process, 0);
    took_ns[requests] = model_now_ns(process) - began_ns;
    model_think(process, 4 * MS);
  }
}

static void train(struct model_process *process) {
  for (;;)
    model_launch(process, 0, 0, MS);
}

int main(void) {
  setbuf(stdout, NULL);
  model_start_over(3);
  for (int i = 0; i < 2; i++) {
    model_container(i)->percent = 95;
    model_container(i)->priority = i == 0 ? VGPU_PRIORITY_HIGH : VGPU_PRIORITY_LOW;
  }
  struct model_process *trains = model_start(1, train, NULL, 0);
  model_start(0, serve, NULL, 0);
  model_run(2 * S);
  int64_t worked_ns = model_worked_ns(trains);
  model_run(9 * S);
  double share = (double)(model_worked_ns(trains) - worked_ns) * 100 / (7 * S);
  qsort(took_ns, (size_t)requests, sizeof *took_ns, by_time);
  int64_t p99_ns = took_ns[requests * 99 / 100 - 1];
  printf("%d requests of 2 ms: median %.2f ms, p99 %.2f ms; %.2f %% for the other\n", requests,
         (double)took_ns[requests / 2] / MS, (double)p99_ns / MS, share);
  CHECK(requests > 300 && p99_ns < 9 * MS, "%lld us",
        (long long)(p99_ns / US)); /* 17.5 when the slice of the other ends first */
  CHECK(share > 50, "%.2f %%", share);
  return 0;
}
