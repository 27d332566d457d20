"""How `vgpurun history` prints accounts: a table, CSV or JSON."""

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import fields

import click

from vgpurun.cli.views.columns import Column, lines, terminal_width
from vgpurun.limits.quota import show_size
from vgpurun.metrics.accounting import Account

_HOUR_S = 3600
_USER, _CONTAINER = Column("USER", can_shrink=True), Column("CONTAINER", can_shrink=True)
_FIGURES = (
    Column("GPU", is_right=True),
    Column("GPU HOURS", is_right=True),
    Column("HOURS", is_right=True),
    Column("MEAN", is_right=True),
    Column("MAX", is_right=True),
    Column("GIB HOURS", is_right=True),
    Column("MEMORY MAX", is_right=True),
)


def show(found: Sequence[Account], by: str, output_format: str) -> None:
    """Print accounts in this format."""
    if output_format == "json":
        click.echo(json.dumps([each.as_dict() for each in found], ensure_ascii=False))
    elif output_format == "csv":
        writer = csv.DictWriter(sys.stdout, [field.name for field in fields(Account)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(each.as_dict() for each in found)
    else:
        names = {"user": (_USER,), "container": (_USER, _CONTAINER), "gpu": ()}[by]
        rows = [(*(each.user, each.container)[: len(names)], *_figures(each)) for each in found]
        for line in lines((*names, *_FIGURES), rows, terminal_width()):
            click.echo(line)


def _figures(account: Account) -> tuple[str, ...]:
    return (
        account.gpu_number,
        _gpu_hours(account),
        f"{account.ran_seconds / _HOUR_S:.2f}",
        _percent(account.mean_share_ratio),
        _percent(account.max_share_ratio),
        f"{account.memory_byte_hours / 2**30:.2f}",
        show_size(account.memory_peak_bytes),
    )


def _gpu_hours(account: Account) -> str:
    if not account.measured_seconds and not account.estimated_seconds:
        return "?"
    return f"{'~' if account.estimated_seconds else ''}{account.gpu_seconds / _HOUR_S:.2f}"


def _percent(ratio: float | None) -> str:
    return "?" if ratio is None else f"{100 * ratio:.0f} %"
