"""The program `vgpurun`, which is also `python -m vgpurun`.

Until main() begins, Python answers Ctrl-C with a traceback: what takes long to import comes in main(), and that is even
`signal`, which imports a dozen others.
"""

import gc
import os
import sys
from _signal import SIG_DFL, SIGINT, signal  # type: ignore[import-not-found]

# A start makes some ten thousand objects that stay: the collector would walk through them dozens of times.
_GARBAGE_THRESHOLD = 100_000
_SWITCH_S = (
    0.0005  # a thread that has got the engine's answer waits so long for one that imports; Python's own are 5 ms
)


def main() -> None:
    """Run the command line. Before and after, Ctrl-C ends the process at once, without a traceback."""
    signal(SIGINT, SIG_DFL)
    gc.set_threshold(_GARBAGE_THRESHOLD)
    sys.setswitchinterval(_SWITCH_S)
    from contextlib import suppress

    from vgpurun.cli import main as run

    exit_code = run()
    with suppress(OSError, ValueError):  # closed, or nobody reads it
        sys.stderr.flush()
    os._exit(exit_code)  # taking all modules apart first would be a tenth of a short run


if __name__ == "__main__":
    main()
