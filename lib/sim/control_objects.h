/* The objects that the handles in a client's calls on the control device stand for. */
#pragma once

#include "control_layout.h"
#include "state.h"

/* NULL, where the client has ended, or the call names another one: then the kernel's log has a line more, which is
 * <state file>.log here. */
struct state_client *control_client_of(struct control_client own, uint32_t named);

/* The row of the device with that handle in a list of a client's; SIM_MAX_DEVICES: none. */
unsigned control_row_of(const _Atomic uint32_t handles[SIM_MAX_DEVICES], uint32_t handle);

/* The objects that a call names. */
enum control_status control_find_subdevice(struct control_client own, const struct control_control *call,
                                           unsigned *device_row);
enum control_status control_find_group(struct control_client own, const struct control_control *call, unsigned *row);

/* A control that tells what a handle names. */
enum control_status control_handle_info(struct control_client own, const struct control_control *call);
