"""Names of functions and kernels as people know them."""

import ctypes
import ctypes.util
import re
from collections.abc import Callable
from functools import cache

_VERSION = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")
_ANONYMOUS = "(anonymous namespace)::"
_DEFAULT_WIDTH = 64


@cache
def api_name(api: str) -> str:
    """Return a function's name as the driver's documentation has it, without its binary version."""
    return printable(_VERSION.sub("", api))


def kernel_name(name: str) -> str:
    """Return a kernel's name as its source has it, where it is that of a C++ function and libstdc++ is at hand."""
    return printable(_demangled(name) if name.startswith("_Z") else name)


def printable(text: str) -> str:
    """Return a text that steers no terminal and breaks no file: names come from the profiled programs."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


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


@cache
def _demangled(name: str) -> str:
    demangle = _demangler()
    return demangle(name) if demangle else name


@cache
def _demangler() -> Callable[[str], str] | None:
    """The C++ library's own demangler, which is on nearly every host."""
    try:
        library = ctypes.CDLL(ctypes.util.find_library("stdc++") or "libstdc++.so.6")
        function = library.__cxa_demangle
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]

    def demangle(name: str) -> str:
        status = ctypes.c_int()
        address = function(name.encode(), None, None, ctypes.byref(status))
        if not address:
            return name
        try:
            return ctypes.string_at(address).decode(errors="replace")
        finally:
            free(address)

    return demangle
