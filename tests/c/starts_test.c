/* Tests when work begins and ends on a GPU that had nothing to do. */
#include "cases.h"
#include "fake_gpu.h"

/* A launch that blocks, as with CUDA_LAUNCH_BLOCKING, returns when the GPU is done, also where the work takes longer
 * than before. */
static void check_launches_that_block(void) {
  static const int64_t pauses_ns[] = {0, 100 * US, 400 * US, 5 * MS};
  for (size_t i = 0; i < sizeof pauses_ns / sizeof *pauses_ns; i++) {
    start_over(10);
    meter->launches_block = true;
    worked_ns = 0;
    int64_t began_ns = now_ns;
    for (int count = 0; now_ns < began_ns + 30 * S; count++, now_ns += pauses_ns[i])
      launch(stream, count % 100 < 50 ? 100 * US : 10 * MS, 1);
    double share = 100.0 * (double)worked_ns / (double)(now_ns - began_ns);
    printf("launches that block, with pauses of %lld us, at 10 %%: %.2f %%\n", (long long)pauses_ns[i] / 1000, share);
    CHECK(share > 9 && share < 10.5, "with pauses of %lld us: %.2f %%", (long long)pauses_ns[i] / 1000, share);
  }
}

/* On a host that sleeps in between; also when it takes longer than it did. */
static void check_long_work_that_is_waited_for(void) {
  start_over(50);
  int64_t work_ns = MS;
  for (int i = 0; i < 300; i++, now_ns += 5 * work_ns) {
    if (i == 100)
      worked_ns = device.busy_ns = 0;
    if (i == 200)
      work_ns = 3 * MS;
    launch(stream, work_ns, 1);
    synchronize();
  }
  double charged = (double)device.busy_ns / (double)worked_ns;
  CHECK(charged > 0.99 && charged < 1.02, "charged %.3f times", charged);
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("launches that block") check_launches_that_block();
  CASE("long work that is waited for") check_long_work_that_is_waited_for();
  return cases_end();
}
