"""The optional parts of vgpurun, which need packages that `pip install vgpurun` does not bring."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from vgpurun.errors import ExtraError


@contextmanager
def needs_extra(name: str) -> Iterator[None]:
    """Import what an extra of pyproject.toml brings. Raises ExtraError where it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("vgpurun"):
            raise
        raise ExtraError(f"the Python package {error.name} is missing: {installer()} 'vgpurun[{name}]'") from None


def installer() -> str:
    """Return the command that installs packages beside vgpurun's own: `uv tool` and `uv venv` bring no pip."""
    if find_spec("pip"):
        return f"{sys.executable} -m pip install"
    return f"uv pip install --python {sys.executable}"
