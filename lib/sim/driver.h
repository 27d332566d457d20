/*
 * One process's view of the driver. Every call takes the one lock, works, and lets go; a call that has to wait for
 * the device computes until when, lets go, and waits then.
 */
#ifndef SIM_DRIVER_H
#define SIM_DRIVER_H

#include "config.h"
#include "cuda_api.h"
#include "handles.h"

struct context;

/* CUDA_ERROR_NOT_INITIALIZED without cuInit, and in a forked child. Takes no lock. */
CUresult driver_check_ready(void);

/* Opens the state for a call that works without cuInit and concerns other processes. */
CUresult driver_open_state(void);

/* Opens the state for a call that works without cuInit and changes what devices do: the process gets a slot. */
bool driver_join_state(void);

/* Takes the lock; CUDA_ERROR_NOT_INITIALIZED without cuInit, and in a forked child. Waits while another process has
 * locked this one. */
CUresult driver_enter(void);

/* The same, and finds the calling thread's current context. */
CUresult driver_enter_context(struct context **context);

/* Lets go of the lock and hands back the result. */
CUresult driver_leave(CUresult result);

/* Lets go, waits for a moment on the device, and comes back in to give unused pool memory back. */
CUresult driver_leave_and_wait(uint64_t until_ns);

#endif
