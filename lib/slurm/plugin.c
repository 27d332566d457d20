/*
 * vgpurun's SPANK plugin for Slurm: holds every task of a job to the job's slice, which `vgpurun slurm prolog` has
 * made.
 *
 * Each task gets a view of the file system of its own, in which the slice's files lie where a container has them. So
 * the library comes by /etc/ld.so.preload and reads its limits there, whatever the task does with its environment.
 *
 * plugstack.conf:    required /PATH/spank_vgpurun.so [state=/var/lib/vgpurun]
 *
 * A task is refused rather than left without its limits. Built for one release of Slurm: vgpurun slurm build-plugin.
 */
#include <slurm/spank.h>

#include "slice.h"

#define EXPORTED __attribute__((visibility("default")))
#define EXIT_REFUSED 125 /* as of every other failure of vgpurun itself */

#pragma GCC visibility push(default)
SPANK_PLUGIN(vgpurun, 1)
#pragma GCC visibility pop

#define TEXT(value) #value
#define TEXT_OF(value) TEXT(value)
/* By which `vgpurun slurm check` knows the release that this was built for. */
__attribute__((used)) static const char marker[] = "vgpurun spank plugin slurm=" TEXT_OF(SLURM_VERSION_NUMBER) " ";

static const char *state_folder = "/var/lib/vgpurun";
/* As they were written; NULL where they were not given. */
static char *asked_memory, *asked_sm;

static int keep(char **option, const char *text) {
  free(*option);
  *option = strdup(text);
  return *option ? 0 : ESPANK_ERROR;
}

static int take_memory(int value, const char *text, int remote) {
  (void)value, (void)remote;
  return keep(&asked_memory, text);
}

static int take_sm(int value, const char *text, int remote) {
  (void)value, (void)remote;
  return keep(&asked_sm, text);
}

EXPORTED struct spank_option spank_options[] = {
    {"vgpu-mem", "SIZE", "vgpurun: GPU memory of the job on each of its GPUs, such as 1500m, 2g or 25%", 1, 0,
     take_memory},
    {"vgpu-sm", "PERCENT", "vgpurun: the job's share of the time of each of its GPUs, 1 to 100", 1, 0, take_sm},
    SPANK_OPTIONS_TABLE_END};

EXPORTED int slurm_spank_init(spank_t spank, int count, char *arguments[]) {
  for (int i = 0; i < count; i++) {
    if (strncmp(arguments[i], "state=/", 7) != 0) {
      slurm_error("vgpurun: '%s' in plugstack.conf: the one argument is state=/FOLDER", arguments[i]);
      return ESPANK_ERROR;
    }
    state_folder = strdup(arguments[i] + strlen("state="));
  }
  /* Those of sbatch and salloc; the ones of srun are in a table, for every context. */
  if (spank_context() == S_CTX_ALLOCATOR)
    for (struct spank_option *option = spank_options; option->name; option++)
      if (spank_option_register(spank, option) != ESPANK_SUCCESS)
        return ESPANK_ERROR;
  return state_folder ? ESPANK_SUCCESS : ESPANK_ERROR;
}

/* Tells the prolog, before the job is submitted, what it asked for. */
EXPORTED int slurm_spank_init_post_opt(spank_t spank, int count, char *arguments[]) {
  (void)count, (void)arguments;
  if (spank_context() != S_CTX_LOCAL && spank_context() != S_CTX_ALLOCATOR)
    return ESPANK_SUCCESS;
  if (asked_memory)
    spank_job_control_setenv(spank, "VGPU_MEM", asked_memory, 1);
  if (asked_sm)
    spank_job_control_setenv(spank, "VGPU_SM", asked_sm, 1);
  return ESPANK_SUCCESS;
}

/* Ends the process that would become the task. An error returned from the hook would end it too, but as a success of
 * the step's, and only where plugstack.conf says `required`. */
_Noreturn static void refuse(uint32_t job, const char *reason) {
  slurm_error("vgpurun: job %u has no share of a GPU here: %s", job, reason);
  _exit(EXIT_REFUSED);
}

/* Whether what the step asked for (inherited from its job, or its own) is in the record of the job. */
static bool is_recorded(const char *record, const char *name, const char *asked) {
  char line[256];
  if (!asked)
    return true;
  snprintf(line, sizeof line, "\n%s=%s\n", name, asked);
  return strstr(record, line) != NULL;
}

/* Runs as root in the process that becomes the task. */
EXPORTED int slurm_spank_task_init_privileged(spank_t spank, int count, char *arguments[]) {
  uint32_t job = 0;
  char reason[SLICE_REASON_SIZE], shards[16], bundle[PATH_MAX];
  struct slice slice;
  (void)count, (void)arguments;
  if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS)
    refuse(0, "Slurm does not tell its id");
  if (slice_refused(state_folder, job, reason))
    refuse(job, reason);
  if (!slice_find(state_folder, job, &slice)) {
    bool has_shards = spank_getenv(spank, "SLURM_SHARDS_ON_NODE", shards, sizeof shards) == ESPANK_SUCCESS;
    if (!has_shards && !asked_memory && !asked_sm)
      return ESPANK_SUCCESS;
    refuse(job, has_shards ? "the prolog has made none; on the node, vgpurun slurm check says why"
                           : "it has no GPU, or the prolog has made none; ask for --gres too");
  }
  if (!is_recorded(slice.record, "mem", asked_memory) || !is_recorded(slice.record, "sm", asked_sm))
    refuse(job, "--vgpu-mem and --vgpu-sm are of a whole job: give them to sbatch or salloc, and not to a step");
  if (spank_getenv(spank, "SLURM_CONTAINER", bundle, sizeof bundle) == ESPANK_SUCCESS && bundle[0])
    refuse(job, "what --container starts would run without its limits; docs/slurm.md names other ways");
  if (!slice_enter(&slice)) {
    snprintf(reason, sizeof reason, "its files cannot be mounted: %s", strerror(errno));
    refuse(job, reason);
  }
  return ESPANK_SUCCESS;
}
