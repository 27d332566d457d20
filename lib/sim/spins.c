#include "spins.h"

#include <string.h>

#define UNTIL "_until_"
#define MARKS 16
#define NAME_BYTES 64
#define LAUNCHES 1024 /* of each mark that are remembered, and spins */
#define OFFSET_BITS 44
#define NUMBERS (1ULL << (62 - OFFSET_BITS)) /* then they begin anew: the older ones have ended long ago */
#define POLL_INTERVAL_NS (50 * NS_PER_US)

/* The awaited kernel's name, up to its own UNTIL. */
struct mark {
  char name[NAME_BYTES];
  uint64_t launches;
  uint64_t begins_ns[LAUNCHES];
};
static struct mark marks[MARKS];
static unsigned mark_count;

struct spin {
  uint64_t number, begins_ns, ends_ns; /* 0: not known yet */
  const struct mark *awaits;
  uint64_t launch; /* of it */
};
static struct spin spins[LAUNCHES];
static uint64_t spin_count;

bool spin_is_one(const char *kernel_name) {
  return strstr(kernel_name, UNTIL) != NULL;
}

static struct mark *find_mark(const char *name, size_t length) {
  for (unsigned i = 0; i < mark_count; i++)
    if (strlen(marks[i].name) == length && strncmp(marks[i].name, name, length) == 0)
      return &marks[i];
  return NULL;
}

static struct mark *make_mark(const char *name, size_t length) {
  struct mark *mark = find_mark(name, length);
  if (mark == NULL && mark_count < MARKS && length < NAME_BYTES) {
    mark = &marks[mark_count++];
    memcpy(mark->name, name, length);
  }
  return mark;
}

static size_t own_length(const char *kernel_name) {
  const char *until = strstr(kernel_name, UNTIL);
  return until != NULL ? (size_t)(until - kernel_name) : strlen(kernel_name);
}

static void note(struct mark *mark, uint64_t begins_ns) {
  mark->begins_ns[mark->launches++ % LAUNCHES] = begins_ns;
}

void spin_note_launch(const char *kernel_name, uint64_t begins_ns) {
  struct mark *mark = mark_count > 0 ? find_mark(kernel_name, own_length(kernel_name)) : NULL;
  if (mark != NULL)
    note(mark, begins_ns);
}

uint64_t spin_launch(const char *kernel_name, uint64_t begins_ns) {
  const char *awaited = strstr(kernel_name, UNTIL) + strlen(UNTIL);
  struct mark *own = make_mark(kernel_name, own_length(kernel_name));
  const struct mark *awaits = make_mark(awaited, own_length(awaited));
  if (own == NULL || awaits == NULL)
    return 0;
  uint64_t number = ++spin_count % NUMBERS;
  spins[number % LAUNCHES] =
      (struct spin){.number = number, .begins_ns = begins_ns, .awaits = awaits, .launch = own->launches};
  note(own, begins_ns);
  return spin_known(1ULL << 62 | number << OFFSET_BITS);
}

/* Whichever is later: its own beginning, or the other's. */
static void end(struct spin *spin) {
  if (spin->awaits->launches <= spin->launch)
    return;
  uint64_t own_ns = spin_known(spin->begins_ns);
  uint64_t other_ns = spin_known(spin->awaits->begins_ns[spin->launch % LAUNCHES]);
  if (spin_is_known(own_ns) && spin_is_known(other_ns))
    spin->ends_ns = max_u64(own_ns, other_ns);
}

/* So many were launched since then that it has ended long ago. */
uint64_t spin_known(uint64_t time_ns) {
  if (spin_is_known(time_ns))
    return time_ns;
  uint64_t offset_ns = time_ns & ((1ULL << OFFSET_BITS) - 1), number = (time_ns ^ 1ULL << 62) >> OFFSET_BITS;
  struct spin *spin = &spins[number % LAUNCHES];
  if (spin->number != number)
    return 0;
  if (spin->ends_ns == 0)
    end(spin);
  return spin->ends_ns != 0 ? spin->ends_ns + offset_ns : time_ns;
}

void spin_wait_until(uint64_t time_ns) {
  clock_wait_until(spin_is_known(time_ns) ? time_ns : clock_ns() + POLL_INTERVAL_NS);
}
