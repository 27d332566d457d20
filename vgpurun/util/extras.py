"""The optional parts of vgpurun, which need packages that `pip install vgpurun` does not bring."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from vgpurun.errors import ExtraError

# Packages that the .deb suggests: Debian's Python takes none of pip.
_OF_DEBIAN = {"report": "python3-jinja2 python3-matplotlib"}


@contextmanager
def needs_extra(name: str) -> Iterator[None]:
    """Import what an extra of pyproject.toml brings. Raises ExtraError where it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("vgpurun"):
            raise
        raise ExtraError(f"the Python package {error.name} is missing: {installing(name)}") from None


# The use of each extra, and a module of each package that it brings.
OF_ANY_HOST = {
    "report": ("the page and pictures of report, and history --plot", ("jinja2", "matplotlib")),
    "metrics": ("exporter, which fills history", ("prometheus_client",)),
    "compose": ("convert", ("ruamel.yaml",)),
}


def lacking(extra: str) -> list[str]:
    """Return the modules of an extra that are not installed."""
    return [each for each in OF_ANY_HOST[extra][1] if not _is_there(each)]


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package that it is part of
        return False


def installing(extra: str) -> str:
    """Return the command that installs an extra beside this vgpurun, or where the .deb has none of it, with another."""
    if __file__.startswith("/usr/lib/vgpurun/"):
        beside = f'in a virtual environment, pip install "$(echo vgpurun-*.whl)[{extra}]"'
        return f"apt install {_OF_DEBIAN[extra]}" if extra in _OF_DEBIAN else beside
    return f"{installer()} 'vgpurun[{extra}]'"


def installer() -> str:
    """Return the command that installs packages beside vgpurun's own: `uv tool` and `uv venv` bring no pip."""
    if find_spec("pip"):
        return f"{sys.executable} -m pip install"
    return f"uv pip install --python {sys.executable}"
