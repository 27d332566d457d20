"""Completes a command line for a shell."""

import os

import click
from click.shell_completion import shell_complete

PROGRAM = "vgpurun"
VARIABLE = "_VGPURUN_COMPLETE"  # by which click's scripts ask


def answer(command: click.Command) -> int:
    """Answer a shell's question, which VARIABLE holds; return the exit code."""
    return shell_complete(command, {}, PROGRAM, VARIABLE, os.environ[VARIABLE])
