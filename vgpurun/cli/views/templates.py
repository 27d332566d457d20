"""The part of Go's templates that --format takes, with the fields that docker ps has and some of vgpurun's.

    {{.Name}}                  a field
    {{.Label "key"}}           the value of a label
    {{json .}}  {{json .Name}} everything, or a field, as JSON
    {{upper .Name}}, {{lower .Name}}
    \\t and \\n                  a tab, a new line

A template that begins with `table` is printed in columns, under the fields' titles.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vgpurun.errors import CommandLineError

_ACTION = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}")
_FIELD = re.compile(r"(?:(json|upper|lower)\s+)?\.([A-Za-z]*)(?:\s+\"([^\"]*)\")?")
_ESCAPES = {"\\t": "\t", "\\n": "\n", "\\\\": "\\"}
_FUNCTIONS: dict[str, Callable[[Any], str]] = {
    "json": lambda value: json.dumps(value, ensure_ascii=False),
    "upper": lambda value: _text(value).upper(),
    "lower": lambda value: _text(value).lower(),
    "": lambda value: _text(value),
}
_LABEL = "Label"


class Template:
    """A template over records with these fields."""

    def __init__(self, text: str, fields: Sequence[str]) -> None:
        """Raises OptionError for what is not in the subset, and for a field that there is not."""
        self._fields = tuple(fields)
        head, _, rest = text.partition(" ")
        self.is_table = head == "table" and bool(rest)
        text = rest if self.is_table else text
        self._text = re.sub(r"\\[tn\\]", lambda match: _ESCAPES[match.group()], text)
        self._actions = [self._parse(action) for action in _ACTION.findall(self._text)]
        if "{{" in _ACTION.sub("", self._text):
            raise CommandLineError(f"--format '{text}': a {{{{ has no }}}}")

    def _parse(self, action: str) -> tuple[str, str, str]:
        match = _FIELD.fullmatch(action)
        function, field, key = match.groups(default="") if match else ("", "", "")
        if match is None or (key and field != _LABEL) or (not field and function != "json"):
            raise CommandLineError(
                f"--format '{{{{{action}}}}}' is more than vgpurun reads of Go's templates: {{{{.FIELD}}}}, "
                '{{json .}}, {{json .FIELD}}, {{upper .FIELD}}, {{lower .FIELD}} and {{.Label "KEY"}}'
            )
        if field and field not in (*self._fields, _LABEL):
            raise CommandLineError(f"--format: there is no field .{field}; there are {', '.join(self._fields)}")
        return function, field, key

    def render(self, record: Mapping[str, Any]) -> str:
        """Return the template with a record's values."""
        return self._filled(lambda function, field, key: _FUNCTIONS[function](_value(record, field, key)))

    def titles(self) -> str:
        """Return the template with its fields' names in capitals, for the head of a table."""
        return self._filled(lambda _, field, key: re.sub(r"(?<=[a-z])(?=[A-Z])", " ", key or field).upper())

    def _filled(self, value: Callable[[str, str, str], str]) -> str:
        actions = iter(self._actions)
        return _ACTION.sub(lambda _: value(*next(actions)), self._text)


def columns(rows: Sequence[str]) -> list[str]:
    """Return rows whose cells are parted by tabs, as columns."""
    cells = [row.split("\t") for row in rows]
    count = max(map(len, cells), default=0)
    widths = [max(len(row[i]) if i < len(row) else 0 for row in cells) for i in range(count)]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in cells]


def _value(record: Mapping[str, Any], field: str, key: str) -> Any:
    if field == _LABEL:
        return record["Labels"].get(key, "")
    return record[field] if field else record


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}={each}" for name, each in value.items())
    return str(value)
