/*
 * Whatever is in the usage file: it is taken or refused, and a process keeps to its limit. The input is a length for
 * the file, and then what is written over an empty one: a place, a repetition and a byte, again and again.
 */
#include "check.h"
#include "fuzz.h"
#include "memory/ledger.h"
#include "memory/ledger_totals.h"
#include "shared/level_files.h"

#include <string.h>
#include <unistd.h>

#define LIMIT_BYTES (1ULL << 30)

#define SIZE "\xff\xff\xff\xff" /* more than enough: all of it */
const struct fuzz_input fuzz_inputs[] = {{SIZE, 4},
                                         {"\0\0\0\0", 4},
                                         {SIZE "\x0c\0\0\1\xff", 9}, /* slots_used */
                                         {SIZE "\0\0\0\7V\1\0\0\1C", 14},
                                         {SIZE "\x40\0\0\xff\xff\x80\x80\0\xff\xff\xc0\x80\0\xff\x01", 19},
                                         {NULL, 0}};
const char fuzz_alphabet[] = "";

static struct level_files levels[VGPU_MAX_LEVELS], *const files = &levels[0];

static void make_file(const char *path, const uint8_t *data, size_t size) {
  static uint8_t content[sizeof(struct vgpu_usage)];
  struct vgpu_usage header = {.magic = VGPU_USAGE_MAGIC, .abi_version = VGPU_ABI_VERSION};
  uint32_t length = 0;
  memset(content, 0, sizeof content);
  memcpy(content, &header, 16);
  if (size >= 4)
    memcpy(&length, data, 4);
  for (size_t at = 4; at + 5 <= size; at += 5) {
    size_t place = ((size_t)data[at] | (size_t)data[at + 1] << 8 | (size_t)data[at + 2] << 16) % sizeof content;
    size_t most = sizeof content - place;
    size_t repeated = (size_t)data[at + 3] * data[at + 3];
    memset(content + place, data[at + 4], repeated < most ? repeated : most);
  }
  FILE *file = fopen(path, "w");
  CHECK(file != NULL, "%s", path);
  CHECK(fwrite(content, 1, length < sizeof content ? length : sizeof content, file) <= sizeof content, "%s", path);
  CHECK(fclose(file) == 0, "%s", path);
}

static bool reserves(struct ledger *ledger, int device, uint64_t bytes) {
  return ledger_reserve(ledger, device, bytes, (uint64_t[]){LIMIT_BYTES}).used_bytes != LEDGER_FULL;
}

static void use(struct ledger *ledger) {
  int device = VGPU_MAX_DEVICES - 1;
  ledger_used(ledger, device);
  for (uint64_t held = 0; reserves(ledger, device, LIMIT_BYTES / 8);) {
    ledger_settle(ledger, device, LIMIT_BYTES / 8, LIMIT_BYTES / 8);
    held += LIMIT_BYTES / 8;
    CHECK(held <= LIMIT_BYTES, "%llu bytes held", (unsigned long long)held);
  }
  CHECK(files->usage.path == NULL || truncate(files->usage.path, 40000) == 0, "truncate");
  struct ledger_snapshot before = ledger_snapshot(ledger, device);
  ledger_correct(ledger, device, &before, LIMIT_BYTES, LEDGER_LOOKED, 0);
  ledger_has_process(ledger, 1);
  ledger_release(ledger, device, LIMIT_BYTES);
}

static void count(struct vgpu_device_shared *shared, void *nothing) {
  (void)nothing;
  shared->launches++;
}

static void use_device(struct device_state *state) {
  struct vgpu_device_shared before, after;
  CHECK(device_state_read(state, &before) && device_state_change(state, count, NULL), "a device");
  CHECK(device_state_read(state, &after) && after.launches == before.launches + 1, "changed");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static char path[64];
  static struct ledger_own own;
  snprintf(path, sizeof path, "fuzzed-%d.usage", (int)getpid());
  setenv(VGPU_ENV_USAGE_FILE, path, 1);
  make_file(path, data, size);
  CHECK(level_files_open(levels) == 1, "one level");
  level_files_claim_slot(files);
  own = (struct ledger_own){0};
  struct ledger ledger = {.own = &own, .slots = &level_files_slots, .context = files, .own_slot = files->slot};
  use(&ledger);
  use_device(&files->devices[0]);
  shared_file_close(&files->usage);
  unlink(path);
  return 0;
}
