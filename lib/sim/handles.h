/* Handles are numbers dressed as pointers: a stale or made-up one is noticed, never followed. */
#pragma once

#include "common.h"

enum handle_kind {
  HANDLE_NONE,
  HANDLE_CONTEXT,
  HANDLE_GREEN_CONTEXT,
  HANDLE_STREAM,
  HANDLE_EVENT,
  HANDLE_MODULE,
  HANDLE_LIBRARY,
  HANDLE_FUNCTION,
  HANDLE_KERNEL,
  HANDLE_GRAPH,
  HANDLE_GRAPH_NODE,
  HANDLE_GRAPH_EXEC,
  HANDLE_POOL,
  HANDLE_PHYSICAL_MEMORY,
  HANDLE_MULTICAST,
  HANDLE_ARRAY,
  HANDLE_MIPMAPPED_ARRAY,
};

/* A handle for an object; NULL when there is no memory. */
void *handle_new(enum handle_kind kind, void *object);

/* The object behind a handle; NULL when the handle is not a live one of this kind. */
void *handle_object(enum handle_kind kind, const void *handle);

void handle_delete(const void *handle);

/* Calls visit for every live handle of a kind; visit may delete handles. */
typedef void (*handle_visitor)(void *object, void *argument);
void handle_visit(enum handle_kind kind, handle_visitor visit, void *argument);
