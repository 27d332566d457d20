/* Spans that are charged, against a map of microseconds. */
#include "check.h"
#include "compute/spans.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH 400

static bool charged[LENGTH];

static int64_t expect(struct span span, int64_t busy_ns) {
  int64_t count = 0;
  for (int64_t i = span.start_ns; i < span.end_ns && count < busy_ns; i++)
    if (!charged[i])
      charged[i] = ++count > 0;
  return count;
}

int main(void) {
  srand(1);
  for (int round = 0; round < 3000; round++) {
    struct spans spans = {0};
    memset(charged, 0, sizeof charged);
    for (int i = 0; i < 25; i++) { /* fewer than are remembered */
      int64_t start_ns = rand() % LENGTH, length_ns = rand() % (LENGTH - start_ns), busy_ns = rand() % (length_ns + 20);
      struct span span = {start_ns, start_ns + length_ns};
      int64_t expected_ns = expect(span, busy_ns), got_ns = spans_charge(&spans, span, busy_ns);
      CHECK(got_ns == expected_ns, "round %d, %d: %lld of %lld", round, i, (long long)got_ns, (long long)expected_ns);
    }
  }
  struct spans spans = {0};
  for (int i = 0; i < 10 * SPANS; i++)
    CHECK(spans_charge(&spans, (struct span){10 * i, 10 * i + 5}, 5) == 5, "%d", i);
  CHECK(spans_charge(&spans, (struct span){10 * (10 * SPANS - 1), 10 * (10 * SPANS - 1) + 5}, 5) == 0, "the latest");
  return 0;
}
