/* A SPANK plugin that takes a task into another mount namespace, as pyxis takes it into a container. */
#include <fcntl.h>
#include <sched.h>
#include <slurm/spank.h>

SPANK_PLUGIN(elsewhere, 1)

int slurm_spank_task_init_privileged(spank_t spank, int count, char *arguments[]) {
  (void)spank, (void)count, (void)arguments;
  return setns(open("/proc/1/ns/mnt", O_RDONLY | O_CLOEXEC), CLONE_NEWNS);
}
