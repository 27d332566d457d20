/* Records of context switches, in memory that the process maps. */
#pragma once

#include "control_layout.h"

enum control_status answer_map(struct control_client own, const struct control_map *call);

enum control_status records_alloc(struct control_client own, const struct control_alloc *call);
bool records_free(struct control_client own, uint32_t handle);
enum control_status records_control(struct control_client own, const struct control_control *call);
