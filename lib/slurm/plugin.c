/*
 * vgpurun's SPANK plugin for Slurm: holds every task of a job to the job's slice, which `vgpurun slurm prolog` has
 * made.
 *
 * Each step gets a view of the file system of its own, in which the slice's files lie where a container has them. So
 * the library comes by /etc/ld.so.preload and reads its limits there, whatever the task does with its environment.
 *
 * plugstack.conf:    required /PATH/spank_vgpurun.so [state=/var/lib/vgpurun]
 *
 * A task is refused rather than left without its limits. Built for one release of Slurm: vgpurun slurm build-plugin.
 */
#include <glob.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "shared/limit_text.h"
#include "slice.h"

#define EXPORTED __attribute__((visibility("default")))
#define EXIT_REFUSED 125 /* for every failure of vgpurun itself */
#define ANY_GPU_BYTES (UINT64_C(1) << 50)
#define LEAST_LIMIT_BYTES (UINT64_C(1) << 20) /* vgpurun/limits/quota.py has it too */

#pragma GCC visibility push(default)
SPANK_PLUGIN(vgpurun, 1)
#pragma GCC visibility pop

#define TEXT(value) #value
#define TEXT_OF(value) TEXT(value)
/* By which `vgpurun slurm check` knows the release that this was built for. */
__attribute__((used)) static const char marker[] = "vgpurun spank plugin slurm=" TEXT_OF(SLURM_VERSION_NUMBER) " ";

static const char *state_folder = "/var/lib/vgpurun";
/* In the process that becomes a task: its slice's usage file, none where st_ino is 0. */
static struct stat entered;
/* The options' texts, unparsed; NULL where they were not given. */
static char *asked_memory, *asked_sm;

static int keep(char **option, const char *text) {
  free(*option);
  *option = strdup(text);
  return *option ? 0 : ESPANK_ERROR;
}

/* On the node the prolog has read it: `remote`. Before, the size of the GPUs is not known, nor needed for the form. */
static int take_memory(int value, const char *text, int remote) {
  uint64_t bytes;
  (void)value;
  if (!remote && (!limits_parse_memory(text, ANY_GPU_BYTES, &bytes) || bytes < LEAST_LIMIT_BYTES)) {
    slurm_error("vgpurun: --vgpu-mem '%s' is no part of a GPU; use a size such as 1500m or 2g, or a share such as 25%%",
                text);
    return ESPANK_BAD_ARG;
  }
  return keep(&asked_memory, text);
}

static int take_sm(int value, const char *text, int remote) {
  uint32_t percent;
  (void)value;
  if (!remote && !limits_parse_sm(text, &percent)) {
    slurm_error("vgpurun: --vgpu-sm '%s' is no part of a GPU's time; use a whole percentage from 1 to 100", text);
    return ESPANK_BAD_ARG;
  }
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
  /* sbatch and salloc get the options here; srun gets them from a table, in every context. */
  if (spank_context() == S_CTX_ALLOCATOR)
    for (struct spank_option *option = spank_options; option->name; option++)
      if (spank_option_register(spank, option) != ESPANK_SUCCESS)
        return ESPANK_ERROR;
  return state_folder ? ESPANK_SUCCESS : ESPANK_ERROR;
}

/* Whether this is a step's slurmstepd. The one of the step that only holds a job's ssh sessions runs nothing else, and
 * may make mounts that are for all of the node. */
static bool is_step(spank_t spank) {
  uint32_t step = SLURM_EXTERN_CONT;
  return spank_context() == S_CTX_REMOTE && spank_get_item(spank, S_JOB_STEPID, &step) == ESPANK_SUCCESS &&
         step != SLURM_EXTERN_CONT;
}

/* Finds the share of a job; `job` is 0 where Slurm does not tell its id. */
static enum share find(spank_t spank, uint32_t *job, struct slice *slice, char reason[SLICE_REASON_SIZE]) {
  uid_t user = 0;
  if (spank_get_item(spank, S_JOB_ID, job) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_UID, &user) != ESPANK_SUCCESS) {
    snprintf(reason, SLICE_REASON_SIZE, "Slurm does not tell its id or its user");
    return SHARE_REFUSED;
  }
  return slice_find(state_folder, *job, user, slice, reason);
}

/* Takes the GPUs' devices out of the view that this process has of the files. */
static void hide_gpus(void) {
  glob_t found;
  if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL) || glob("/dev/nvidia*", 0, NULL, &found))
    return;
  for (size_t i = 0; i < found.gl_pathc; i++)
    mount("/dev/null", found.gl_pathv[i], NULL, MS_BIND, NULL);
  globfree(&found);
}

/* Puts slurmstepd itself into the slice, since it starts more than tasks for a user: the task's epilog. Its tasks look
 * again whether they are in it, and do not start without. */
