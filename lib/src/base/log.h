/*
 * Writes one line to stderr, never stdout. LIBCUDA_LOG_LEVEL is HAMi-core's: 0 errors, 1 and 2 warnings and messages
 * (the default is 1), 3 info, 4 debug.
 */
#pragma once

enum log_level { LOG_ERROR = 0, LOG_WARNING = 1, LOG_MESSAGE = 2, LOG_INFO = 3, LOG_DEBUG = 4 };

/* Keeps errno. A line longer than 500 bytes is cut. */
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Logs a line at most once for each `said`. */
#define log_once(said, level, ...)                                                                                     \
  do {                                                                                                                 \
    if (!__atomic_exchange_n(said, 1, __ATOMIC_RELAXED))                                                               \
      log_line(level, __VA_ARGS__);                                                                                    \
  } while (0)
