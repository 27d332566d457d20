/* The control device's answers to a client's allocations, frees and controls. */
#pragma once

#include "control_layout.h"

/* A client that names itself nothing gets its name. */
enum control_status answer_alloc(struct control_client own, struct control_alloc *call);
enum control_status answer_free(struct control_client own, const struct control_free *call);
enum control_status answer_control(struct control_client own, const struct control_control *call);
