/* What the controls of the control device do: the commands, by their numbers in a card's driver. */
#ifndef SIM_CONTROL_CALLS_H
#define SIM_CONTROL_CALLS_H

#include "control_answers.h"
#include "state.h"

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

/* NULL, where the client has ended, or the call names another one: then the kernel's log has a line more, which is
 * <state file>.log here. */
struct state_client *control_client_of(struct control_client own, uint32_t named);

/* The objects that a call names. */
enum control_status control_find_subdevice(struct control_client own, const struct control_control *call,
                                           unsigned *device_row);
enum control_status control_find_group(struct control_client own, const struct control_control *call, unsigned *row);

enum control_status control_switch_channels(struct control_client own, const struct control_control *call);
enum control_status control_timeslice(struct control_client own, const struct control_control *call);
enum control_status control_handle_info(struct control_client own, const struct control_control *call);
enum control_status control_context_id(struct control_client own, const struct control_control *call);

/* Records of context switches (control_records.c). */
enum control_status records_alloc(struct control_client own, const struct control_alloc *call);
bool records_free(struct control_client own, uint32_t handle);
enum control_status records_control(struct control_client own, const struct control_control *call);

enum control_status control_preempt(struct control_client own, const struct control_control *call);

#endif
