/*
 * vgpurun's PAM module for sessions that pam_slurm_adopt has put into a job, as those of ssh: they have the job's
 * slice, like its tasks.
 *
 * /etc/pam.d/sshd, behind `account required pam_slurm_adopt.so`:
 *   session required /PATH/pam_vgpurun.so [state=/var/lib/vgpurun]
 *
 * The job is that of the cgroup. A session in no job, and one in a job without a share, is left alone; one in another
 * user's job, by a cgroup of a name like a job's, is refused.
 */
#include <syslog.h>

#include <security/pam_ext.h>
#include <security/pam_modules.h>
#include <security/pam_modutil.h>

#include "slice.h"

#define EXPORTED __attribute__((visibility("default")))
#define CGROUP_SIZE 16384

/* The job whose cgroup this process is in, 0 in none: `.../job_12/step_extern` of either version of cgroups. */
static uint32_t job_of_cgroup(void) {
  static const char name[] = "/job_";
  char text[CGROUP_SIZE];
  if (!read_text("/proc/self/cgroup", text, sizeof text))
    return 0;
  for (const char *at = text; (at = strstr(at, name)) != NULL; at++) {
    char *end;
    unsigned long job = strtoul(at + strlen(name), &end, 10);
    if (end != at + strlen(name) && job > 0 && job <= UINT32_MAX && (*end == '/' || *end == '\n'))
      return (uint32_t)job;
  }
  return 0;
}

static int refuse(pam_handle_t *pam, uint32_t job, const char *reason) {
  pam_syslog(pam, LOG_ERR, "job %u has no share of a GPU here: %s", job, reason);
  pam_error(pam, "vgpurun: job %u has no share of a GPU here: %s", job, reason);
  return PAM_SESSION_ERR;
}

EXPORTED int pam_sm_open_session(pam_handle_t *pam, int flags, int count, const char **arguments) {
  const char *state_folder = "/var/lib/vgpurun";
  char reason[SLICE_REASON_SIZE];
  struct slice slice;
  (void)flags;
  for (int i = 0; i < count; i++)
    if (strncmp(arguments[i], "state=/", 7) == 0)
      state_folder = arguments[i] + strlen("state=");
  uint32_t job = job_of_cgroup();
  if (job == 0)
    return PAM_SUCCESS;
  const char *name = NULL;
  const struct passwd *user = pam_get_user(pam, &name, NULL) == PAM_SUCCESS ? pam_modutil_getpwnam(pam, name) : NULL;
  if (!user)
    return refuse(pam, job, "PAM does not tell whose session this is");
  switch (slice_find(state_folder, job, user->pw_uid, &slice, reason)) {
  case SHARE_NONE:
    return PAM_SUCCESS;
  case SHARE_REFUSED:
    return refuse(pam, job, reason);
  case SHARE_SLICE:
    break;
  }
  return slice_enter(&slice) ? PAM_SUCCESS : refuse(pam, job, strerror(errno));
}

EXPORTED int pam_sm_close_session(pam_handle_t *pam, int flags, int count, const char **arguments) {
  (void)pam, (void)flags, (void)count, (void)arguments;
  return PAM_SUCCESS;
}
