#include "bindings.h"

#include <stdlib.h>

bool bind_memory(struct binding **bindings, const struct binding *model) {
  struct binding *binding = malloc(sizeof *binding);
  if (!binding)
    return false;
  *binding = *model;
  binding->next = *bindings;
  *bindings = binding;
  vmm_hold(binding->physical);
  return true;
}

void unbind_memory(struct binding **link) {
  struct binding *binding = *link;
  *link = binding->next;
  vmm_let_go(binding->physical);
  free(binding);
}

void bindings_end(struct binding **bindings) {
  while (*bindings)
    unbind_memory(bindings);
}
