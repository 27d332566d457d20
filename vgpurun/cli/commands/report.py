"""`vgpurun report`: what a profiled run did, as a page, pictures, tables, JSON, a trace or Alnair's files."""

import gzip
import json
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from vgpurun.cli.common import GroupedCommand, option
from vgpurun.console.messages import say
from vgpurun.errors import ExtraError, OutputError
from vgpurun.util.atomic_file import atomic_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vgpurun.profiles.reader import FileProfile

_GROUP = "Output"
_PICTURES = "pictures"  # the folder's name


@click.command(cls=GroupedCommand, name="report", options_metavar="[OPTIONS]")
@option(
    "--format",
    "output_format",
    type=click.Choice(["html", "svg", "png", "text", "json", "trace", "alnair"]),
    default="html",
    show_default=True,
    group=_GROUP,
    help="The output: a page, pictures, tables, JSON, a trace for Perfetto, or Alnair's two files.",
)
@option(
    "-o",
    "--output",
    metavar="PATH",
    type=click.Path(path_type=Path),
    group=_GROUP,
    help="Where to write it: a file, or a folder for svg, png and alnair. Without it: DIR/report.html, DIR/pictures, "
    "DIR/trace.json.gz and DIR itself; text and json are printed.",
)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def report(folder: Path, output_format: str, output: Path | None) -> None:
    """Show what a run did on its GPUs: DIR is the folder that `--profile DIR` has filled.

    \b
    vgpurun report DIR                 tables, and the page DIR/report.html
    vgpurun report --format trace DIR  DIR/trace.json.gz, for ui.perfetto.dev
    """
    from vgpurun.profiles.reader import read_profiles

    _WRITERS[output_format](read_profiles(folder, say), folder, output)


def _html(profiles: "Sequence[FileProfile]", folder: Path, output: Path | None) -> None:
    from vgpurun.cli.views.report import print_summary
    from vgpurun.profiles import report as reports
    from vgpurun.profiles.summary import summarize

    summary = summarize(profiles)
    try:
        reports.check_extra()
    except ExtraError:
        print_summary(summary)  # the tables need nothing more
        raise
    path = output or folder / "report.html"
    with _replacing(path) as file:
        file.write(reports.page(summary))
    print_summary(summary)
    say(f"wrote {path}")


def _pictures(file_format: str) -> "Callable[[Sequence[FileProfile], Path, Path | None], None]":
    def write(profiles: "Sequence[FileProfile]", folder: Path, output: Path | None) -> None:
        from vgpurun.profiles import report as reports
        from vgpurun.profiles.summary import summarize

        reports.check_extra()
        where = output or folder / _PICTURES
        if output is None and where.is_symlink():  # the profiled program may write there, too
            raise OutputError(f"{where} is a link; --output names another place")
        with _saying(where):
            where.mkdir(parents=True, exist_ok=True)
        for name, picture in reports.pictures(summarize(profiles), file_format):
            path = where / f"{name}.{file_format}"
            with _saying(path), atomic_file(path) as partial:
                partial.write_bytes(picture)
            say(f"wrote {path}")

    return write


def _text(profiles: "Sequence[FileProfile]", folder: Path, output: Path | None) -> None:
    from vgpurun.cli.views.report import print_summary
    from vgpurun.profiles.summary import summarize

    del folder
    summary = summarize(profiles)
    if output is None:
        print_summary(summary)
        return
    with _replacing(output) as file:
        print_summary(summary, file)


def _json(profiles: "Sequence[FileProfile]", folder: Path, output: Path | None) -> None:
    from vgpurun.profiles.described import describe
    from vgpurun.profiles.summary import summarize

    del folder
    text = json.dumps(describe(summarize(profiles)), indent=4, ensure_ascii=False)
    if output is None:
        click.echo(text)
        return
    with _replacing(output) as file:
        file.write(text + "\n")


def _trace(profiles: "Sequence[FileProfile]", folder: Path, output: Path | None) -> None:
    from vgpurun.profiles import trace

    path = output or folder / "trace.json.gz"
    with _replacing(path) as file:
        events = trace.write(profiles, file)
    say(f"wrote {events} events to {path}: open it at https://ui.perfetto.dev, or in chrome://tracing")


def _alnair(profiles: "Sequence[FileProfile]", folder: Path, output: Path | None) -> None:
    from vgpurun.profiles import alnair

    where = output or folder
    with _saying(where):
        where.mkdir(parents=True, exist_ok=True)
    with _replacing(where / "metrics.log") as file:
        alnair.write_metrics(profiles, file)
    with _replacing(where / "timeline.log") as file:
        calls = alnair.write_timeline(profiles, file)
    say(f"wrote {where / 'metrics.log'}, and {calls} calls to {where / 'timeline.log'}")


@contextmanager
def _replacing(path: Path) -> "Iterator[TextIO]":
    """Give a file that takes its place when it is whole: compressed where its name ends in .gz."""
    with (
        _saying(path),
        atomic_file(path) as partial,
        gzip.open(partial, "wt", 6, "utf-8") if path.suffix == ".gz" else partial.open("w", encoding="utf-8") as file,
    ):
        yield file


@contextmanager
def _saying(path: Path) -> "Iterator[None]":
    """Say what cannot be written."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; --output names another place") from None


_WRITERS: "dict[str, Callable[[Sequence[FileProfile], Path, Path | None], Any]]" = {
    "html": _html,
    "svg": _pictures("svg"),
    "png": _pictures("png"),
    "text": _text,
    "json": _json,
    "trace": _trace,
    "alnair": _alnair,
}
