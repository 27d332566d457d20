"""Stand-ins for modules that a package imports and will not use."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any


@contextmanager
def replaced(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Let these modules be found meanwhile, or not be found (None), unless they are loaded: Python looks here first."""
    ours = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(ours)  # type: ignore[arg-type]  # None stands for a module that there is not
    try:
        yield
    finally:
        for name, module in ours.items():
            if sys.modules.get(name, 0) is module:
                del sys.modules[name]


def later(name: str, **content: Any) -> ModuleType:
    """Return a module that stands for another, which is imported when something is used that is not in `content`.

    The other is no package.
    """

    def use(attribute: str) -> Any:
        if attribute == "__path__":  # which an import looks for
            raise AttributeError(attribute)
        if sys.modules.get(name) is module:
            del sys.modules[name]
        return getattr(import_module(name), attribute)

    module = made(name, __getattr__=use, **content)
    return module


def made(name: str, **content: Any) -> ModuleType:
    """Return a module with this content."""
    module = ModuleType(name)
    vars(module).update(content)
    return module
