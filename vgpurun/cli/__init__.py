"""The command line: one short module per verb. This file holds the group and turns an error into an exit code."""

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from vgpurun import __version__
from vgpurun.cli.build import build, build_in_docker
from vgpurun.cli.containers import kill, rm, stop
from vgpurun.cli.exec import exec_command
from vgpurun.cli.local import local
from vgpurun.cli.logs import logs
from vgpurun.cli.prune import prune
from vgpurun.cli.run import run
from vgpurun.cli.smi import smi
from vgpurun.cli.update import update
from vgpurun.errors import GpuError, ImageError, VgpurunError
from vgpurun.signals import Interrupted

_FAILED = VgpurunError.exit_code
_CTRL_C = 130
_BROKEN_PIPE = 141

_HELP = """Run a container with a GPU memory cap and a compute cap.

\b
  vgpurun --mem 2g --sm 50 IMAGE python train.py

is `docker run` for a container that sees a GPU of 2 GiB and gets half of its time. Without a verb, the options and
the image are those of `run`.
"""


class RunByDefault(click.Group):
    """`vgpurun [options] IMAGE` is `vgpurun run [options] IMAGE`: a verb is one only in the first place.

    `vgpurun help [VERB]` is `vgpurun [VERB] --help`, as docker has it; an image of that name: `vgpurun run help`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `run` before arguments that begin with neither a verb nor an option of the group."""
        if args[:1] == ["help"]:
            if unknown := [verb for verb in args[1:2] if verb not in self.commands]:
                raise click.UsageError(
                    f"there is no verb '{unknown[0]}'; the verbs are {', '.join(self.commands)}.", ctx
                )
            args = [*args[1:2], "--help"]
        of_group = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        if args and args[0] not in self.commands and args[0] not in of_group:
            ctx.meta["vgpurun.verbs"] = frozenset(self.commands)
            ctx.meta["vgpurun.first"] = args[0]
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb. If that fails for an image whose name is nearly a verb, ask whether the verb was meant."""
        try:
            return super().invoke(ctx)
        except (GpuError, ImageError) as error:
            from difflib import get_close_matches  # slow to import

            meant = get_close_matches(ctx.meta.get("vgpurun.first", ""), self.commands, n=1, cutoff=0.6)
            raise type(error)(f"{error}; or did you mean: vgpurun {meant[0]}?") if meant else error from None


@click.group(
    cls=RunByDefault,
    help=_HELP,
    epilog="`vgpurun VERB --help` lists the options of a verb.",
    options_metavar="[VERB] [OPTIONS]",
    subcommand_metavar="IMAGE [COMMAND] [ARG...]",
    invoke_without_command=True,
    context_settings={"max_content_width": 120},
)
@click.version_option(__version__, prog_name="vgpurun", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Print the help when nothing else was asked for."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


_VERBS = (run, local, smi, update, exec_command, logs, stop, kill, rm, prune, build, build_in_docker)
for verb in _VERBS:
    cli.add_command(verb)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    _open_standard_streams()
    exit_code = _run(arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        exit_code = _quiet()
    except OSError as error:  # a full disk, which what was buffered may meet only here
        if exit_code == 0:
            exit_code = _fail(error, error.strerror or str(error), _FAILED)
        _quiet()
    sys.exit(exit_code)


def _open_standard_streams() -> None:
    """Open /dev/null for what the caller has closed (`>&-`): else a socket of ours would get its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def _run(arguments: Sequence[str] | None) -> int:
    """The one place where an error becomes a line and an exit code."""
    try:
        result = cli.main(args=arguments, prog_name="vgpurun", standalone_mode=False)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "vgpurun"
        return _fail(error, f"{_one_line(error.format_message())} See: {where} --help", _FAILED)
    except click.ClickException as error:
        return _fail(error, _one_line(error.format_message()), _FAILED)
    except VgpurunError as error:
        return _fail(error, _one_line(str(error)), error.exit_code)
    except Interrupted as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _CTRL_C
    except (BrokenPipeError, SystemExit):  # click's own answer to a closed pipe is to exit
        return _quiet()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(error, f"{where}{error.strerror or error}", _FAILED)
    except Exception as error:  # a mistake of ours: still one line
        return _fail(error, f"unexpected {type(error).__name__}: {_one_line(str(error))}; please report it", _FAILED)
    return result if isinstance(result, int) else 0


def _fail(error: Exception, message: str, exit_code: int) -> int:
    with suppress(OSError):  # nobody hears it, but the exit code stays
        if os.environ.get("VGPURUN_DEBUG", "0") not in ("", "0"):
            traceback.print_exception(error)
        print(f"vgpurun: {message}", file=sys.stderr)
    return exit_code


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _quiet() -> int:
    """Nobody reads our output any more; without this, Python would say so at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _BROKEN_PIPE
