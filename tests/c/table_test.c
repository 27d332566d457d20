/* Random operations against an array that cannot be wrong, then many threads at once. */
#include "cases.h"
#include "check.h"
#include "memory/table.h"

#define KEYS 5000
#define ROUNDS 400000

static struct table table = TABLE_INITIALIZER;

static uint64_t key_of(int i) {
  return 0x7f0000000000ULL + (uint64_t)i * 512;
} /* laid out like the driver's pointers */

static void check_against_reference(void) {
  static uint64_t reference[KEYS];
  unsigned seed = 1;
  for (int round = 1; round <= ROUNDS; round++) {
    int i = rand_r(&seed) % KEYS;
    struct table_entry entry;
    switch (rand_r(&seed) % 3) {
    case 0:
      CHECK(table_put(&table, (struct table_entry){.key = key_of(i), .bytes = (uint64_t)round}), "put");
      reference[i] = (uint64_t)round;
      break;
    case 1:
      CHECK(table_take(&table, key_of(i), &entry) == (reference[i] != 0), "take %d", i);
      CHECK(reference[i] == 0 || entry.bytes == reference[i], "value of %d", i);
      reference[i] = 0;
      break;
    default:
      CHECK(table_get(&table, key_of(i), &entry) == (reference[i] != 0), "get %d", i);
    }
  }
  struct table_entry entry;
  CHECK(!table_put(&table, (struct table_entry){.key = 0, .bytes = 1}) && !table_take(&table, 0, &entry), "no key 0");
}

static void check_counts(void) {
  static struct table counts = TABLE_INITIALIZER;
  struct table_entry left, two = {.key = 7, .bytes = 2, .kind = 5};
  uint64_t bytes;
  CHECK(table_add(&counts, two, &bytes) && bytes == 2, "made");
  CHECK(table_add(&counts, two, &bytes) && bytes == 4, "more");
  CHECK(!table_subtract(&counts, 7, 5, &left) && !table_subtract(&counts, 8, 1, &left), "not below zero");
  CHECK(table_subtract(&counts, 7, 3, &left) && left.bytes == 1 && left.kind == 5, "some left");
  CHECK(table_subtract(&counts, 7, 1, &left) && left.bytes == 0, "gone");
  CHECK(!table_get(&counts, 7, &left), "left over");
}

static void *put_and_take(void *argument) {
  int base = (int)(intptr_t)argument * 100000;
  struct table_entry entry;
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < 1000; i++)
      CHECK(table_put(&table, (struct table_entry){.key = key_of(1000000 + base + i), .bytes = (uint64_t)i}), "put");
    for (int i = 0; i < 1000; i++)
      CHECK(table_take(&table, key_of(1000000 + base + i), &entry) && entry.bytes == (uint64_t)i, "take");
  }
  return NULL;
}

static void check_many_threads(void) {
  pthread_t threads[8];
  for (intptr_t i = 0; i < 8; i++)
    CHECK(pthread_create(&threads[i], NULL, put_and_take, (void *)i) == 0, "thread");
  for (int i = 0; i < 8; i++)
    pthread_join(threads[i], NULL);
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("against a reference") check_against_reference();
  CASE("counts") check_counts();
  CASE("many threads") check_many_threads();
  return cases_end();
}
