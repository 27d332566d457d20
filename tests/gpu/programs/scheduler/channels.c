#include "channels.h"

#include <string.h>

/* NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS */
#define DISABLE_CHANNELS 0x2080110bu
struct disable_channels {
  uint8_t disable, padding[3];
  uint32_t count;
  uint8_t only_scheduling, rewind, padding2[6];
  uint64_t event;
  uint32_t clients[OBJECTS_MOST_CHANNELS], channels[OBJECTS_MOST_CHANNELS];
};
_Static_assert(sizeof(struct disable_channels) == 536, "layout");

#define SET_TIMESLICE 0xa06c0103u /* NVA06C_CTRL_CMD_SET_TIMESLICE */
#define GET_TIMESLICE 0xa06c0104u
#define GET_CONTEXT_ID 0xa06f0113u /* NVA06F_CTRL_CMD_GET_CONTEXT_ID */
#define GET_GID_INFO 0x2080014au   /* NV2080_CTRL_CMD_GPU_GET_GID_INFO: in ASCII */
#define GET_TIME 0x20800403u       /* NV2080_CTRL_CMD_TIMER_GET_TIME */

struct gid_info {
  uint32_t index, flags, length;
  uint8_t data[CHANNELS_UUID_BYTES];
};

uint32_t channels_switch(const struct objects_gpu *gpu, bool off) {
  struct disable_channels call = {.disable = off, .count = gpu->channel_count};
  for (uint32_t i = 0; i < gpu->channel_count; i++) {
    call.clients[i] = gpu->client.handle;
    call.channels[i] = gpu->channels[i];
  }
  return rm_control(gpu->client, gpu->subdevice, DISABLE_CHANNELS, &call, sizeof call);
}

uint32_t channels_set_slice(const struct objects_gpu *gpu, uint64_t slice_us) {
  uint32_t status = RM_OK;
  for (uint32_t i = 0; i < gpu->group_count && status == RM_OK; i++)
    status = rm_control(gpu->client, gpu->groups[i], SET_TIMESLICE, &slice_us, sizeof slice_us);
  return status;
}

uint32_t channels_slice_us(const struct objects_gpu *gpu, uint64_t *slice_us) {
  return rm_control(gpu->client, gpu->groups[0], GET_TIMESLICE, slice_us, sizeof *slice_us);
}

uint32_t channels_ask_busy(const struct objects_gpu *gpu) {
  return rm_ask_idle(gpu->client, gpu->device, gpu->channels, gpu->channel_count);
}

uint32_t channels_context_number(const struct objects_gpu *gpu, uint32_t channel, uint32_t *number) {
  return rm_control(gpu->client, channel, GET_CONTEXT_ID, number, sizeof *number);
}

uint32_t channels_uuid(const struct objects_gpu *gpu, char uuid[CHANNELS_UUID_BYTES]) {
  struct gid_info info = {0};
  uint32_t status = rm_control(gpu->client, gpu->subdevice, GET_GID_INFO, &info, sizeof info);
  memcpy(uuid, info.data, CHANNELS_UUID_BYTES);
  uuid[CHANNELS_UUID_BYTES - 1] = '\0';
  return status;
}

uint32_t channels_gpu_time(const struct objects_gpu *gpu, int64_t *time_ns) {
  return rm_control(gpu->client, gpu->subdevice, GET_TIME, time_ns, sizeof *time_ns);
}
