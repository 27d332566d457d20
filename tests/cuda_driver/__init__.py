"""The CUDA driver API through ctypes: as much of it as the tests need.

The functions are looked up by dlsym in `libcuda.so.1`, as a program that loads the driver at run time does, so that a
preloaded library sees every look-up. Sizes are bytes; times are what the method's name says. Programs take ctypes from
here too.
"""

import ctypes
import threading
from collections.abc import Callable, Iterable
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

from cuda_driver import constants
from cuda_driver.calls import CudaError
from cuda_driver.checkpoint import Checkpoints
from cuda_driver.constants import *  # noqa: F403
from cuda_driver.devices import Devices
from cuda_driver.graphs import Graphs
from cuda_driver.memory import Memory
from cuda_driver.structures import AllocationProperties, InstantiateParameters, Location
from cuda_driver.work import ptx

__all__ = [
    *(name for name in vars(constants) if name.isupper()),
    "AllocationProperties",
    "CudaError",
    "Driver",
    "InstantiateParameters",
    "Location",
    "byref",
    "c_char_p",
    "c_float",
    "c_int",
    "c_size_t",
    "c_uint",
    "c_uint64",
    "c_void_p",
    "ctypes",
    "in_threads",
    "ptx",
]


def in_threads(works: Iterable[Callable[[], object]]) -> None:
    """Have each of these done in a thread of its own, all at once, to the end."""
    threads = [threading.Thread(target=each) for each in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Driver(Devices, Memory, Graphs, Checkpoints):
    """Driver calls that raise CudaError. Handles are ints; a stream of 0 is the default stream."""

    @classmethod
    def started(cls, device: int = 0) -> "Driver":
        """Return one that has begun as most programs do: cuInit and a current primary context."""
        driver = cls()
        driver.start(device)
        return driver
