"""Programs of tests that run in a process of their own, written as functions, so that linters and editors see them."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

Program = Callable[[], object]
IMPORTED = {*sys.stdlib_module_names, "cuda_driver", "vgpurun"}  # the rest goes along as it is written
OWN: Any = object()  # in a module of tests, what each program has one of its own of


def text_of(program: Program, *first: str) -> str:
    """Return the text of a program that does what the function does.

    It brings what the function uses of its module and of the test around it: functions, modules and plain values.
    `first` are lines that go before.
    """
    written: dict[str, str] = {}
    _write(program, written)
    return "\n".join(["from __future__ import annotations", *first, *written.values(), f"{program.__name__}()"])


def _write(function: Any, written: dict[str, str]) -> None:
    text = textwrap.dedent(inspect.getsource(function))
    around = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    for name in (each.id for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Name)):
        if name not in around or name in written or (value := around[name]) is OWN:
            continue
        if isinstance(value, ModuleType):
            written[name] = f"import {value.__name__} as {name}"
        elif getattr(value, "__module__", "").partition(".")[0] in IMPORTED:
            written[name] = f"from {value.__module__} import {value.__name__} as {name}"
        elif isinstance(value, FunctionType):
            written[name] = ""  # may use itself
            _write(value, written)
        else:
            written[name] = f"{name} = {value!r}"
    written.pop(function.__name__, None)  # behind what it uses
    written[function.__name__] = text
