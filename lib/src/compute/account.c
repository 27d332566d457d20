#include "compute/account.h"

#include "base/bucket.h"
#include "compute/meter_parts.h"
#include "shared/history.h"

struct booking {
  const struct account *account;
  const struct account_entry *entry;
  int bucket;
};

/* Nobody owes what may be had anyway. */
static int64_t pay(const struct booking *booking, int64_t used_ns, int64_t zero_at_ns) {
  const struct account *account = booking->account;
  const struct account_entry *entry = booking->entry;
  int64_t paid_ns = bucket_pay(zero_at_ns, used_ns, entry->now_ns - account->kept_ns, entry->now_ns,
                               account->terms.percents[booking->bucket]);
  return booking->bucket == 0 && account->terms.yields ? min(paid_ns, entry->now_ns) : paid_ns;
}

/* Time that several processes had at once counts once. Any number may stand in the file. */
static int64_t charge(struct vgpu_device_shared *shared, const struct account_entry *entry) {
  int64_t from_ns = min(max(shared->charged_until_ns, entry->since_ns), entry->now_ns);
  int64_t used_ns = min(entry->used_ns, entry->now_ns - from_ns);
  shared->charged_until_ns = from_ns + used_ns;
  return used_ns;
}

static void book(struct vgpu_device_shared *shared, void *booking_) {
  const struct booking *booking = booking_;
  const struct account_entry *entry = booking->entry;
  int64_t used_ns = entry->since_ns != 0 ? charge(shared, entry) : entry->used_ns;
  shared->tokens_zero_at_ns = pay(booking, used_ns, shared->tokens_zero_at_ns);
  shared->busy_ns += (uint64_t)used_ns;
  busy_history_add(shared, entry->now_ns - used_ns, entry->now_ns);
  shared->throttled_ns += (uint64_t)(booking->bucket == booking->account->slowest ? entry->held_ns : 0);
  shared->launches += entry->launches;
  if (entry->launches > 0)
    shared->last_launch_ns = entry->now_ns;
}

/* Each process keeps what it has paid itself, too: a damaged file lets none have more than the limit. */
void account_enter(struct account *account, const struct account_entry *entry) {
  struct booking booking = {.account = account, .entry = entry};
  for (; booking.bucket < account->meter->bucket_count; booking.bucket++) {
    struct meter_bucket *bucket = &account->meter->buckets[booking.bucket];
    set(bucket->paid_zero_at_ns, pay(&booking, entry->used_ns, get(bucket->paid_zero_at_ns)));
    device_state_change(bucket->state, book, &booking);
  }
}

int64_t account_open_at_ns(struct account *account, int64_t now_ns) {
  int64_t latest_ns = 0;
  account->slowest = 0;
  for (int i = account->terms.yields ? 1 : 0; i < account->meter->bucket_count; i++) {
    struct meter_bucket *bucket = &account->meter->buckets[i];
    struct vgpu_device_shared shared;
    uint32_t percent = account->terms.percents[i];
    if (percent >= VGPU_NO_SM_LIMIT)
      continue;
    device_state_read(bucket->state, &shared);
    int64_t zero_at_ns = bucket_zero_at(max(get(bucket->paid_zero_at_ns), shared.tokens_zero_at_ns), now_ns, percent);
    if (zero_at_ns <= latest_ns)
      continue;
    latest_ns = zero_at_ns;
    account->slowest = i;
  }
  return latest_ns;
}
