#include "scheduler/records.h"

#include "base/clock.h"

#include "cases.h"
#include "check.h"

#define OWN 7u
#define OTHER 8u
#define MS 1000000LL
#define RECORD_BYTES 40
#define FLUSH 0x90cd0104u

enum { BEGINS = 6, ENDS = 7 };

/* A driver that brings records when anybody asks for them: its GPU's time stands where the test has it. */
static struct {
  struct {
    uint32_t get, put;
    uint64_t count, dropped, data_dropped;
  } header;
  unsigned char ring[4096 * RECORD_BYTES];
  uint32_t made;
  int64_t time_ns;
  unsigned flushes;
} driver;

struct control {
  uint32_t client, object, command, flags;
  uint64_t parameters;
  uint32_t size, status;
};

static int answer(int file, unsigned long request, void *argument) {
  struct control *call = argument;
  (void)file;
  (void)request;
  call->status = RM_OK;
  if (call->command == FLUSH) {
    driver.flushes++;
    driver.header.put = driver.made;
  } else {
    *(int64_t *)(uintptr_t)call->parameters = driver.time_ns;
  }
  return 0;
}

/* The GPU makes a record, at a time in milliseconds. */
static void record(uint32_t context, unsigned char tag, int64_t at_ms) {
  unsigned char *place = driver.ring + (size_t)driver.made++ * RECORD_BYTES;
  const int64_t at_ns = at_ms * MS;
  place[8] = tag;
  memcpy(place + 12, &context, sizeof context);
  memcpy(place + 24, &at_ns, sizeof at_ns);
}

static void other_asks(void) {
  driver.header.put = driver.made;
}

static struct records begin(void) {
  memset(&driver, 0, sizeof driver);
  rm_ioctl = answer;
  return (struct records){.header = (const void *)&driver.header,
                          .ring = driver.ring,
                          .generation = channels_generation(),
                          .numbers = {OWN},
                          .number_count = 1};
}

static int64_t read_ms(struct records *records, int64_t now_ms) {
  const struct channels gpu = {0};
  driver.time_ns = now_ms * MS;
  return records_read_ns(records, &gpu, false) / MS;
}

static void wait_until_old(void) {
  clock_sleep_ns(6 * MS);
}

static void check_asking(void) {
  struct records records = begin();
  record(OWN, BEGINS, 10);
  CHECK(read_ms(&records, 13) == 3 && records.is_complete, "what it is in the middle of counts");
  CHECK(read_ms(&records, 14) == 1 && driver.flushes == 2, "%u: who is alone asks at each look", driver.flushes);
  record(OWN, ENDS, 16);
  CHECK(read_ms(&records, 20) == 2 && records.was_driven_away, "until it ended");
}

static void check_waiting(void) {
  struct records records = begin();
  record(OWN, BEGINS, 10);
  record(OWN, ENDS, 14);
  record(OTHER, BEGINS, 14);
  CHECK(read_ms(&records, 15) == 4 && driver.flushes == 1 && records.is_complete, "until then it is to ask");
  record(OTHER, ENDS, 18);
  record(OTHER, BEGINS, 18);
  other_asks();
  CHECK(read_ms(&records, 19) == 0 && driver.flushes == 1, "another one has asked");
  CHECK(!records.is_complete, "what came after that is not known");
  record(OTHER, ENDS, 22);
  record(OWN, BEGINS, 22);
  record(OWN, ENDS, 25);
  record(OTHER, BEGINS, 25);
  CHECK(read_ms(&records, 26) == 0 && driver.flushes == 1, "that was just now");
  other_asks();
  CHECK(read_ms(&records, 26) == 3 && driver.flushes == 1 && records.was_driven_away, "a turn that is over");
  record(OTHER, ENDS, 28);
  record(OWN, BEGINS, 28);
  other_asks();
  CHECK(read_ms(&records, 30) == 2 && driver.flushes == 2 && records.is_complete, "a turn is followed exactly");
}

static void check_that_nobody_else_asks(void) {
  struct records records = begin();
  record(OTHER, BEGINS, 10);
  other_asks();
  records.is_other_on = true;
  CHECK(read_ms(&records, 11) == 0 && driver.flushes == 0, "another one has asked");
  wait_until_old();
  record(OWN, BEGINS, 16);
  CHECK(read_ms(&records, 18) == 2 && driver.flushes == 1 && records.is_complete, "and does not any more");
  record(OWN, ENDS, 20);
  record(OTHER, BEGINS, 20);
  other_asks();
  const struct channels gpu = {0};
  CHECK(records_read_ns(&records, &gpu, true) / MS == 2 && driver.flushes == 2, "all of it is asked for");
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("asking") check_asking();
  CASE("waiting") check_waiting();
  CASE("nobody else asks") check_that_nobody_else_asks();
  return cases_end();
}
