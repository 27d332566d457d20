#include "scheduler/channels.h"

#include "cases.h"
#include "check.h"

#include <fcntl.h>

#define CLIENT 0xc1d00001u
#define DEVICE 1u
#define GROUP 10u
#define OTHER_GROUP 11u /* of another device */
#define FIRST 100u      /* channels */
#define MOST 200u
#define CHANNEL_CLASS 0xc86fu

/* A driver that counts how often each channel is off, and refuses a list with one that it has not. */
static struct {
  int file;
  unsigned times_off[MOST];
  bool is_there[MOST];
  unsigned calls, switched; /* and how many channels they named */
} driver;

struct control {
  uint32_t client, object, command, flags;
  uint64_t parameters;
  uint32_t size, status;
};
struct list {
  uint8_t is_off;
  uint32_t count;
  uint64_t unused[2];
  uint32_t clients[RM_MOST_CHANNELS], channels[RM_MOST_CHANNELS];
};

static int answer(int file, unsigned long request, void *argument) {
  struct control *call = argument;
  const struct list *list = (const void *)(uintptr_t)call->parameters;
  (void)request;
  CHECK(file == driver.file && call->client == CLIENT && list->count > 0, "%u channels", list->count);
  driver.calls++;
  call->status = RM_OK;
  for (unsigned i = 0; i < list->count; i++)
    if (list->clients[i] != CLIENT || !driver.is_there[list->channels[i] - FIRST])
      call->status = 0x21;
  for (unsigned i = 0; i < list->count && call->status == RM_OK; i++) {
    unsigned *times = &driver.times_off[list->channels[i] - FIRST];
    *times = list->is_off ? *times + 1 : *times == 0 ? 0 : *times - 1;
    driver.switched++;
  }
  return 0;
}

static unsigned long request_of(unsigned number, size_t size) {
  return 3ul << 30 | size << 16 | RM_TYPE << 8 | number;
}

static void make(uint32_t parent, uint32_t handle, uint32_t object_class) {
  const struct rm_group_parameters compute = {.engine = RM_ENGINE_COMPUTE};
  const struct rm_alloc call = {.root = CLIENT,
                                .parent = parent,
                                .object = handle,
                                .object_class = object_class,
                                .parameters = (uintptr_t)&compute};
  channels_note(driver.file, request_of(RM_ALLOC, sizeof call), &call);
}

static void make_channels(uint32_t group, unsigned first, unsigned count) {
  for (unsigned i = first; i < first + count; i++) {
    driver.is_there[i] = true;
    driver.times_off[i] = 0;
    make(group, FIRST + i, CHANNEL_CLASS);
  }
}

static void free_channel(unsigned place, bool is_seen) {
  const struct rm_free call = {.root = CLIENT, .object = FIRST + place};
  driver.is_there[place] = false;
  driver.times_off[place] = 0;
  if (is_seen)
    channels_note(driver.file, request_of(RM_FREE, sizeof call), &call);
}

static struct channels begin(unsigned count) {
  static int file = -1;
  struct channels gpu;
  uint32_t next = 0;
  file = file < 0 ? open("/dev/null", O_RDWR) : file;
  memset(&driver, 0, sizeof driver);
  driver.file = file;
  rm_ioctl = answer;
  channels_forget();
  for (uint32_t device = DEVICE; device <= DEVICE + 1; device++) {
    make(CLIENT, device, RM_CLASS_DEVICE);
    make(device, 4 + device, RM_CLASS_SUBDEVICE);
    make(device, GROUP + device - DEVICE, RM_CLASS_GROUP);
  }
  make_channels(GROUP, 0, count);
  CHECK(channels_next(&next, &gpu) && gpu.device == DEVICE && gpu.channel_count == count, "%u", gpu.channel_count);
  return gpu;
}

/* So many channels from a place on are off so often. */
static void check_off(unsigned first, unsigned count, unsigned times) {
  for (unsigned i = first; i < first + count; i++)
    CHECK(driver.times_off[i] == times, "channel %u is off %u times", i, driver.times_off[i]);
}

static void check_new_channels(void) {
  struct channels gpu = begin(8);
  CHECK(channels_switch(&gpu, true) == RM_OK, "off");
  make_channels(GROUP, 8, 8);
  make_channels(OTHER_GROUP, 16, 8);
  CHECK(channels_switch(&gpu, true) == RM_OK, "the new ones, too");
  check_off(0, 16, 1);
  check_off(16, 8, 0);
  CHECK(driver.switched == 16, "%u: none was put back meanwhile", driver.switched);
  CHECK(channels_switch(&gpu, false) == RM_OK, "on");
  check_off(0, 24, 0);
  CHECK(channels_switch(&gpu, false) == RM_OK && driver.switched == 32, "what is on is left alone");
}

static void check_refusals(void) {
  struct channels gpu = begin(80);
  free_channel(70, false);
  CHECK(channels_switch(&gpu, true) != RM_OK, "the second call");
  check_off(0, 64, 1);
  check_off(64, 16, 0);
  CHECK(channels_switch(&gpu, true) != RM_OK, "again");
  free_channel(70, true);
  CHECK(channels_switch(&gpu, true) == RM_OK, "the rest");
  check_off(0, 70, 1);
  check_off(71, 9, 1);
  free_channel(3, false);
  CHECK(channels_switch(&gpu, false) != RM_OK, "the first call");
  free_channel(3, true);
  CHECK(channels_switch(&gpu, false) == RM_OK, "on");
  check_off(0, 80, 0);
}

static void check_others(void) {
  struct channels gpu = begin(8);
  for (unsigned i = 0; i < 8; i++)
    driver.times_off[i] = 1;
  CHECK(channels_switch(&gpu, false) == RM_OK && driver.calls == 0, "not ours to put back");
  CHECK(channels_switch(&gpu, true) == RM_OK && channels_switch(&gpu, true) == RM_OK, "off");
  check_off(0, 8, 2);
  CHECK(channels_switch(&gpu, false) == RM_OK && channels_switch(&gpu, false) == RM_OK, "on");
  check_off(0, 8, 1);
}

static void check_freed(void) {
  struct channels gpu = begin(8);
  CHECK(channels_switch(&gpu, true) == RM_OK, "off");
  for (unsigned i = 0; i < 8; i++)
    free_channel(i, true);
  make_channels(GROUP, 0, 8);
  CHECK(channels_switch(&gpu, true) == RM_OK, "those with their numbers");
  check_off(0, 8, 1);
}

int main(int count, char **names) {
  cases_begin(count, names);
  CASE("new channels") check_new_channels();
  CASE("refusals") check_refusals();
  CASE("others have them off") check_others();
  CASE("freed ones") check_freed();
  return cases_end();
}
