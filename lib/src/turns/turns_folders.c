#include "turns/turns_folders.h"

#include "base/clock.h"

#include <string.h>
#include <sys/auxv.h>

#define ENTRIES 2048         /* read of the folder of folders in a refresh; far cheaper than looks */
#define REFRESH_NS 200000LL  /* of each TURNS_KNOWN_NS; a look may take long where a disk is slow */
#define FIRST_NS 500000000LL /* a program's first launch takes about as long */
#define LONG_NS 50000000LL   /* finds a new folder among 20000 */
#define LONG_INTERVAL_NS 1000000000LL
#define LONG_LOOKS 65536
#define LONG_ENTRIES 262144

static uint64_t mixed(uint64_t number) {
  number = (number ^ number >> 32) * 0xd6e8feb86659fd93;
  number = (number ^ number >> 32) * 0xd6e8feb86659fd93;
  return number ^ number >> 32;
}

/* Returns some of the 16 random bytes that the kernel gives each process. */
static uint64_t secret(void) {
  uint64_t secret = 0;
  const void *random = (const void *)getauxval(AT_RANDOM);
  if (random != NULL)
    memcpy(&secret, random, sizeof secret);
  return secret;
}

/* Counts the name as well, since inodes are given anew. */
uint64_t turns_folder_mark(uint64_t inode, const char *name) {
  uint64_t mark = mixed(secret() ^ inode);
  for (; *name != '\0'; name++)
    mark = (mark ^ (unsigned char)*name) * 0x100000001b3;
  return mixed(mark) | 1ULL << 63;
}

static void begin_pass(struct turns_folders *folders) {
  folders->next_entry = 0;
  folders->began_ns = folders->changed_ns;
  memset(folders->idle, 0, sizeof folders->idle);
}

void turns_folders_begin_refresh(struct turns_folders *folders, int64_t changed_ns) {
  int64_t now_ns = clock_now_ns();
  bool is_first = folders->long_ns == 0, has_changed = changed_ns != folders->seen_ns;
  bool is_long = is_first || (has_changed && now_ns - folders->long_ns >= LONG_INTERVAL_NS);
  folders->looks_left = is_long ? LONG_LOOKS : TURNS_LOOKS;
  folders->entries_left = is_long ? LONG_ENTRIES : ENTRIES;
  folders->ends_ns = now_ns + (is_first ? FIRST_NS : is_long ? LONG_NS : REFRESH_NS);
  folders->passes_left = is_long && folders->next_entry != 0 ? 2 : 1;
  folders->changed_ns = changed_ns;
  if (is_long)
    folders->long_ns = now_ns;
  if (folders->next_entry == 0)
    begin_pass(folders);
}

bool turns_folders_go_on(struct turns_folders *folders) {
  return --folders->entries_left > 0 && folders->looks_left > 0 && clock_now_ns() < folders->ends_ns;
}

/* Returns the mark's place in its set; where it has none, one for it: a free one, or any. */
static uint32_t *place_of(struct turns_folders *folders, uint64_t mark) {
  uint32_t *set = folders->put_off[mark % TURNS_MARK_SETS], *place = &set[mark >> 32 & (TURNS_MARKS - 1)];
  for (int i = 0; i < TURNS_MARKS; i++) {
    if (set[i] == (uint32_t)(mark >> 32))
      return &set[i];
    if (set[i] == 0)
      place = &set[i];
  }
  return place;
}

bool turns_folders_is_due(struct turns_folders *folders, uint64_t mark) {
  bool is_put_off = *place_of(folders, mark) == (uint32_t)(mark >> 32);
  if (is_put_off && (mark >> 16) % TURNS_PUT_OFF_PASSES != folders->pass % TURNS_PUT_OFF_PASSES)
    return false;
  folders->looks_left--;
  return true;
}

void turns_folders_note_idle(struct turns_folders *folders, uint64_t mark, uid_t owner, bool was_lately) {
  uint16_t *idle = &folders->idle[mixed(secret() ^ owner) % TURNS_OWNERS][was_lately];
  uint32_t *place = place_of(folders, mark);
  if (*idle >= TURNS_IDLE_LOOKS)
    *place = (uint32_t)(mark >> 32);
  else if (*place == (uint32_t)(mark >> 32))
    *place = 0;
  *idle += *idle < TURNS_IDLE_LOOKS;
}

bool turns_folders_end_pass(struct turns_folders *folders) {
  folders->pass++;
  folders->seen_ns = folders->began_ns;
  begin_pass(folders);
  return --folders->passes_left > 0;
}
