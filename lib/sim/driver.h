/*
 * The driver as a process sees it. Every call takes the one lock, works and releases it; a call that has to wait for
 * the device computes how long, releases the lock, and then waits.
 */
#pragma once

#include "config.h"
#include "cuda_api.h"
#include "handles.h"

/* How far this process has got; a forked child of a process that was ready cannot use CUDA at all. */
enum driver_stage { DRIVER_NOT_READY, DRIVER_READY, DRIVER_FORKED };
enum driver_stage driver_stage(void);
void driver_set_ready(void);

/* CUDA_ERROR_NOT_INITIALIZED without cuInit, and in a forked child. Takes no lock. */
CUresult driver_check_ready(void);

/* Opens the state for a call that works without cuInit and concerns other processes. */
CUresult driver_open_state(void);

/* Opens the state for a call that works without cuInit and changes what devices do: the process gets a slot. */
bool driver_join_state(void);

/* The same, for a caller with the lock, once the configuration is loaded. */
bool driver_join(void);

/* Takes the lock; CUDA_ERROR_NOT_INITIALIZED without cuInit, and in a forked child. Waits while another process has
 * locked this one. */
CUresult driver_enter(void);

/* Lets go of the lock and hands back the result. */
CUresult driver_leave(CUresult result);

/* The lock for those that do not wait while calls are kept out: cuInit, and the thread that keeps them out. */
void driver_lock_anyway(void);
void driver_unlock(void);

/* Makes driver_enter() wait from now on, or no longer. The caller holds the lock. */
void driver_keep_out(void);
void driver_let_in(void);
