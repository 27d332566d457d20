#include "spins.h"

#include <string.h>

#include "spin_ends.h"
#include "timeline.h"
#include "times.h"

#define UNTIL "_until_"
#define MARKS 16
#define NAME_BYTES 64
#define LAUNCHES SPIN_ENDS /* remembered launches of each mark, and remembered spins */

/* The awaited kernel's name, up to its own UNTIL. */
struct mark {
  char name[NAME_BYTES];
  uint64_t launches;
  uint64_t begins_ns[LAUNCHES];
};
static struct mark marks[MARKS];
static unsigned mark_count;

struct spin {
  uint64_t number, begins_ns, duration_ns;
  bool goes_on;
  const struct mark *awaits;
  uint64_t launch; /* number of its launch */
  unsigned group;
};
static struct spin spins[LAUNCHES];
static uint64_t spin_count, ended_count; /* all up to that one have ended */

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

static struct spin *spin_at(uint64_t number) {
  return &spins[number % LAUNCHES];
}

static void set_end(struct spin *spin, uint64_t end_ns) {
  spin->goes_on = false;
  spin_set_end(spin->number, end_ns);
}

static void set_spinning(const struct spin *spin, int change) {
  atomic_fetch_add(&group_at(spin->group)->spinning, (uint32_t)change);
}

static bool depends_on_spin(uint64_t time_ns) {
  uint64_t after_ns;
  return time_is_spin(time_ns) && spin_end(time_ns, &after_ns) == SPIN_GOES_ON;
}

/* Whichever is later: its own beginning, or the other's. The spin's own time comes behind both. */
static bool end(struct spin *spin) {
  if (spin->awaits->launches <= spin->launch)
    return false;
  uint64_t other_ns = spin->awaits->begins_ns[spin->launch % LAUNCHES];
  if (depends_on_spin(spin->begins_ns) || depends_on_spin(other_ns))
    return false;
  uint64_t begins_ns = time_later(time_in_group(spin->group, spin->begins_ns), time_in_group(spin->group, other_ns));
  set_end(spin, timeline_queue(spin->group, (struct work){.after = begins_ns, .duration_ns = spin->duration_ns}));
  set_spinning(spin, -1);
  return true;
}

/* Ends all spins that can end, again and again: a spin that ends may be what another one waits for. */
static void end_all(void) {
  bool again = true;
  while (again) {
    again = false;
    for (uint64_t number = ended_count + 1; number <= spin_count; number++)
      if (spin_at(number)->goes_on)
        again |= end(spin_at(number));
      else if (number == ended_count + 1)
        ended_count = number;
  }
}

static void note(struct mark *mark, uint64_t begins_ns) {
  mark->begins_ns[mark->launches++ % LAUNCHES] = begins_ns;
  end_all();
}

bool spin_is_awaited(const char *kernel_name) {
  return mark_count > 0 && find_mark(kernel_name, own_length(kernel_name)) != NULL;
}

void spin_note_launch(const char *kernel_name, uint64_t begins_ns) {
  note(find_mark(kernel_name, own_length(kernel_name)), begins_ns);
}

uint64_t spin_launch(const char *kernel_name, unsigned group, uint64_t begins_ns, uint64_t duration_ns) {
  const char *awaited = strstr(kernel_name, UNTIL) + strlen(UNTIL);
  struct mark *own = make_mark(kernel_name, own_length(kernel_name));
  const struct mark *awaits = make_mark(awaited, own_length(awaited));
  if (own == NULL || awaits == NULL || spin_count - ended_count >= LAUNCHES)
    return 0;
  uint64_t number = ++spin_count;
  *spin_at(number) = (struct spin){number, begins_ns, duration_ns, true, awaits, own->launches, group};
  spin_set_end(number, SPIN_GOES_ON);
  set_spinning(spin_at(number), 1);
  note(own, begins_ns);
  return spin_name(number);
}

void spins_end_of(unsigned group) {
  for (uint64_t number = ended_count + 1; number <= spin_count; number++)
    if (spin_at(number)->group == group && spin_at(number)->goes_on)
      set_end(spin_at(number), clock_ns());
  end_all();
}
