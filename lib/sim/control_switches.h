/* Controls of channels and their groups: off and on, busy or idle, time slices, preemption. */
#pragma once

#include "control_layout.h"

enum control_status answer_idle(struct control_client own, const struct control_idle *call);

enum control_status control_switch_channels(struct control_client own, const struct control_control *call);
enum control_status control_timeslice(struct control_client own, const struct control_control *call);
enum control_status control_preempt(struct control_client own, const struct control_control *call);
enum control_status control_context_id(struct control_client own, const struct control_control *call);
