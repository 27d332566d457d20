"""Messages to the user besides a command's output: lines on stderr."""

import sys

from vgpurun.util.printable import printable


def say(message: str) -> None:
    """Tell the user what happens, on stderr. Paths and names in it may be others' choice."""
    print("vgpurun:", printable(message, keep="\n\t"), file=sys.stderr, flush=True)


def warn(message: str) -> None:
    """Tell the user what does not hold, on stderr."""
    say(f"warning: {message}")
