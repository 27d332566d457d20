#include "yaml.h"

#include <string.h>

static char *trim(char *text) {
  text += strspn(text, " ");
  size_t length = strlen(text);
  while (length > 0 && strchr(" \t\r", text[length - 1]))
    text[--length] = '\0';
  return text;
}

/* Removes the quotes or the comment of a value. NULL when it is not a plain or quoted scalar. */
static char *unwrap(char *value) {
  char quote = *value;
  if (quote == '"' || quote == '\'') {
    char *end = strchr(value + 1, quote);
    if (!end || (quote == '"' && memchr(value, '\\', (size_t)(end - value))))
      return NULL;
    *end = '\0';
    char *rest = trim(end + 1);
    return *rest == '\0' || *rest == '#' ? value + 1 : NULL;
  }
  if (*value == '#')
    *value = '\0';
  char *comment = strstr(value, " #");
  if (comment)
    *comment = '\0';
  value = trim(value);
  return *value && strchr("[{&*!|>%@`", *value) ? NULL : value;
}

const char *yaml_parse_line(char *text, struct yaml_line *line) {
  *line = (struct yaml_line){.indent = strspn(text, " ")};
  text += line->indent;
  if (*text == '\t')
    return "a tab in the indentation";
  text = trim(text);
  if (*text == '\0' || *text == '#')
    return NULL;
  if (strcmp(text, "---") == 0 && line->indent == 0)
    return NULL;
  if (text[0] == '-') {
    if (text[1] != ' ')
      return "expected '- key: value'";
    size_t step = 1 + strspn(text + 1, " ");
    line->item = true;
    line->indent += step;
    text += step;
  }
  size_t key_length = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_");
  char *colon = text + key_length;
  if (key_length == 0 || *colon != ':' || (colon[1] != ' ' && colon[1] != '\0'))
    return "expected 'key: value'";
  *colon = '\0';
  line->key = text;
  line->value = unwrap(trim(colon + 1));
  return line->value ? NULL : "expected a plain or a quoted value on one line";
}
