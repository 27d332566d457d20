"""How `vgpurun history` prints accounts: a table, CSV or JSON."""

import csv
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, fields

import click

from vgpurun.cli.views.columns import Column, lines, terminal_width
from vgpurun.inventory.guarded import Done
from vgpurun.limits.quota import show_size
from vgpurun.metrics.accounting import Account

_HOUR_S = 3600
_USER, _CONTAINER = Column("USER", can_shrink=True), Column("CONTAINER", can_shrink=True, least_width=9)
_FIGURES = (
    Column("GPU", is_right=True),
    Column("GPU HOURS", is_right=True),
    Column("HOURS", is_right=True, leaves=5),
    Column("MEAN", is_right=True, leaves=4),
    Column("MAX", is_right=True, leaves=3),
    Column("GIB HOURS", is_right=True, leaves=7),
    Column("MEMORY MAX", is_right=True, leaves=6),
    Column("IDLE", is_right=True, leaves=2),
    Column("GIVEN BACK", is_right=True, leaves=1),
)
_ACTION = ("verb", "cause", "container", "pid", "name", "user", "gpu", "words")
_ACTION_COLUMNS = (
    Column("TIME"),
    Column("ACTION"),
    Column("CAUSE", leaves=1),
    Column("NAME", can_shrink=True),
    Column("USER", leaves=2),
    Column("WHY", can_shrink=True, least_width=20, wraps=True),
)


def show(found: Sequence[Account], by: str, output_format: str) -> None:
    """Print accounts in this format."""
    if output_format == "json":
        click.echo(json.dumps([asdict(each) for each in found], ensure_ascii=False))
    elif output_format == "csv":
        writer = csv.DictWriter(sys.stdout, [field.name for field in fields(Account)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(each) for each in found)
    else:
        names = {"user": (_USER,), "container": (_USER, _CONTAINER), "gpu": ()}[by]
        rows = [(*(each.user, each.container)[: len(names)], *_figures(each)) for each in found]
        for line in lines((*names, *_FIGURES), rows, terminal_width()):
            click.echo(line)


def show_actions(found: Sequence[Done], output_format: str) -> None:
    """Print what the guard has done in this format."""
    rows = [{"at_seconds": each.at_s, **{name: getattr(each.action, name) for name in _ACTION}} for each in found]
    if output_format == "json":
        click.echo(json.dumps(rows, ensure_ascii=False))
    elif output_format == "csv":
        writer = csv.DictWriter(sys.stdout, ["at_seconds", *_ACTION], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        for line in lines(_ACTION_COLUMNS, [_action(each) for each in found], terminal_width()):
            click.echo(line)


def _action(done: Done) -> tuple[str, ...]:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(done.at_s))
    action = done.action
    return when, action.verb, action.cause, action.name, action.user, action.words


def _figures(account: Account) -> tuple[str, ...]:
    return (
        account.gpu_number,
        _gpu_hours(account),
        f"{account.ran_seconds / _HOUR_S:.2f}",
        _percent(account.mean_share_ratio),
        _percent(account.max_share_ratio),
        f"{account.memory_byte_hours / 2**30:.2f}",
        show_size(account.memory_peak_bytes),
        f"{account.idle_seconds / _HOUR_S:.2f}",
        f"{account.given_back_seconds / _HOUR_S:.2f}",
    )


def _gpu_hours(account: Account) -> str:
    if not account.measured_seconds and not account.estimated_seconds:
        return "?"
    return f"{'~' if account.estimated_seconds else ''}{account.gpu_seconds / _HOUR_S:.2f}"


def _percent(ratio: float | None) -> str:
    return "?" if ratio is None else f"{100 * ratio:.0f} %"
