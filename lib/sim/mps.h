/*
 * This process as a client of an MPS server (mps_control.c, mps_server.c). Clients work one after the other, as
 * processes without MPS do; what is simulated is whose channels they have, what they are told, and how they end.
 */
#pragma once

#include "cuda_api.h"

#include <stdbool.h>
#include <stdint.h>

/* Connects with the server of the daemon that is there; without one the process works by itself. */
CUresult mps_connect(void);

/* The owner, in the state file, of the server in whose group its channels are; 0: they are in one of its own. */
uint64_t mps_leader(void);

bool mps_is_client(void);

/* The part of the SMs that it has, in percent. */
unsigned mps_active_percent(void);

/* CUDA_SUCCESS, or what every call returns after a fault of a client, or the end of the server. */
CUresult mps_state(void);

void mps_leave_after_fork(void);
