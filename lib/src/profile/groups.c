#include "profile/groups.h"

#include "base/compiler.h"

/* An estimate that is nearly certain is off by one part in this many at most. */
#define SURE_PART 16
#define ROUNDING_PART 64 /* tolerance for the steps of the GPU's clock */

/* Work that is not known was over before the marker behind it had been recorded, which is begun as soon as the launch
 * has returned. That may take much longer: the thread may be stopped there. */
#define UNSEEN_NS 20000LL

static int64_t within(int64_t value, int64_t least, int64_t most) {
  return min(max(value, least), most);
}

static struct profile_part *part_of(struct profile_group *group, const struct profile_work *work) {
  for (uint32_t i = 0; i < group->part_count; i++)
    if (group->parts[i].work == work)
      return &group->parts[i];
  return NULL;
}

bool profile_group_takes(const struct profile_group *group, const struct profile_work *work) {
  return group->part_count < PROFILE_GROUP_PARTS || part_of((struct profile_group *)group, work) != NULL;
}

void profile_group_join(struct profile_group *group, struct profile_work *work, uint64_t key, uint32_t fill,
                        int64_t now_ns) {
  int64_t usual_ns = atomic_load_explicit(&work->usual_ns, memory_order_relaxed);
  struct profile_part *part = part_of(group, work);
  if (part == NULL) {
    part = &group->parts[group->part_count++];
    *part = (struct profile_part){.work = work, .key = key, .kernel = atomic_load(&work->kernel)};
  }
  part->launches++;
  part->usual_ns += usual_ns;
  part->fill += fill;
  if (group->launches++ == 0)
    group->began_ns = group->ready_ns = now_ns;
  group->is_unknown |= usual_ns == 0;
  group->had_pause |= now_ns > group->ready_ns;
  group->ready_ns = max(group->ready_ns, now_ns) + usual_ns;
  group->usual_ns += usual_ns;
  group->last_ns = now_ns;
}

void profile_group_take_back(struct profile_group *group, const struct profile_work *work) {
  struct profile_part *part = part_of(group, work);
  if (part == NULL || part->launches == 0)
    return;
  int64_t usual_ns = part->usual_ns / part->launches;
  part->fill -= part->fill / part->launches;
  part->launches--;
  part->usual_ns -= usual_ns;
  group->launches--;
  group->usual_ns -= usual_ns;
}

/*
 * A kernel begins while it is launched, or later: between those two, where the GPU had nothing else to do, nobody knows
 * when. Nor when the last one ended, if the marker behind it was done as soon as it was recorded; then they took what
 * they usually take. So it is with pauses in which the GPU waited for the next launch.
 */
struct profile_measure profile_group_measure(const struct profile_group *group, int64_t start_ns, int64_t end_ns) {
  int64_t from_ns = min(max(start_ns, group->began_ns), end_ns);
  int64_t surely_from_ns = within(group->returned_ns, from_ns, end_ns);
  int64_t most_ns = end_ns - from_ns, unsure_ns = surely_from_ns - from_ns;
  int64_t since_last_ns = group->closed_ns - max(group->last_ns, group->returned_ns);
  bool was_waited_for = end_ns > group->closed_ns + since_last_ns / 8;
  bool had_pause = group->had_pause && start_ns < group->last_ns;
  bool is_soon = unsure_ns * SURE_PART <= most_ns;
  int64_t least_ns = had_pause ? min(end_ns - group->last_ns, most_ns) : most_ns - unsure_ns;
  bool is_sure = was_waited_for && is_soon && !had_pause;
  struct profile_measure measure = {from_ns, end_ns, most_ns, is_sure, is_sure && unsure_ns == 0};
  if (!group->is_unknown)
    measure.busy_ns = within(group->usual_ns, was_waited_for ? least_ns : 0, most_ns);
  else if (!was_waited_for)
    measure.busy_ns = min(most_ns, unsure_ns + UNSEEN_NS);
  else if (!is_soon)
    measure.busy_ns = least_ns;
  if (!was_waited_for)
    measure.to_ns = min(end_ns, max(group->ready_ns, from_ns + measure.busy_ns));
  if (!had_pause)
    measure.from_ns = measure.to_ns - measure.busy_ns;
  return measure;
}

void profile_group_settle(const struct profile_group *group, const struct profile_measure *measure, int64_t own_ns) {
  bool is_learned_from = measure->is_sure && group->part_count == 1 && !group->has_strangers &&
                         own_ns >= measure->busy_ns - measure->busy_ns / ROUNDING_PART;
  for (uint32_t i = 0; i < group->part_count && group->launches > 0; i++) {
    const struct profile_part *part = &group->parts[i];
    double share = group->is_unknown || group->usual_ns == 0 ? (double)part->launches / (double)group->launches
                                                             : (double)part->usual_ns / (double)group->usual_ns;
    int64_t part_ns = (int64_t)(share * (double)own_ns + 0.5);
    profile_kernels_add_time(part->kernel, part_ns);
    if (part->fill > 0)
      profile_kernels_add_fill(part->kernel, part_ns, (double)part->fill / part->launches / PROFILE_FULL);
    if (is_learned_from)
      profile_kernels_learn(part->work, part->key, measure->busy_ns / part->launches, measure->is_certain);
  }
}
