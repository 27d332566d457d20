/* What a process says of itself in its slot of the file, and how often. */
#include "turns_parts.h"

#include <string.h>

void turns_publish(struct turns *turns, int64_t now_ns) {
  turns->system->write(turns->file, &turns->own, TURNS_OWN_BYTES, turns_place_of(turns->slot));
  turns->published_ns = now_ns;
  turns->said_at_work = turns->own.at_work == 1;
  turns->said_idle_at_ns = turns->own.idle_at_ns;
  turns->said_seen_ns = turns->own.seen_ns;
}

void turns_begin(struct turns *turns, const struct turns_system *system, void *file, int slot) {
  *turns = (struct turns){.system = system, .file = file, .slot = slot};
  struct turns_slot fresh = {0};
  system->write(file, &fresh, sizeof fresh, turns_place_of(slot));
  turns_make_room(turns);
}

void turns_note_presence(struct turns *turns) {
  claim_take(&turns->lock);
  turns->own.seen_ns = turns->system->now_ns();
  if (turns->own.seen_ns - turns->said_seen_ns >= TURNS_LATELY_ALONE_NS)
    turns_publish(turns, turns->own.seen_ns);
  claim_release(&turns->lock);
}

void turns_announce_pass(struct turns *turns, int64_t at_ns) {
  claim_take(&turns->lock);
  turns->own.passes_at_ns = at_ns;
  turns_publish(turns, turns->system->now_ns());
  claim_release(&turns->lock);
}

/* Others see a little more than we expect, and need not be told of every launch; nor of every wait, if it was short. */
void turns_note_activity(struct turns *turns, int64_t idle_at_ns) {
  claim_take(&turns->lock);
  int64_t now_ns = turns->system->now_ns();
  bool known = turns->said_at_work && idle_at_ns <= turns->said_idle_at_ns &&
               idle_at_ns > turns->said_idle_at_ns - 2 * TURNS_LATELY_NS;
  int64_t lately_ns = !turns->company ? TURNS_LATELY_ALONE_NS : known ? TURNS_SILENT_NS / 4 : 0;
  turns->own.seen_ns = now_ns;
  turns->own.at_work = 1;
  turns->own.idle_at_ns = known ? turns->said_idle_at_ns : idle_at_ns + TURNS_LATELY_NS;
  if (now_ns - turns->published_ns >= lately_ns)
    turns_publish(turns, now_ns);
  claim_release(&turns->lock);
}

/* Told rarely where that comes after each launch: who has said that it is at work, and then nothing, may be believed to
 * be so. */
void turns_note_idleness(struct turns *turns) {
  claim_take(&turns->lock);
  int64_t now_ns = turns->system->now_ns();
  turns->own.at_work = 0;
  turns->own.idle_at_ns = turns_min(turns->own.idle_at_ns, now_ns);
  if (turns->said_at_work && now_ns - turns->published_ns >= TURNS_LATELY_NS)
    turns_publish(turns, now_ns);
  claim_release(&turns->lock);
}

void turns_set_stuck(struct turns *turns, bool stuck) {
  claim_take(&turns->lock);
  if (turns->own.stuck != stuck) {
    turns->own.stuck = stuck;
    turns_publish(turns, turns->system->now_ns());
  }
  claim_release(&turns->lock);
}

void turns_set_terms(struct turns *turns, const struct turns_terms *terms) {
  claim_take(&turns->lock);
  if (memcmp(&turns->own.terms, terms, sizeof *terms) != 0) {
    turns->own.terms = *terms;
    turns_publish(turns, turns->system->now_ns());
  }
  claim_release(&turns->lock);
}
