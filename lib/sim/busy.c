#include "busy.h"

#include "common.h"
#include "timeline.h"

struct question {
  unsigned device_row, slot;
  struct span span;
  uint64_t busy_ns;
};

static void answer(struct schedule *schedule, void *argument) {
  struct question *question = argument;
  question->busy_ns = schedule_busy_ns(schedule, question->device_row, question->slot, question->span);
}

static uint64_t ask(unsigned device, unsigned slot, uint64_t begin_ns, uint64_t end_ns) {
  struct question question = {state_row(device), slot, {begin_ns, end_ns}, 0};
  timeline_do(answer, &question);
  return min_u64(question.busy_ns, end_ns - begin_ns);
}

unsigned busy_percent(unsigned device, unsigned slot) {
  uint64_t now_ns = clock_ns();
  return (unsigned)((ask(device, slot, now_ns - NS_PER_S, now_ns) * 100 + NS_PER_S / 2) / NS_PER_S);
}

unsigned busy_sample_percent(unsigned device, uint64_t end_ns) {
  return (unsigned)(ask(device, STATE_NO_SLOT, end_ns - BUSY_SAMPLE_NS, end_ns) * 100 / BUSY_SAMPLE_NS);
}
