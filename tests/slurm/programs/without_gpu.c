/* A SPANK plugin that makes a task one of a job for which Slurm has counted shards and chosen no GPU, as it does while
 * a node has not registered with a new slurmctld. */
#include <slurm/spank.h>

SPANK_PLUGIN(without_gpu, 1)

int slurm_spank_task_init_privileged(spank_t spank, int count, char *arguments[]) {
  (void)count, (void)arguments;
  spank_unsetenv(spank, "SLURM_STEP_GPUS");
  spank_unsetenv(spank, "SLURM_JOB_GPUS");
  return 0;
}
