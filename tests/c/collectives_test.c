/* Two tenants that each use two GPUs, with kernels that wait for each other across them, on simulated time. */
#include "check.h"
#include "gpu_model.h"

#define EXCHANGES 16000
static struct exchanges {
  int finished;
  int64_t longest_ns;
} exchanges;

/* As a collective over two GPUs: each kernel ends when the one on the other GPU has begun. */
static void run_collectives(struct model_process *process) {
  int first = *(const int *)model_argument(process);
  for (int i = 0; i < EXCHANGES; i++) {
    int64_t began_ns = model_now_ns(process);
    model_launch_spin(process, (first + i) % 2, first * EXCHANGES + i);
    model_launch_spin(process, (first + i + 1) % 2, first * EXCHANGES + i);
    model_synchronize(process, 0);
    model_synchronize(process, 1);
    int64_t took_ns = model_now_ns(process) - began_ns;
    exchanges.longest_ns = took_ns > exchanges.longest_ns ? took_ns : exchanges.longest_ns;
  }
  exchanges.finished++;
}

/* Where each has the turn of one GPU, one waits for a slice; but not for the patience with work that never ends. */
int main(void) {
  setbuf(stdout, NULL);
  static const int numbers[] = {0, 1};
  for (int seed = 1; seed < 5; seed++) {
    exchanges = (struct exchanges){0};
    model_start_over(seed);
    for (int i = 0; i < 2; i++) {
      model_container(i)->percent = 50;
      model_start(i, run_collectives, &numbers[i], i * seed * 100 * US);
    }
    model_run(5 * S);
    printf("collectives over two GPUs: %.1f ms at most\n", (double)exchanges.longest_ns / MS);
    CHECK(exchanges.finished == 2, "%d of 2 finished", exchanges.finished);
    CHECK(exchanges.longest_ns < 60 * MS, "%.1f ms", (double)exchanges.longest_ns / MS);
  }
  return 0;
}
