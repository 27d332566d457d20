#include "scheduler/samples.h"

#include "base/compiler.h"

#include <stddef.h>

#define SAMPLE_NS 200000000LL
#define ASK_AGAIN_NS 10000000LL /* where a sample is late */
#define MARK_NS 2000000LL
#define LEAST_IDLE 0.05 /* of what was had, that counts: a sample is rounded */

static struct samples_mark *mark_at(struct samples *samples, uint32_t number) {
  return &samples->marks[number % SAMPLES_MARKS];
}

static void mark(struct samples *samples) {
  uint32_t count = samples->mark_count;
  bool is_soon = count > 1 && samples->now.at_ns - mark_at(samples, count - 2)->at_ns < MARK_NS;
  samples->mark_count = is_soon ? count : count + 1;
  *mark_at(samples, samples->mark_count - 1) = samples->now;
}

int64_t samples_charge(struct samples *samples, int64_t at_ns, int64_t had_ns) {
  int64_t less_ns = min((int64_t)((double)had_ns * samples->part), samples->credit_ns);
  samples->credit_ns -= less_ns;
  if (samples->mark_count == 0)
    samples->company_ns = at_ns; /* nobody knows what was before */
  samples->now.at_ns = at_ns;
  samples->now.had_ns += had_ns;
  mark(samples);
  return had_ns - less_ns;
}

int64_t samples_give_back(struct samples *samples, int64_t most_ns) {
  int64_t back_ns = min(max(most_ns, 0), samples->credit_ns);
  samples->credit_ns -= back_ns;
  return back_ns;
}

static int64_t between(int64_t from_ns, int64_t to_ns, double part) {
  return from_ns + (int64_t)((double)(to_ns - from_ns) * part);
}

/* Finds how it was at that time; false where that is not known. */
static bool find(struct samples *samples, int64_t at_ns, struct samples_mark *found) {
  uint32_t number = samples->mark_count, oldest = number - min(number, SAMPLES_MARKS);
  struct samples_mark after = samples->now, before = {.at_ns = at_ns};
  bool is_known = false;
  while (number > oldest) {
    const struct samples_mark *mark = mark_at(samples, --number);
    if (mark->at_ns <= at_ns) {
      before = *mark;
      is_known = true;
      break;
    }
    after = *mark;
  }
  double part = after.at_ns > at_ns ? (double)(at_ns - before.at_ns) / (double)(after.at_ns - before.at_ns) : 1;
  found->had_ns = between(before.had_ns, after.had_ns, part);
  return is_known;
}

static void compare(struct samples *samples, const struct gpu_sample *sample) {
  struct samples_mark begin, end;
  int64_t length_ns = sample->ended_ns - samples->seen_ns;
  bool is_known =
      find(samples, samples->seen_ns, &begin) && find(samples, sample->ended_ns, &end) && length_ns <= 2 * SAMPLE_NS;
  double busy_ns = (double)length_ns * (sample->percent + 0.5) / 100;
  double had_ns = is_known ? (double)(end.had_ns - begin.had_ns) : 0, idle_ns = had_ns - busy_ns;
  samples->credit_ns = idle_ns > LEAST_IDLE * had_ns ? samples->credit_ns + (int64_t)idle_ns : 0;
  samples->part = had_ns > 0 ? (double)min(samples->credit_ns, (int64_t)had_ns) / had_ns : 0;
}

void samples_look(struct samples *samples, bool is_alone) {
  struct gpu_sample found[SAMPLES_MOST];
  int64_t now_ns = samples->now.at_ns;
  if (!is_alone) {
    samples->company_ns = now_ns;
    samples->credit_ns = 0;
  }
  bool is_due = now_ns >= max(samples->seen_ns + SAMPLE_NS, samples->asked_ns + ASK_AGAIN_NS);
  if (!is_alone || !is_due || samples->ask == NULL)
    return;
  int count = samples->ask(samples->device, samples->seen_ns, found);
  samples->asked_ns = now_ns;
  if (count < 0)
    samples->ask = NULL;
  for (int i = 0; i < count; i++) {
    if (samples->seen_ns >= samples->company_ns)
      compare(samples, &found[i]);
    samples->seen_ns = found[i].ended_ns;
  }
}
