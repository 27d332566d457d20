"""Writes the tables of options and variables into the documentation, from the code that reads them.

    python -m vgpurun.docs.tables docs/reference.md docs/vgpurun.1          write what is made from the code
    python -m vgpurun.docs.tables --check docs/reference.md docs/vgpurun.1  exit with 1 where it is not that

A file that ends in .1 is the man page, all of it. In others only what stands between markers is written: they are
<!-- NAME:begin --> and <!-- NAME:end --> on lines of their own, with NAME one of TABLES.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from vgpurun.cli import cli
from vgpurun.cli.verbs import all_commands
from vgpurun.config.schema import DEFAULTS, GUARD, MAXIMA, Key
from vgpurun.docs import manpage
from vgpurun.docs.memory_functions import judgements
from vgpurun.docs.variables import VARIABLES
from vgpurun.metrics import alnair, families, hami
from vgpurun.options.table import LEFT_OUT


def options_table() -> str:
    """Return the options of every verb as Markdown."""
    sections = []
    for name, command in all_commands(cli):
        context = click.Context(command, info_name=f"vgpurun {name}")
        usage = " ".join([f"vgpurun {name}", *command.collect_usage_pieces(context)])
        rows = [(f"`{option}`", meaning) for option, meaning in manpage.option_records(command, context)]
        table = [_table(("Option", "Meaning"), rows)] if rows else []
        sections.append("\n\n".join([f"#### `{usage}`", command.get_short_help_str(200), *table]))
    return "\n\n".join(sections)


def variables_table() -> str:
    """Return the environment variables as Markdown."""
    rows = [(f"`{variable.name}`", f"{variable.meaning} Read by {variable.reader}.") for variable in VARIABLES]
    return _table(("Variable", "Meaning"), rows)


def refused_table() -> str:
    """Return the options of docker run that vgpurun refuses, with the reasons, as Markdown."""
    return _table(
        ("Option of docker run", "Why it is refused"), [(f"`{flag.names}`", f"It {flag.help}.") for flag in LEFT_OUT]
    )


def memory_functions_table() -> str:
    """Return how every function of cuda.h is judged as Markdown."""
    rows = [
        (", ".join(f"`{function}`" for function in judgement.functions), judgement.verdict, judgement.reason)
        for judgement in judgements()
    ]
    return _table(("Functions", "", "How or why"), rows)


def defaults_table() -> str:
    """Return what `defaults` of a configuration file may have, as Markdown."""
    rows = [
        (f"`{key.name}: {key.example}`", f"{key.meaning}.", _built_in(key), f"`{key.variable}`") for key in DEFAULTS
    ]
    return _table(("Key, for example", "Stands for", "Built in", "Variable"), rows)


def maxima_table() -> str:
    """Return what a quota of the administrator's configuration file may have, as Markdown."""
    return _table(
        ("Key, for example", "At most"), [(f"`{key.name}: {key.example}`", f"{key.meaning}.") for key in MAXIMA]
    )


def guard_table() -> str:
    """Return what `guard` of the administrator's configuration file may have, as Markdown."""
    rows = [(f"`{key.name}: {key.example}`", f"{key.meaning}.", _built_in(key)) for key in GUARD]
    return _table(("Key, for example", "Meaning", "Built in"), rows)


def metrics_table() -> str:
    """Return the metrics of the exporter as Markdown."""
    return _families_table(families.FAMILIES)


def compatible_metrics_table() -> str:
    """Return the metrics under the names of other tools as Markdown."""
    return _families_table((*hami.FAMILIES, *alnair.FAMILIES))


def _families_table(listed: Iterable[families.Family[Any]]) -> str:
    return _table(
        ("Metric", "Type", "Labels", "Meaning"),
        [(f"`{each.name}`", each.kind, ", ".join(each.scope.labels) or "-", each.help) for each in listed],
    )


def _built_in(key: Key) -> str:
    if key.built_in is None:
        return "-"
    return f"`{str(key.built_in).lower() if isinstance(key.built_in, bool) else key.built_in}`"


TABLES = {
    "options": options_table,
    "refused": refused_table,
    "variables": variables_table,
    "memory-functions": memory_functions_table,
    "defaults": defaults_table,
    "maxima": maxima_table,
    "guard": guard_table,
    "metrics": metrics_table,
    "compatible-metrics": compatible_metrics_table,
}


def filled(text: str) -> str:
    """Return a document with every marked part written anew. Raises ValueError for a marker without its other half."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        if text.count(begin) != text.count(end):
            raise ValueError(f"{begin} and {end} do not come in pairs")
        parts = re.split(f"{re.escape(begin)}.*?{re.escape(end)}", text, flags=re.DOTALL)
        text = f"{begin}\n\n{make()}\n\n{end}".join(parts)
    return text


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = [titles, ("---",) * len(titles), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)


def main(words: Sequence[str] | None = None) -> int:
    """Write or check the files that the command line names, or these words; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m vgpurun.docs.tables", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if something would change")
    parser.add_argument("files", nargs="+", type=Path)
    arguments = parser.parse_args(words)
    stale = []
    for path in arguments.files:
        is_manual = path.suffix == ".1"
        text = path.read_text(encoding="utf-8") if path.exists() or not is_manual else ""
        try:
            new = manpage.page() if is_manual else filled(text)
        except ValueError as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 1
        if new != text and not arguments.check:
            path.write_text(new, encoding="utf-8")
        elif new != text:
            stale.append(str(path))
    if stale:
        print(f"not up to date: {', '.join(stale)}; run: make docs", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
