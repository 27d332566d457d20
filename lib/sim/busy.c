#include "busy.h"

#include "timeline.h"

struct question {
  unsigned device_row, slot;
  uint64_t busy_ns;
};

static void answer(struct schedule *schedule, void *argument) {
  struct question *question = argument;
  question->busy_ns = schedule_busy_ns(schedule, question->device_row, question->slot);
}

unsigned busy_percent(unsigned device, unsigned slot) {
  struct question question = {state_row(device), slot, 0};
  timeline_do(answer, &question);
  return (unsigned)min_u64(100, (question.busy_ns * 100 + NS_PER_S / 2) / NS_PER_S);
}
