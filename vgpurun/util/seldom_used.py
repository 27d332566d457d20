"""Postpones modules of Python's own that click and docker-py import and few runs use: a fifth of a start."""

import os
import sys
from _queue import SimpleQueue
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from vgpurun.util.modules import later, made, replaced


def postpone() -> None:
    """Let these modules be imported when they are used. To be called before anything imports them."""
    for name, used in _SELDOM_USED.items():
        sys.modules.setdefault(name, later(name, **used))
    if sys.version_info < (3, 12):  # there it is a thousand lines of Python first, which this then takes the place of
        sys.modules.setdefault("datetime", import_module("_datetime"))
    with replaced({"uuid": made("uuid", UUID=object)}):  # click has a type of it, which is no option's here
        import_module("click")


def _cleandoc(text: str) -> str:
    """Do what inspect.cleandoc does, which click asks for the help of each option."""
    if "\n" not in text:
        return text.expandtabs().lstrip()
    if vars(sys.modules["inspect"]).get("cleandoc") is _cleandoc:
        del sys.modules["inspect"]
    from inspect import cleandoc

    return cleandoc(text)


def _plural(one: str, many: str, count: int) -> str:
    return one if count == 1 else many


# With what each start uses of them. Nothing is translated here, so click's words are not either.
_SELDOM_USED: Mapping[str, Mapping[str, Any]] = {
    "array": {},
    "base64": {},
    "bz2": {},
    "csv": {},
    "fnmatch": {},
    "gettext": {"gettext": str, "ngettext": _plural},
    "grp": {},
    "inspect": {"cleandoc": _cleandoc},
    "ipaddress": {},
    "lzma": {},
    "math": {"inf": float("inf")},
    "mmap": {},
    "ntpath": {},
    "platform": {"machine": lambda: os.uname().machine, "system": lambda: os.uname().sysname},
    "queue": {"SimpleQueue": SimpleQueue},
    "random": {},
    "selectors": {},
    "shlex": {},
    "shutil": {},
    "string": {"ascii_letters": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"},
    "subprocess": {},
    "tarfile": {},
    "tempfile": {},
    "zlib": {},
}
