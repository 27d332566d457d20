/*
 * GPUs and the processes that use them, on a time of their own: the real meter, gate, bucket and turns run in
 * coroutines, one for each process or thread, and whoever is earliest goes on. The same seed gives the same run.
 *
 * A GPU runs the work of one process at a time, and with work of several switches between them every MODEL_SLICE_NS,
 * which costs MODEL_SWITCH_NS. A kernel fills the GPU: those of several streams run one after the other, in the order
 * of their launches. A narrow one leaves room for all others of its process. As on an H200, work of another process
 * than the last one begins MODEL_HAND_OVER_NS late, and work behind a marker MODEL_MARKER_NS: there kernels of 54.2 us
 * came every 57.0 us when each was marked.
 */
#ifndef GPU_MODEL_H
#define GPU_MODEL_H

#include "compute/meter.h"

#define US 1000LL
#define MS 1000000LL
#define S 1000000000LL

#define MODEL_GPUS 2
#define MODEL_STREAMS 128
#define MODEL_PROCESSES 40 /* and threads */
#define MODEL_CONTAINERS 8
#define MODEL_FLAGS 524288
#define MODEL_SLICE_NS (2 * MS)
#define MODEL_SWITCH_NS (180 * US)
#define MODEL_HAND_OVER_NS (120 * US)
#define MODEL_MARKER_NS (2800LL)
#define MODEL_ENDLESS_NS (1000000 * S)

struct model_container {
  struct vgpu_device_shared device[MODEL_GPUS];
  struct device_state state[MODEL_GPUS], *states[MODEL_GPUS + 1];
  uint32_t percent, policy, priority;
  bool paused;
  bool is_there; /* it has had a process */
};

struct model_process;
typedef void model_program(struct model_process *process);

/* Begins anew, without processes. */
void model_start_over(unsigned seed);

/* How long hosts are slower after a sleep, and how much: 5 ms and 1.3 times without this. */
void model_set_wake_up_slowdown(int64_t duration_ns, double times_slower);

/* How late the end of a wait is seen in each second's first 70 ms, as on a host that has other work for its processors:
 * not at all without this. */
void model_set_lateness(int64_t late_ns);

/* How long a look at the folders of the tenants takes: 3 system calls without this. */
void model_set_look(int64_t look_ns);

struct model_container *model_container(int number);

/* A process of that container, which begins at begin_ns after the start. */
struct model_process *model_start(int container, model_program *program, const void *argument, int64_t begin_ns);

/* Another thread of the process, which is used like one; but what it works counts as its process's. */
struct model_process *model_start_thread(struct model_process *process, model_program *program, const void *argument);

/* Lets all run until that time after the start. */
void model_run(int64_t until_ns);

/* The next two are for between runs: as kill -9, and as SIGSTOP until that time. */
void model_kill(struct model_process *process);
void model_stop(struct model_process *process, int64_t until_ns);

/* For a program that does as it likes: the slots of a container for the first GPU, and the time as it stands in them.
 */
struct turns_slot *model_turns_slots_of(int container);
int64_t model_file_now_ns(void);

/* Does it hold the turn of the first GPU? */
bool model_holds_turn(const struct model_process *process);

/* GPU time that its work has had, where that of several streams at once counts once; how long its longest launch took
 * since the last call of model_forget_stalls. */
int64_t model_worked_ns(const struct model_process *process);
int64_t model_longest_launch_ns(const struct model_process *process);
void model_forget_stalls(struct model_process *process);

/* ---- for programs ------------------------------------------------------------------------------------------------ */

const void *model_argument(const struct model_process *process);
int64_t model_now_ns(const struct model_process *process);
int64_t model_random_ns(struct model_process *process, int64_t least_ns, int64_t most_ns);
void model_think(struct model_process *process, int64_t duration_ns);

struct model_kernel {
  int gpu, stream;
  int64_t duration_ns;
  uint64_t work; /* what it is known by: a function with its grid, or a graph */
  bool narrow;
  int raises, awaits; /* flags, or 0: raised when it begins; until it is raised, the kernel spins */
};
void model_launch_kernel(struct model_process *process, const struct model_kernel *kernel);

/* A filling kernel that is known by its duration, or by something else; and one that spins until its counterpart, the
 * other tenant's or its own one with the same number on the other GPU, has begun. */
void model_launch(struct model_process *process, int gpu, int stream, int64_t duration_ns);
void model_launch_as(struct model_process *process, int gpu, int stream, int64_t duration_ns, uint64_t work);
void model_launch_spin(struct model_process *process, int gpu, int number);

/* Work on the stream that nobody measures, as an asynchronous copy. */
void model_copy(struct model_process *process, int gpu, int stream, int64_t duration_ns);

/* Wait as cuCtxSynchronize, cuStreamSynchronize and cuEventSynchronize do: until no more than so many launches are
 * left. */
void model_synchronize(struct model_process *process, int gpu);
void model_synchronize_stream(struct model_process *process, int gpu, int stream);
void model_wait_behind(struct model_process *process, int gpu, uint32_t most_pending);

/* Do what cuStreamQuery, cuEventRecord and cuEventQuery do: tell whether all is done that was launched, or had been
 * before. */
bool model_is_done(struct model_process *process, int gpu, int stream);
struct marker *model_record(struct model_process *process, int gpu, int stream);
bool model_has_reached(struct model_process *process, struct marker *event);

/* Waits by asking without pause, of each stream, and nobody else knows. */
void model_poll(struct model_process *process, int gpu);

/* Waits until no more than so many launches are left of a stream, and the first of them ends in left_ns: as a program
 * does that looks at what its kernels write to the host's memory. */
void model_watch(struct model_process *process, int gpu, int stream, uint32_t most_pending, int64_t left_ns);

/* Does what cuStreamDestroy and then cuStreamCreate do. */
void model_renew_stream(struct model_process *process, int gpu, int stream);

/* From now on no two markers can be compared. */
void model_lose_clock(void);

/* Exits, with what it has in flight, and goes on as another process of the container that has begun in its place. */
void model_begin_anew(struct model_process *process);

#endif
