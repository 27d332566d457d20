"""Forks processes without end, each of which starts CUDA, uses it for a moment, and ends.

    starters.py COUNT LIMIT_MIB

COUNT of them at a time. Each holds a pattern, is refused LIMIT_MIB, and finds that its GPU is the one that its limits
name whenever they name one alone and nothing is suspended. A line says what was wrong with a process, or that it was
right.
"""

import os
import sys
import time
from pathlib import Path

from cuda_driver import CudaError, Driver
from vgpurun.limits import limits_file

MIB = 1 << 20
LIMITS = Path(os.environ["VGPURUN_LIMITS_FILE"])


def granted() -> str | None:
    """Return the one GPU of the share, or None while it moves."""
    limits = limits_file.read_limits(LIMITS) or []
    return limits[0][0] if len(limits) == 1 and not limits[0][1].suspended else None


def use(limit_mib: int) -> str:
    driver = Driver.started(0)
    pattern = os.urandom(MIB)
    address = driver.mem_alloc(MIB)
    driver.copy_to_device(address, pattern)
    for _ in range(10):
        before, uuid, after = granted(), driver.device_uuid(), granted()
        if before == after is not None and uuid != before:
            return f"it is on {uuid}, and has {before}"
        time.sleep(0.02)
    if driver.copy_from_device(address, MIB) != pattern:
        return "a byte has changed"
    try:
        driver.mem_alloc(limit_mib * MIB)
    except CudaError:
        return "right"
    return f"it has {limit_mib + 1} MiB"


def start(limit_mib: int) -> None:
    if os.fork():
        return
    try:
        said = use(limit_mib)
    except CudaError as error:
        said = str(error)
    sys.stdout.write(f"{said}\n")
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    count, limit_mib = map(int, sys.argv[1:])
    for _ in range(count):
        start(limit_mib)
    while True:
        os.wait()
        start(limit_mib)


main()