static void enter_step(spank_t spank) {
  uint32_t job = 0;
  char reason[SLICE_REASON_SIZE];
  struct slice slice;
  enum share share = is_step(spank) ? find(spank, &job, &slice, reason) : SHARE_NONE;
  if (share == SHARE_REFUSED || (share == SHARE_SLICE && !slice_enter(&slice)))
    hide_gpus();
}

/* Before the job is submitted, tells the prolog what it asked for. */
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

/* Not before: tasks have joined the container of Slurm's own (job_container/tmpfs) by now, whose file mounts of another
 * namespace do not have. */
EXPORTED int slurm_spank_task_post_fork(spank_t spank, int count, char *arguments[]) {
  (void)count, (void)arguments;
  enter_step(spank);
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

static bool has(spank_t spank, const char *name) {
  char value[16];
  return spank_getenv(spank, name, value, sizeof value) != ESPANK_ENV_NOEXIST;
}

/* Why a job without a slice cannot do with none, NULL where it needs none. */
static const char *lacks(spank_t spank) {
  bool has_gpu = has(spank, "SLURM_STEP_GPUS") || has(spank, "SLURM_JOB_GPUS");
  if (has(spank, "SLURM_SHARDS_ON_NODE"))
    return has_gpu ? "the prolog has made none; on the node, vgpurun slurm check says why"
                   : "Slurm has chosen no GPU for its shards; submit it again if slurmctld has just started, or else "
                     "restart slurmctld";
  return asked_memory || asked_sm ? "it has no GPU, or the prolog has made none; ask for --gres too" : NULL;
}

/* Has Apptainer bring the slice's files into its containers. The lines for that in apptainer.conf it leaves out with
 * --contain. False where the variable cannot be set. */
static bool bind_in_apptainer(spank_t spank) {
  static const char name[] = "APPTAINER_BIND", ours[] = VGPU_CONTAINER_DIR ",/etc/ld.so.preload,/etc/ld-nix.so.preload";
  char own[16384], all[sizeof ours + sizeof own];
  spank_err_t found = spank_getenv(spank, name, own, sizeof own);
  if (found == ESPANK_SUCCESS && strstr(own, ours)) /* a step has what its job's script had */
    return true;
  bool has_own = found == ESPANK_SUCCESS && own[0];
  snprintf(all, sizeof all, "%s%s%s", ours, has_own ? "," : "", has_own ? own : "");
  return (found == ESPANK_SUCCESS || found == ESPANK_ENV_NOEXIST) &&
         spank_setenv(spank, name, all, 1) == ESPANK_SUCCESS;
}

/* Runs as root in the process that becomes the task. */
EXPORTED int slurm_spank_task_init_privileged(spank_t spank, int count, char *arguments[]) {
  uint32_t job = 0;
  char reason[SLICE_REASON_SIZE], bundle[PATH_MAX];
  struct slice slice;
  (void)count, (void)arguments;
  enum share share = find(spank, &job, &slice, reason);
  if (share == SHARE_REFUSED)
    refuse(job, reason);
  if (share == SHARE_NONE) {
    const char *lacking = lacks(spank);
    if (lacking)
      refuse(job, lacking);
    return ESPANK_SUCCESS;
  }
  if (!is_recorded(slice.record, "mem", asked_memory) || !is_recorded(slice.record, "sm", asked_sm))
    refuse(job, "--vgpu-mem and --vgpu-sm are of a whole job: give them to sbatch or salloc, and not to a step");
  if (spank_getenv(spank, "SLURM_CONTAINER", bundle, sizeof bundle) == ESPANK_SUCCESS && bundle[0])
    refuse(job, "what --container starts would run without its limits; docs/slurm.md names other ways");
  if (!slice_enter(&slice)) {
    snprintf(reason, sizeof reason, "its files cannot be mounted: %s", strerror(errno));
    refuse(job, reason);
  }
  if (!bind_in_apptainer(spank))
    refuse(job, "APPTAINER_BIND is too long to be added to");
  if (stat(VGPU_CONTAINER_USAGE, &entered))
    refuse(job, strerror(errno));
  return ESPANK_SUCCESS;
}

/* After the privileged hooks of all plugins, one of which may have taken the task into a container of its own (pyxis).
 */
EXPORTED int slurm_spank_task_init(spank_t spank, int count, char *arguments[]) {
  uint32_t job = 0;
  struct stat now;
  (void)count, (void)arguments;
  if (entered.st_ino && (stat(VGPU_CONTAINER_USAGE, &now) || !is_same_file(&now, &entered))) {
    spank_get_item(spank, S_JOB_ID, &job);
    refuse(job,
           "another plugin has put the task where its limits are not, as into a container; start that in the task");
  }
  return ESPANK_SUCCESS;
}
