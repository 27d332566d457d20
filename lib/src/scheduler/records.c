#include "scheduler/records.h"

#include "base/clock.h"
#include "base/compiler.h"

#include <string.h>

#define RECORDS 4096
#define RECORD_BYTES 40
#define HEADER_BYTES 4096
#define FRESH_NS 4000000LL /* records that others have asked for are of now: to ask takes 0.1 ms */

#define BIND 0x20801238u   /* NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2 */
#define ENABLE 0x90cd0101u /* NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS */
#define FLUSH 0x90cd0104u  /* NV_EVENT_BUFFER_CTRL_CMD_FLUSH */
#define KEEP_NEWEST 2u
#define SIMPLE 1u /* beginnings and ends alone */

enum { BEGINS = 6, ENDS = 7 };

/* Handles that the driver does not use itself. */
#define FIRST_HANDLE 0x7670c000u

struct records_header {
  uint32_t get, put;
  uint64_t count, dropped, data_dropped;
};
struct record {
  uint16_t type, subtype;
  uint32_t data;
  uint8_t tag, vm;
  uint16_t number;
  uint32_t context, pid;
  uint16_t reserved;
  uint8_t gpu_instance, compute_instance;
  int64_t time_ns;
};
struct buffer_parameters {
  uint64_t header, ring;
  uint32_t record_bytes, records;
  uint64_t data;
  uint32_t data_bytes, free_threshold;
  uint64_t notification;
  uint32_t data_threshold, subdevice, flags, header_memory, ring_memory, data_memory;
};
struct bind_parameters {
  uint32_t buffer, record_bytes, detail, filter;
  uint8_t all_users, padding[3];
  uint32_t reason;
};
struct enable_parameters {
  uint8_t enable, padding[3];
  uint32_t flags;
};
_Static_assert(sizeof(struct record) == RECORD_BYTES - 8, "layout"); /* the driver leaves the rest free */

static bool bind(struct records *records, uint32_t first) {
  struct buffer_parameters buffer = {.record_bytes = RECORD_BYTES,
                                     .records = RECORDS,
                                     .free_threshold = 1,
                                     .subdevice = records->subdevice,
                                     .header_memory = first,
                                     .ring_memory = first + 1};
  struct bind_parameters binding = {.buffer = first + 2, .record_bytes = RECORD_BYTES - 8, .detail = SIMPLE};
  struct enable_parameters enable = {.enable = 1, .flags = KEEP_NEWEST};
  return rm_make(records->client, records->client.handle, first + 2, RM_CLASS_EVENT_BUFFER, &buffer, sizeof buffer) ==
             RM_OK &&
         rm_control(records->client, records->subdevice, BIND, &binding, sizeof binding) == RM_OK &&
         rm_control(records->client, first + 2, ENABLE, &enable, sizeof enable) == RM_OK;
}

static uint32_t first_handle(const struct records *records) {
  return FIRST_HANDLE + (records->subdevice & 0xff) * 4;
}

bool records_begin(struct records *records, const struct channels *gpu) {
  *records = (struct records){.client = gpu->client, .subdevice = gpu->subdevice, .is_on = true};
  uint32_t first = first_handle(records);
  records->header = rm_make_memory(gpu->client, first, HEADER_BYTES);
  records->ring = rm_make_memory(gpu->client, first + 1, RECORDS * RECORD_BYTES);
  if (records->header != NULL && records->ring != NULL && bind(records, first) &&
      channels_gpu_time(gpu, &records->on_since_ns) == RM_OK) {
    records->next = records->header->put;
    return true;
  }
  records_end(records);
  return false;
}

void records_end(struct records *records) {
  uint32_t first = first_handle(records);
  rm_release(records->client, records->client.handle, first + 2);
  rm_free_memory(records->client, first, (const void *)records->header, HEADER_BYTES);
  rm_free_memory(records->client, first + 1, (const void *)records->ring, RECORDS * RECORD_BYTES);
  *records = (struct records){0};
}

static void ask_numbers(struct records *records, const struct channels *gpu) {
  uint32_t generation = channels_generation();
  if (records->number_count > 0 && records->generation == generation)
    return;
  records->number_count = 0;
  records->generation = generation;
  for (uint32_t i = 0; i < gpu->channel_count; i++)
    if (channels_context_number(gpu, gpu->channels[i], &records->numbers[records->number_count]) == RM_OK)
      records->number_count++;
}

static bool is_own(const struct records *records, uint32_t context) {
  for (uint32_t i = 0; i < records->number_count; i++)
    if (records->numbers[i] == context)
      return true;
  return false;
}

/* Our context has the GPU from a record of its beginning to that of its end; any other one's beginning ends it too. */
static int64_t follow(struct records *records, const struct record *record) {
  bool own = is_own(records, record->context);
  bool is_on = record->tag == BEGINS ? own : records->is_on && !own;
  int64_t was_on_ns = records->is_on ? max(record->time_ns - records->on_since_ns, 0) : 0;
  records->on_since_ns = max(record->time_ns, records->on_since_ns);
  records->is_on = is_on;
  records->is_other_on = !own && record->tag == BEGINS;
  records->was_driven_away |= own && record->tag == ENDS;
  records->ran_while_off |=
      own && record->tag == BEGINS && records->off_since_ns != 0 && record->time_ns > records->off_since_ns;
  return was_on_ns;
}

void records_note_off(struct records *records, const struct channels *gpu) {
  channels_gpu_time(gpu, &records->off_since_ns);
}

void records_note_on(struct records *records) {
  records->off_since_ns = 0;
  records->ran_while_off = false;
}

/* Returns for how long we were on the GPU by the records that have come. */
static int64_t take_ns(struct records *records) {
  uint32_t put = records->header->put;
  int64_t on_ns = 0;
  records->has_come |= records->next != put;
  for (uint32_t left = RECORDS; records->next != put && records->next < RECORDS && left > 0; left--) {
    struct record record;
    memcpy(&record, (const void *)(records->ring + (size_t)records->next * RECORD_BYTES), sizeof record);
    if (record.tag == BEGINS || record.tag == ENDS)
      on_ns += follow(records, &record);
    records->next = (records->next + 1) % RECORDS;
  }
  return on_ns;
}

/* The driver brings all records that the GPU has made to all who ask, whoever of them does. */
int64_t records_read_ns(struct records *records, const struct channels *gpu, bool all) {
  int64_t host_ns = clock_now_ns(), now_ns = 0;
  if (records->header == NULL)
    return 0;
  ask_numbers(records, gpu);
  records->has_come = false;
  int64_t on_ns = records->is_other_on && !all ? take_ns(records) : 0;
  if (records->has_come)
    records->came_at_ns = host_ns;
  records->is_complete = all || !records->is_other_on || host_ns - records->came_at_ns >= FRESH_NS;
  if (!records->is_complete)
    return on_ns;
  records->are_lost = rm_control(records->client, first_handle(records) + 2, FLUSH, NULL, 0) != RM_OK;
  if (records->are_lost) /* and their memory may be, too */
    return on_ns;
  channels_gpu_time(gpu, &now_ns);
  on_ns += take_ns(records);
  if (records->is_on && now_ns > records->on_since_ns) {
    on_ns += now_ns - records->on_since_ns;
    records->on_since_ns = now_ns;
  }
  return on_ns;
}
