/* Shared by the files of the model. */
#ifndef GPU_MODEL_PARTS_H
#define GPU_MODEL_PARTS_H

#include "gpu_model.h"

#include <ucontext.h>

#define MODEL_START_NS (5000 * S)
#define MODEL_QUEUE 4096 /* of a stream: the driver's own queue, and markers */

struct marker {
  int64_t at_ns; /* 0: not reached */
  bool orphan;
};

struct item {
  int64_t arrives_ns, left_ns;
  uint64_t number;       /* in the order of launches */
  struct marker *marker; /* instead of work */
  bool narrow;
  int raises, awaits; /* flags */
};

struct lane {
  struct item *items; /* MODEL_QUEUE */
  uint32_t head, tail;
  int64_t free_from_ns; /* behind a marker */
};

/* A process's work on a GPU. */
struct queue {
  struct lane lanes[MODEL_STREAMS];
  uint64_t busy[MODEL_STREAMS / 64]; /* lanes with items */
  uint32_t pending;
  uint64_t launched;
};

/* Or a thread beside the first one of a process, of which it uses the queues and the library. */
struct model_process {
  struct model_process *of; /* itself, or a thread's */
  int slot, container;
  model_program *program;
  const void *argument;
  ucontext_t context;
  char *stack;
  int64_t now_ns;
  uint64_t random_state;
  int64_t slow_until_ns; /* a host that has slept is slower at first */
  bool dead;
  int64_t worked_ns, longest_launch_ns;
  struct queue queues[MODEL_GPUS];
  /* The library in it. */
  struct meter meters[MODEL_GPUS], *_Atomic made_meters[MODEL_GPUS + 1];
  struct model_files {
    int gpu, container;
    struct turns *turns;
  } files[MODEL_GPUS];
  struct meter_stream *streams[MODEL_GPUS][MODEL_STREAMS]; /* NULL: nothing was launched on it */
  int64_t refresh_at_ns[MODEL_GPUS];                       /* for company */
  bool company[MODEL_GPUS], measured[MODEL_GPUS];
};

/* A tenant's file, in which slots from some number on have never been used. */
struct model_turns {
  struct turns_slot slots[TURNS_SLOTS];
  int used;
};

struct gpu {
  int64_t now_ns;
  int running; /* a process, or -1 */
  int64_t slice_left_ns;
  struct model_turns turns[MODEL_CONTAINERS];
};

/* gpu_model.c: all of it, but what the processes have on their stacks. */
extern struct model {
  struct gpu gpus[MODEL_GPUS];
  bool flags[MODEL_FLAGS];
  bool has_no_clock;
  struct model_container containers[MODEL_CONTAINERS];
  struct model_process *processes[MODEL_PROCESSES];
  int process_count;
  struct model_process *current;
  ucontext_t outside; /* of all processes: what runs the model */
  unsigned random_state;
  int64_t look_ns;
  int64_t slow_ns;
  double times_slower;
  int64_t late_ns;
  int64_t run_until_ns;
} model;

/* gpu_model_work.c: a process gives work to a GPU, or takes all back; how much of a stream's is left; the GPUs get as
 * far as that. */
void model_enqueue(struct model_process *process, int gpu, int stream, struct item item);
void model_drop(struct model_process *process, int64_t now_ns);
uint32_t model_pending(const struct model_process *process, int gpu, int stream);
void model_advance(int64_t until_ns);

/* gpu_model_time.c: the earliest process goes on instead of `from`, or what runs the model when all are far enough; the
 * current process gets on by so much, and others before it does; its clock, its sleep, and how it reaches the files of
 * the turns: a struct model_files. */
void model_go_on(ucontext_t *from);
void model_pass_time(int64_t duration_ns);
int64_t model_clock_ns(void);
void model_sleep(int64_t duration_ns);
extern const struct turns_system model_turns_system;

/* gpu_model_driver.c: GPU and processes as the meter asks about them. */
extern const struct meter_driver model_driver;

/* gpu_model_library.c: what the library does in a process, and around its calls of the driver. */
void library_begin(struct model_process *process);
bool library_before_launch(struct model_process *process, int gpu, int stream, uint64_t work); /* is it measured? */
void library_after_launch(struct model_process *process, int gpu, int stream);
void library_before_wait(struct model_process *process, int gpu, int stream);
void library_after_wait(struct model_process *process, int gpu, int stream);
void library_before_wait_all(struct model_process *process, int gpu);
void library_after_wait_all(struct model_process *process, int gpu);
void library_after_poll(struct model_process *process, int gpu, bool is_done);
void library_forget_stream(struct model_process *process, int gpu, int stream);

#endif
