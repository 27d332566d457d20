"""The subset of Go's templates."""

from __future__ import annotations

from typing import Any

import pytest

from vgpurun.cli.views.templates import Template, columns
from vgpurun.errors import OptionError

FIELDS = ("Name", "MemoryLimit", "Labels")
RECORD: dict[str, Any] = {"Name": "Ann", "MemoryLimit": "2 GiB", "Labels": {"team": "vision", "x": "1"}}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("{{.Name}}", "Ann"),
        ("{{ .Name }}/{{.MemoryLimit}}", "Ann/2 GiB"),
        (r"{{.Name}}\t{{.Name}}\n", "Ann\tAnn\n"),
        (r"a\\tb", r"a\tb"),
        ("{{upper .Name}} {{lower .Name}}", "ANN ann"),
        ('{{.Label "team"}}-{{.Label "none"}}', "vision-"),
        ("{{.Labels}}", "team=vision,x=1"),
        ("{{json .Name}}", '"Ann"'),
        ("{{json .Labels}}", '{"team": "vision", "x": "1"}'),
        ("{{json .}}", '{"Name": "Ann", "MemoryLimit": "2 GiB", "Labels": {"team": "vision", "x": "1"}}'),
        ("table {{.Name}}", "Ann"),
        ("tables", "tables"),
    ],
)
def test_rendering(text: str, shown: str) -> None:
    assert Template(text, FIELDS).render(RECORD) == shown


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{{.Nmae}}", "MemoryLimit"),
        ("{{range .}}", "range"),
        ("{{.}}", "more than vgpurun reads"),
        ("{{upper .}}", "more than"),
        ('{{.Name "x"}}', "more than"),
        ("{{if .Name}}x{{end}}", "more than"),
        ("{{.Name", "no }}"),
    ],
)
def test_what_is_not_in_the_subset_is_refused(text: str, word: str) -> None:
    with pytest.raises(OptionError, match=word.replace("}", r"\}")):
        Template(text, FIELDS)


def test_a_table_has_titles_and_columns() -> None:
    template = Template(r"table {{.Name}}\t{{.MemoryLimit}}\t{{.Label " '"team"}}'.replace('""', ""), FIELDS)
    assert template.is_table
    assert columns([template.titles(), template.render(RECORD)]) == [
        "NAME   MEMORY LIMIT   TEAM",
        "Ann    2 GiB          vision",
    ]
