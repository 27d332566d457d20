#include "tenants/tenants.h"

#include "base/claim.h"
#include "base/clock.h"
#include "tenants/presence.h"

#include <pthread.h>
#include <stdlib.h>

/* Between looks for new tenants, and for new terms: a launch may wait for each. */
#define LOOK_NS 100000000LL

/* Limits of tenants, in percent; how many have none. */
struct sums {
  uint32_t hard, burst, unlimited;
};

struct tenants {
  int32_t lock; /* a claim that guards the rest */
  struct presence presence;
  struct tenant_terms terms; /* our own */
  struct sums others;        /* of no lower priority than ours */
  struct tenants_view view;
  int64_t refreshed_ns, looked_ns, searched_ns;
};

struct tenants *tenants_open(const char *uuid, int device, const struct shared_file *usage, int slot) {
  struct tenants *tenants = calloc(1, sizeof *tenants);
  if (tenants != NULL && presence_open(&tenants->presence, uuid, device, usage, slot))
    return tenants;
  free(tenants);
  return NULL;
}

/* A thread that is cancelled in here would keep what it has claimed. */
static int enter(struct tenants *tenants) {
  int cancel_state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  claim_take(&tenants->lock);
  return cancel_state;
}

static void leave(struct tenants *tenants, int cancel_state) {
  claim_release(&tenants->lock);
  pthread_setcancelstate(cancel_state, NULL);
}

/* ---- shares ------------------------------------------------------------------------------------------------------ */

static bool is_hard(const struct tenant_terms *terms) {
  return terms->percent < VGPU_NO_SM_LIMIT && terms->policy != VGPU_SM_BURST;
}

static uint32_t share_percent(const struct tenant_terms *terms, struct sums others) {
  uint32_t weight = terms->percent > 0 ? terms->percent : 1;
  if (is_hard(terms))
    return weight;
  uint32_t limited = others.hard + others.burst, share = weight;
  if (weight >= VGPU_NO_SM_LIMIT)
    share = (limited < 100 ? 100 - limited : 0) / (others.unlimited + 1);
  else if (weight + limited > 100)
    share = weight * 100 / (weight + limited);
  else if (others.unlimited == 0)
    share = weight * (100 - others.hard) / (weight + others.burst);
  return share > 0 ? share : 1;
}

/* ---- the others -------------------------------------------------------------------------------------------------- */

static void add_to_view(struct tenants *tenants, const struct tenant_terms *terms) {
  bool is_higher = terms->priority < tenants->terms.priority;
  tenants->view.higher_priority |= is_higher;
  tenants->view.peer |= !is_higher;
  tenants->view.tenants++;
  if (terms->priority > tenants->terms.priority)
    return;
  if (terms->percent >= VGPU_NO_SM_LIMIT)
    tenants->others.unlimited++;
  else
    *(terms->policy == VGPU_SM_BURST ? &tenants->others.burst : &tenants->others.hard) += terms->percent;
}

static void refresh(struct tenants *tenants, int64_t now_ns) {
  struct presence *presence = &tenants->presence;
  if (now_ns - tenants->refreshed_ns < TENANTS_KNOWN_NS)
    return;
  presence_note(presence, now_ns);
  if (now_ns - tenants->looked_ns >= LOOK_NS) {
    presence_refresh(presence, now_ns);
    presence_search(presence);
    tenants->looked_ns = tenants->searched_ns = now_ns;
  }
  tenants->refreshed_ns = now_ns;
  tenants->others = (struct sums){0};
  tenants->view = (struct tenants_view){.siblings = presence_count(presence, 0, now_ns)};
  for (int i = 1; i < presence->count; i++)
    if (presence_count(presence, i, now_ns) > 0)
      add_to_view(tenants, &presence->tenants[i].terms);
}

struct tenants_view tenants_refresh(struct tenants *tenants, bool has_time) {
  if (tenants == NULL)
    return (struct tenants_view){0};
  int cancel_state = enter(tenants);
  int64_t now_ns = clock_now_ns();
  refresh(tenants, now_ns);
  if (has_time && tenants->presence.next_entry != 0 && now_ns - tenants->searched_ns >= TENANTS_KNOWN_NS) {
    presence_search(&tenants->presence);
    tenants->searched_ns = now_ns;
  }
  struct tenants_view view = tenants->view;
  leave(tenants, cancel_state);
  return view;
}

uint32_t tenants_share_percent(struct tenants *tenants, const struct tenant_terms *terms) {
  int cancel_state = enter(tenants);
  presence_publish(&tenants->presence, terms);
  tenants->terms = *terms;
  if (!is_hard(terms))
    refresh(tenants, clock_now_ns());
  uint32_t percent = share_percent(terms, tenants->others);
  leave(tenants, cancel_state);
  return percent;
}

void tenants_forget(struct tenants *tenants) {
  presence_forget(&tenants->presence);
}

void tenants_close(struct tenants *tenants) {
  shared_file_close(&tenants->presence.tenants[0].file);
  free(tenants);
}
