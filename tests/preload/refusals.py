"""For programs under a memory limit: what is used, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

from cuda_driver import CudaError, Driver

MIB = 1 << 20
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


def used_mib(d: Driver) -> int:
    return d.mem_used() // MIB


def refused(call: Callable[..., object], *arguments: object) -> str:
    """Return the name of the error, or `granted`."""
    try:
        call(*arguments)
    except CudaError as error:
        return error.name
    return "granted"
