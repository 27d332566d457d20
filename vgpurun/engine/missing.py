"""How packages are imported without what they can do without."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def missing(*names: str) -> Iterator[None]:
    """Let these modules not be found meanwhile, unless they are loaded: Python's import looks here first."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None stands for a module that there is not
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
