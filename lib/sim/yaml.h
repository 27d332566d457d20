/* The subset of YAML that the configuration needs: `key: value` lines, and lists of such maps one level down. */
#pragma once

#include "common.h"

struct yaml_line {
  size_t indent;
  bool item;   /* the line begins a list item: "- key: value" */
  char *key;   /* NULL: the line is blank or a comment */
  char *value; /* "" when nothing follows the colon */
};

/* Takes one line apart, in place. NULL, or what is wrong with it. */
const char *yaml_parse_line(char *text, struct yaml_line *line);
