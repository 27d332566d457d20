/*
 * Which of the tenants' folders are worth a look, where there are thousands: programs that were killed leave theirs,
 * and any user may make as many as the disk takes. A pass over all of them takes several refreshes, each of which is
 * bounded: the first by most, and one in a second by more than others, if a folder has come or gone. Each goes on where
 * the last one came to its end, so that a pass ends however often folders come and go. In each pass, of each owner some
 * folders in which nobody was at work are looked at again; the rest are put off: passed over by their names alone, but
 * in every TURNS_PUT_OFF_PASSES-th pass. So the many folders of one owner cost no other owner's their place in a pass.
 * New folders are looked at in the pass that finds them.
 */
#ifndef VGPU_TURNS_TURNS_FOLDERS_H
#define VGPU_TURNS_TURNS_FOLDERS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define TURNS_LOOKS 64       /* at folders, in a refresh */
#define TURNS_IDLE_LOOKS 256 /* in a pass at those of an owner: as many at those idle lately, and for long */
#define TURNS_PUT_OFF_PASSES 16
#define TURNS_LATELY_NS 900000000000LL /* a container that starts slowly begins to work by then */

#define TURNS_OWNERS 64 /* told apart; those that share a number share their looks */
#define TURNS_MARK_SETS 8192
#define TURNS_MARKS 8 /* in a set; of more folders than all sets hold, some are looked at in each pass */

struct turns_folders {
  int64_t long_ns;              /* when the last refresh began that was bounded by more; 0: none yet */
  int64_t changed_ns;           /* when the folder of folders had changed, as this refresh began, */
  int64_t began_ns, seen_ns;    /* as this pass began, and as the last whole one did */
  int passes_left;              /* to be ended in this refresh: what has come may stand before next_entry */
  int looks_left, entries_left; /* in this refresh, */
  int64_t ends_ns;              /* which ends then */
  int64_t next_entry;           /* of the folder of folders, where the last refresh came to its end */
  uint32_t pass;
  uint16_t idle[TURNS_OWNERS][2]; /* looked at in this pass: idle for long, and lately */
  uint32_t put_off[TURNS_MARK_SETS][TURNS_MARKS];
};

/* Returns a number, not 0 above 32 bits, that tells a folder from others and that no other user can foresee. */
uint64_t turns_folder_mark(uint64_t inode, const char *name);

/* Sets the bounds of a refresh. `changed_ns` is when the folder of folders last changed. */
void turns_folders_begin_refresh(struct turns_folders *folders, int64_t changed_ns);

/* Returns whether there is time for another entry. */
bool turns_folders_go_on(struct turns_folders *folders);

/* Takes one of the looks that are left, unless the folder has been put off. */
bool turns_folders_is_due(struct turns_folders *folders, uint64_t mark);

/* Notes that nobody was at work in the folder, on our GPU, who could be given a place. */
void turns_folders_note_idle(struct turns_folders *folders, uint64_t mark, uid_t owner, bool was_lately);

/* Begins the next pass; returns whether this refresh goes on with it. */
bool turns_folders_end_pass(struct turns_folders *folders);

#endif
