/* What the files of the model share. */
#ifndef GPU_MODEL_PARTS_H
#define GPU_MODEL_PARTS_H

#include "gpu_model.h"

#include <ucontext.h>

#define MODEL_START_NS (5000 * S)
#define MODEL_QUEUE 65536
#define MODEL_SPINS 32768

struct marker {
  int64_t at_ns; /* 0: not reached */
  bool orphan;
};

struct item {
  int64_t arrives_ns, left_ns;
  int stream;
  struct marker *marker; /* instead of work */
  int spin;              /* number + 1 of a kernel that waits for its counterpart */
};

struct queue {
  struct item items[MODEL_QUEUE];
  uint32_t head, tail;
  uint32_t pending[MODEL_STREAMS];
};

struct model_process {
  int slot, container;
  model_program *program;
  const void *argument;
  ucontext_t context;
  char *stack;
  int64_t now_ns;
  int64_t awake_since_ns; /* the meter's, of its thread */
  int64_t slow_until_ns;  /* a host that has slept is slower at first */
  bool dead;
  bool waits; /* on a futex */
  struct meter meters[MODEL_GPUS];
  struct meter_stream *streams[MODEL_GPUS][MODEL_STREAMS];
  struct queue queues[MODEL_GPUS];
  int64_t worked_ns, longest_launch_ns;
  int64_t look_at_ns[MODEL_GPUS]; /* for company */
  bool company[MODEL_GPUS], measured[MODEL_GPUS];
};

struct gpu {
  int64_t now_ns;
  int running; /* a process, or -1 */
  int64_t slice_left_ns;
  struct turns_file turns;
  bool spin_began[MODEL_SPINS];
};

/* gpu_model.c: all of it, but what the processes have on their stacks. */
extern struct model {
  struct gpu gpus[MODEL_GPUS];
  struct model_container containers[MODEL_CONTAINERS];
  struct model_process *processes[MODEL_PROCESSES];
  int process_count;
  struct model_process *current;
  ucontext_t scheduler;
  unsigned random_state;
  int64_t slow_ns;
  double times_slower;
  int64_t late_ns;
  bool file_is_locked;
  int64_t run_until_ns;
} model;

/* gpu_model_work.c: a process gives work to a GPU; a GPU, or all of them, get as far as that. */
void model_enqueue(struct model_process *process, int gpu, struct item item);
void model_advance(struct gpu *gpu, int64_t until_ns);
void model_advance_all(void);

/* gpu_model_time.c: the current process gets on by so much, and others before it does; its clock, its sleep, and how it
 * reaches the file of the turns. */
void model_pass_time(int64_t duration_ns);
int64_t model_clock_ns(void);
void model_sleep(int64_t duration_ns);
extern const struct turns_system model_turns_system;

/* gpu_model_driver.c: GPU and processes as the meter asks about them. */
extern const struct meter_driver model_driver;

#endif
