"""Verbs that are handed over to docker's own command line, which carries them out on the same engine."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial

import click

from vgpurun.errors import EngineError


def handed_over(verb: str, arguments: Sequence[str]) -> Callable[[], object]:
    """Return what becomes docker's own command line with these arguments. Raises EngineError where there is none."""
    docker = shutil.which("docker")
    if docker is None:
        raise EngineError(f"this is `docker {verb}`, and docker's command line is not installed")
    sys.stdout.flush()
    return partial(os.execv, docker, [docker, verb, *arguments])


def _handed_over(verb: str) -> click.Command:
    @click.command(
        name=verb,
        context_settings={"ignore_unknown_options": True},
        add_help_option=False,  # the help is docker's, too
        help=f"Hand over to `docker {verb}`.",
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> Callable[[], object]:
        return handed_over(verb, arguments)

    return command


attach, cp, port, stats, wait = map(_handed_over, ("attach", "cp", "port", "stats", "wait"))
