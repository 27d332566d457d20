"""Messages to the user besides a command's output: lines on stderr."""

import sys


def say(message: str) -> None:
    """Tell the user what happens, on stderr."""
    print(f"vgpurun: {message}", file=sys.stderr, flush=True)


def warn(message: str) -> None:
    """Tell the user what does not hold, on stderr."""
    say(f"warning: {message}")
