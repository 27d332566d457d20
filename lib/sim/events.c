#include "events.h"

#include <stdlib.h>

#include "times.h"

void event_record_at(struct event *event, uint64_t time_ns) {
  event->recorded = true;
  event->capture_id = 0;
  event->time_ns = time_ns;
}

void event_delete(struct event *event) {
  handle_delete(event->handle);
  free(event);
}

static void delete_if_of(void *object, void *context) {
  struct event *event = object;
  if (event->context == context)
    event_delete(event);
}

void events_delete_of(const struct context *context) {
  handle_visit(HANDLE_EVENT, delete_if_of, (void *)context);
}

static void find_time(void *object, void *argument) {
  struct event *event = object;
  (void)argument;
  event->time_ns = time_known(event->time_ns);
}

void events_find_times(void) {
  handle_visit(HANDLE_EVENT, find_time, NULL);
}
