#include "base/log.h"

#include "abi.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int threshold(void) {
  const char *text = getenv(VGPU_ENV_LOG_LEVEL);
  if (text == NULL || text[0] < '0' || text[0] > '9')
    return LOG_WARNING;
  return text[0] - '0';
}

void log_line(enum log_level level, const char *format, ...) {
  static const char *const names[] = {"error", "warning", "message", "info", "debug"};
  if ((int)level > threshold())
    return;

  int saved_errno = errno;
  char line[512];
  int length = snprintf(line, sizeof line, "vgpurun: %s: ", names[level]);
  va_list arguments;
  va_start(arguments, format);
  length += vsnprintf(line + length, sizeof line - (size_t)length - 1, format, arguments);
  va_end(arguments);
  if (length > (int)sizeof line - 2)
    length = (int)sizeof line - 2;
  line[length++] = '\n';
  /* A single write keeps lines of several processes apart. Nothing can be done about a closed stderr. write() would be
   * a cancellation point: a cancelled thread would end there, and keep what the caller has claimed. */
  (void)syscall(SYS_write, STDERR_FILENO, line, (size_t)length);
  errno = saved_errno;
}
