#include "handles.h"

#include <stdlib.h>

#define INDEX_BITS 24
#define GENERATION_BITS 16

struct row {
  void *object;
  uint32_t next_free; /* index + 1 of the next free row */
  uint16_t generation;
  uint8_t kind;
};

static struct row *rows;
static uint32_t row_count, row_capacity, first_free;

static uint32_t take_row(void) {
  if (first_free) {
    uint32_t index = first_free - 1;
    first_free = rows[index].next_free;
    return index;
  }
  if (row_count == row_capacity) {
    uint32_t capacity = row_capacity ? row_capacity * 2 : 256;
    struct row *grown = capacity < (1u << INDEX_BITS) ? realloc(rows, capacity * sizeof *rows) : NULL;
    if (!grown)
      return UINT32_MAX;
    rows = grown;
    row_capacity = capacity;
  }
  rows[row_count] = (struct row){0};
  return row_count++;
}

void *handle_new(enum handle_kind kind, void *object) {
  uint32_t index = take_row();
  if (index == UINT32_MAX)
    return NULL;
  struct row *row = &rows[index];
  row->object = object;
  row->kind = (uint8_t)kind;
  row->generation++;
  uint64_t number = ((uint64_t)kind << GENERATION_BITS | row->generation) << INDEX_BITS | index;
  return (void *)(uintptr_t)number;
}

static struct row *find_row(const void *handle) {
  uint64_t number = (uintptr_t)handle;
  uint64_t index = number & ((1u << INDEX_BITS) - 1);
  uint64_t tag = number >> INDEX_BITS;
  if (index >= row_count || rows[index].kind == HANDLE_NONE ||
      tag != ((uint64_t)rows[index].kind << GENERATION_BITS | rows[index].generation))
    return NULL;
  return &rows[index];
}

void *handle_object(enum handle_kind kind, const void *handle) {
  struct row *row = find_row(handle);
  return row && row->kind == kind ? row->object : NULL;
}

void handle_delete(const void *handle) {
  struct row *row = find_row(handle);
  if (!row)
    return;
  row->object = NULL;
  row->kind = HANDLE_NONE;
  row->next_free = first_free;
  first_free = (uint32_t)(row - rows) + 1;
}

void handle_visit(enum handle_kind kind, handle_visitor visit, void *argument) {
  for (uint32_t i = 0; i < row_count; i++)
    if (rows[i].kind == kind)
      visit(rows[i].object, argument);
}
