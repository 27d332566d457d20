#include "device/suspension.h"

#include "base/clock.h"
#include "base/log.h"

#include <stddef.h>

#define ASK_AGAIN_NS 500000000LL       /* a host that missed the question, or has taken the GPUs anew, sees the next */
#define SHORTEST_INTERVAL_NS 2000000LL /* between checks whether the wait is over */
#define LONGEST_INTERVAL_NS 20000000LL
#define SAY_AFTER_NS 10000000000LL

static int64_t asked_ns;

void suspension_ask(void) {
  int64_t now_ns = clock_now_ns(), before_ns = __atomic_load_n(&asked_ns, __ATOMIC_RELAXED);
  if (now_ns - before_ns < ASK_AGAIN_NS ||
      !__atomic_compare_exchange_n(&asked_ns, &before_ns, now_ns, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    return;
  for (int i = 0; i < process_levels(); i++) {
    struct shared_file *usage = (struct shared_file *)&process_files_at(i)->usage;
    if (shared_file_is_open(usage))
      shared_file_write(usage, &now_ns, sizeof now_ns, offsetof(struct vgpu_usage, asked_ns));
  }
}

void suspension_wait(void) {
  process_is_limited(); /* decides, at the first call */
  int64_t began_ns = clock_now_ns(), waited_ns = 0;
  while (process_is_suspended() && !process_is_free()) {
    static int said;
    suspension_ask();
    if (waited_ns > SAY_AFTER_NS)
      log_once(&said, LOG_WARNING,
               "suspended: this program waits for its GPU, which only the host can give back: "
               "vgpurun resume, or vgpurun guard for its turn; vgpurun smi shows what has it");
    clock_sleep_ns(waited_ns / 16 < SHORTEST_INTERVAL_NS  ? SHORTEST_INTERVAL_NS
                   : waited_ns / 16 < LONGEST_INTERVAL_NS ? waited_ns / 16
                                                          : LONGEST_INTERVAL_NS);
    waited_ns = clock_now_ns() - began_ns;
  }
}

static void at_each_level(void (*act)(struct shared_file *file, off_t at)) {
  for (int i = 0; i < process_levels(); i++) {
    struct shared_file *usage = (struct shared_file *)&process_files_at(i)->usage;
    if (shared_file_is_open(usage))
      act(usage, (off_t)VGPU_START_LOCK_OFFSET);
  }
}

/* The host says first that calls are to wait, and then looks for the lock: of the two, at least one sees the other. */
void suspension_enter_start(void) {
  at_each_level(shared_file_share_byte);
  while (process_is_suspended()) {
    suspension_leave_start();
    suspension_wait();
    at_each_level(shared_file_share_byte);
  }
}

void suspension_leave_start(void) {
  at_each_level(shared_file_leave_byte);
}

static void suspension_forget(void) {
  asked_ns = 0;
}
PROCESS_IN_CHILD(suspension_forget);
