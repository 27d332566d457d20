/* Faults of devices, which tests write into <state file>.faults as they happen, a line each:
 *
 *   xid UUID NUMBER    the driver reports an XID error: an event for those who wait for it
 *   lost UUID          the device has fallen off the bus, until a line
 *   back UUID          says that it is there again
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#define FAULT_LINE_SIZE 256

/* NULL: there are none. */
FILE *faults_open(void);

/* A line that ends in a newline; one that is still being written is for the next time. */
bool faults_read_line(FILE *file, char line[FAULT_LINE_SIZE]);

/* Whether a line says that of a device. */
bool fault_names(const char *line, const char *what, const char *uuid);

/* Whether the device has fallen off the bus. */
bool fault_is_lost(unsigned device);
