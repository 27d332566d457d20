"""`vgpurun history`: who used how much of which GPU."""

import time
from pathlib import Path

import click

from vgpurun.cli.common import GroupedCommand, option
from vgpurun.console.messages import say
from vgpurun.errors import OptionError
from vgpurun.util.extras import needs_extra

_TIME, _DISPLAY = "Time", "Display"
_PICTURES = (".png", ".svg")


@click.command(cls=GroupedCommand, name="history")
@option(
    "--since", metavar="TIME", default="24h", show_default=True, group=_TIME,
    help="Start of the period: a duration before now (90m, 24h, 7d, 4w), a date and time, or seconds since 1970.",
)  # fmt: skip
@option("--until", metavar="TIME", default="0s", group=_TIME, help="End of the period, likewise. By default now.")
@option(
    "--by", type=click.Choice(["user", "container", "gpu", "action"]), default="user", show_default=True,
    group=_DISPLAY, help="Sum up use by this, on each GPU; action: list what `vgpurun guard` has done.",
)  # fmt: skip
@option(
    "--format", "output_format", type=click.Choice(["table", "csv", "json"]), group=_DISPLAY,
    help="How to print it (a table by default); csv and json in bytes and seconds.",
)  # fmt: skip
@option(
    "--plot", metavar="FILE", type=click.Path(path_type=Path), group=_DISPLAY,
    help="Draw it over time instead, as a .png or .svg.",
)  # fmt: skip
@option(
    "--history", "path", metavar="FILE", type=click.Path(path_type=Path), group=_DISPLAY,
    help="The file that `vgpurun exporter` keeps. By default this user's own, or else root's.",
)  # fmt: skip
def history(since: str, until: str, by: str, output_format: str | None, plot: Path | None, path: Path | None) -> None:
    """Show who used how much of which GPU: GPU time, share of it, memory over time and peak memory.

    IDLE counts the hours in which memory was held but no GPU time used, GIVEN BACK those in which it was suspended.

    `vgpurun exporter` records use every ten seconds. Hours of containers add up: two that run side by side for an hour
    count as two hours.
    """
    from vgpurun.cli.views.history import show, show_actions
    from vgpurun.inventory import guarded
    from vgpurun.metrics import accounting
    from vgpurun.util.times import parse_past

    now_s = time.time()
    since_s, until_s = parse_past(since, "--since", now_s), parse_past(until, "--until", now_s)
    if since_s >= now_s:
        raise OptionError(f"--since '{since}' is not in the past; use e.g. 7d, or a date such as 2025-01-31")
    if since_s >= until_s:
        raise OptionError(f"--since '{since}' is not before --until '{until}'")
    if plot is not None and output_format is not None:
        raise OptionError(f"--format {output_format} is for printed output, and --plot draws a picture; leave out one")
    if plot is not None and plot.suffix.lower() not in _PICTURES:
        raise OptionError(f"--plot '{plot}' is neither a .png nor a .svg")
    if by == "action":
        if plot is not None:
            raise OptionError("--plot draws use over time, and --by action has none; leave out one")
        show_actions([each for each in guarded.actions() if since_s <= each.at_s < until_s], output_format or "table")
        return
    with accounting.reading(path or accounting.find_history()) as db:
        if plot is None:
            show(accounting.accounts(db, by, since_s, until_s), by, output_format or "table")
            return
        with needs_extra("report"):
            from vgpurun.metrics.plot import draw
        timeline = accounting.timeline(db, by, since_s, until_s)
    if not timeline.curves:
        raise OptionError(f"--plot '{plot}': nothing was used since {since}")
    draw(timeline, f"Use of GPUs by {by}, {_moment(since_s)} to {_moment(until_s)}", plot)
    say(f"drawn: {plot}")


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
