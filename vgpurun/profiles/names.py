"""Names of functions and kernels as people know them."""

import re
from functools import cache

from vgpurun.profiles.demangling import demangled
from vgpurun.util.printable import printable

_VERSION = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")
_ANONYMOUS = "(anonymous namespace)::"
_DEFAULT_WIDTH = 64
_MOST_LETTERS = 2000


@cache
def api_name(api: str) -> str:
    """Return a function's name as the driver's documentation has it, without its binary version."""
    return printable(_VERSION.sub("", api))


def kernel_name(name: str) -> str:
    """Return a kernel's name as its source has it, where it is that of a C++ function and libstdc++ is at hand."""
    name = printable(demangled(name))
    return name if len(name) <= _MOST_LETTERS else f"{name[:_MOST_LETTERS]}…"


def short_kernel_name(name: str, width: int = _DEFAULT_WIDTH) -> str:
    """Return a kernel's name without its result and arguments, and of a long one what tells it from others."""
    name = kernel_name(name).replace(_ANONYMOUS, "")
    name = _without_arguments(name).removeprefix("void ")
    if len(name) > width:
        name = re.sub(r"(?<=[<, ])(?:\w+::)+", "", name)  # the namespaces of what templates are of
    if len(name) <= width:
        return name
    if "<" in name[: width - 1]:
        return f"{name[: width - 1]}…"
    return f"{name[: width // 2]}…{name[len(name) - (width - 1) // 2 :]}"


def _without_arguments(name: str) -> str:
    """Cut the list of arguments: the first parenthesis outside of templates."""
    depth = 0
    for i, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">" and name[i - 1] != "-")
        if letter == "(" and depth == 0 and i > 0:
            return name[:i]
    return name
