/* Calls on the control device: a client's allocations, frees and controls, as a card's driver lays them out. */
#pragma once

#include "common.h"

#define CLASS_CLIENT 0x41
#define CLASS_DEVICE 0x80
#define CLASS_SUBDEVICE 0x2080
#define CLASS_GROUP 0xa06c
#define CLASS_CHANNEL 0xc86f
#define CLASS_MEMORY 0x90ce
#define CLASS_EVENT_BUFFER 0x90cd

/* The controls, by their numbers in a card's driver. */
#define COMMAND_GET_ATTACHED_IDS 0x201
#define COMMAND_GET_ID_INFO 0x205
#define COMMAND_GET_HANDLE_INFO 0xd02
#define COMMAND_DISABLE_CHANNELS 0x2080110b
#define COMMAND_SET_TIMESLICE 0xa06c0103
#define COMMAND_GET_TIMESLICE 0xa06c0104
#define COMMAND_PREEMPT 0xa06c0105
#define COMMAND_GET_CONTEXT_ID 0xa06f0113
#define COMMAND_GET_GID_INFO 0x2080014a
#define COMMAND_GET_TIME 0x20800403
#define COMMAND_BIND_RECORDS 0x20801238
#define COMMAND_ENABLE_RECORDS 0x90cd0101
#define COMMAND_FLUSH_RECORDS 0x90cd0104

enum control_status {
  STATUS_OK = 0,
  STATUS_INSUFFICIENT_RESOURCES = 0x1a,
  STATUS_INSUFFICIENT_PERMISSIONS = 0x1b,
  STATUS_INVALID_ARGUMENT = 0x1f,
  STATUS_INVALID_CHANNEL = 0x21,
  STATUS_INVALID_CLASS = 0x22,
  STATUS_INVALID_CLIENT = 0x23,
  STATUS_NOT_SUPPORTED = 0x56,
  STATUS_NOT_FOUND = 0x57,
  STATUS_BUSY = 0x65,
};

struct control_alloc {
  uint32_t client, parent, handle, class;
  uint64_t parameters, rights;
  uint32_t size, flags, status;
};

/* The older form, without rights and flags. */
struct control_short_alloc {
  uint32_t client, parent, handle, class;
  uint64_t parameters;
  uint32_t size, status;
};

struct control_free {
  uint32_t client, parent, handle, status;
};

struct control_control {
  uint32_t client, object, command, flags;
  uint64_t parameters;
  uint32_t size, status;
};

struct control_idle {
  uint32_t client, device, channel, count;
  uint64_t clients, devices, channels;
  uint32_t flags, timeout_us, status;
};

struct control_map {
  uint32_t client, device, memory, padding;
  uint64_t offset, length, address;
  uint32_t status, flags;
  int32_t file;
  uint32_t padding2;
};

struct device_parameters {
  uint32_t device_row;
};

struct group_parameters {
  uint32_t error, ecc_error, copies_of, engine_type; /* copies_of: the group whose copies the engine makes; 0: none */
};

/* The client to which a descriptor of the device belongs. */
struct control_client {
  uint64_t owner; /* state.h */
  uint32_t handle;
};
