"""The optional parts of vgpurun, which need packages that `pip install vgpurun` does not bring."""

from collections.abc import Iterator
from contextlib import contextmanager

from vgpurun.errors import ExtraError


@contextmanager
def needs_extra(name: str) -> Iterator[None]:
    """Import what an extra of pyproject.toml brings. Raises ExtraError where it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("vgpurun"):
            raise
        raise ExtraError(f"the Python package {error.name} is missing: pip install 'vgpurun[{name}]'") from None
