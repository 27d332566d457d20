"""The command line: `verbs.py` lists the modules of `commands/`; this file turns an error into an exit code."""

import codecs
import errno
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from vgpurun import __version__
from vgpurun.cli.verbs import Verbs
from vgpurun.console.messages import say
from vgpurun.console.signals import CTRL_C, AbandonedError, Interrupted, Signals, interrupt_of
from vgpurun.errors import CommandLineError, NoRoomError, VgpurunError

_FAILED = VgpurunError.exit_code
_OF_DOCKER = "docker-vgpurun"  # this program, as a plugin of docker's command line
_CTRL_C = 130
_ABANDONED = "left at the third INT or TERM signal; a container that ignores them goes on: see `vgpurun ps`"
_BROKEN_PIPE = 141
# The subject of an error that names no file.
_UNNAMED = {errno.ENOSPC: "the output cannot be written", errno.ENOENT: "the current folder"}

_HELP = """Run a container with a GPU memory cap and a compute cap.

\b
  vgpurun --mem 2g --sm 50 IMAGE python train.py

is `docker run` for a container that sees a GPU of 2 GiB and gets half of its time. Without a verb, the options and
the image are those of `run`.
"""


def _choose_engine(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    del ctx
    if value is not None:
        from vgpurun.cli.docker_plugin import choose

        choose(parameter.name or "", value)


@click.group(
    cls=Verbs,
    help=_HELP,
    epilog="`vgpurun VERB --help` lists the options of a verb.",
    options_metavar="[VERB] [OPTIONS]",
    subcommand_metavar="IMAGE [COMMAND] [ARG...]",
    invoke_without_command=True,
    context_settings={"max_content_width": 120, "help_option_names": ["-h", "--help"]},
)
@click.option(
    "-H", "--host", "DOCKER_HOST", metavar="ADDRESS", expose_value=False, callback=_choose_engine,
    help="The engine's address, as in DOCKER_HOST.",
)  # fmt: skip
@click.option(
    "--context", "DOCKER_CONTEXT", metavar="NAME", expose_value=False, callback=_choose_engine,
    help="The engine of one of docker's contexts, as in DOCKER_CONTEXT.",
)  # fmt: skip
@click.version_option(__version__, "-v", "--version", prog_name="vgpurun", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Print the help when nothing else was asked for."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    _open_standard_streams()
    exit_code = _complete() if "_VGPURUN_COMPLETE" in os.environ else _run(arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        exit_code = _quiet()
    except OSError as error:  # a full disk, which what was buffered may meet only here
        if exit_code == 0:
            exit_code = _fail(error, f"the output cannot be written: {error.strerror or error}", _FAILED)
        _quiet()
    return exit_code


def _open_standard_streams() -> None:
    """Open /dev/null for what the caller has closed (`>&-`): else a socket of ours would get its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):  # false within a test
        codecs.register_error("vgpurun", _in_other_letters)
        sys.stdout.reconfigure(errors="vgpurun")


def _in_other_letters(error: UnicodeError) -> tuple[str | bytes, int]:
    """Write what the terminal's encoding lacks in ASCII: our own mark for a text that is cut, and names of others."""
    assert isinstance(error, UnicodeEncodeError)
    if error.object[error.start] == "…":
        return "~", error.start + 1
    return codecs.backslashreplace_errors(error)


def _complete() -> int:
    """Answer a shell that completes a command line. Errors are not reported there."""
    from vgpurun.cli.completing import answer

    try:
        return answer(cli)
    except Exception:
        return _FAILED


def _run(arguments: Sequence[str] | None) -> int:
    """The one place where an error becomes a line and an exit code."""
    try:
        if arguments is None and os.path.basename(sys.argv[0]) == _OF_DOCKER:  # noqa: PTH119
            from vgpurun.cli import docker_plugin

            if sys.argv[1:] == [docker_plugin.METADATA]:
                click.echo(docker_plugin.metadata())
                return 0
            arguments = docker_plugin.own_arguments(sys.argv[1:])
        color = False if os.environ.get("NO_COLOR") else None  # None: in a terminal
        with Signals(CTRL_C) as signals:
            result = cli.main(args=arguments, prog_name="vgpurun", standalone_mode=False, color=color, obj=signals)
        if callable(result):  # a program of others, which heeds signals in its own way
            result()
    except click.MissingParameter as error:
        return _fail(error, _missing(error), CommandLineError.exit_code)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "vgpurun"
        return _fail(error, f"{_sentence(error.format_message())} See: {where} --help", _FAILED)
    except click.ClickException as error:
        return _fail(error, _one_line(error.format_message()), _FAILED)
    except VgpurunError as error:
        details = f"\n{error.details}" if isinstance(error, NoRoomError) else ""
        return _fail(error, _one_line(str(error)) + details, error.exit_code)
    except AbandonedError as error:
        return _fail(error, _ABANDONED, error.exit_code)
    except Interrupted as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _CTRL_C
    except (BrokenPipeError, SystemExit):  # click's own answer to a closed pipe is to exit
        return _quiet()
    except OSError as error:
        where = error.filename or _UNNAMED.get(error.errno or 0, "")
        return _fail(error, f"{where}{': ' if where else ''}{error.strerror or error}", _FAILED)
    except Exception as error:  # a mistake of ours: still one line
        if interrupted := interrupt_of(error):
            return interrupted.exit_code
        return _fail(error, f"unexpected {type(error).__name__}: {_one_line(str(error))}; please report it", _FAILED)
    return result if isinstance(result, int) else 0


def _fail(error: BaseException, message: str, exit_code: int) -> int:
    with suppress(OSError):  # nobody hears it, but the exit code stays
        if os.environ.get("VGPURUN_DEBUG", "0") not in ("", "0"):
            import traceback  # slow to import

            traceback.print_exception(error)
        say(message)
    return exit_code


def _missing(error: click.MissingParameter) -> str:
    """Say what a verb lacks, in docker's words."""
    if error.ctx is None:
        return _sentence(error.format_message())
    needed = [each for each in error.ctx.command.params if isinstance(each, click.Argument) and each.required]
    names = " ".join(each.human_readable_name.upper() for each in needed).rstrip(".")
    count = f"{len(needed)} argument{'s' if len(needed) > 1 else ''}"
    return f"'{error.ctx.command_path}' requires at least {count}: {names}. See: {error.ctx.command_path} --help"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _sentence(text: str) -> str:
    line = _one_line(text)
    line = line[:1].lower() + line[1:]  # like all messages of ours
    return line if line.endswith((".", "?", "?)")) else f"{line}."


def _quiet() -> int:
    """Discard output that nobody reads any more: Python would complain about it at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _BROKEN_PIPE
