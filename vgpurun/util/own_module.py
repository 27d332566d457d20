"""The command by which this vgpurun runs one of its modules as a program: the .deb's lie where Python does not look."""

import os
import sys
from pathlib import Path

import vgpurun

_RUN = (
    "import runpy, sys; sys.path.insert(0, sys.argv[1]); del sys.argv[:2]; "
    'runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)'
)


def command(module: str, *arguments: str) -> list[str]:
    """Return it. What variables say of Python, and the folder it is run in, change nothing."""
    python = os.path.abspath(sys.executable)  # noqa: PTH100 - resolved it would leave its virtual environment
    return [python, "-I", "-c", _RUN, str(Path(vgpurun.__file__).parents[1]), module, *arguments]
