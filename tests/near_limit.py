"""The memory that a container's processes really hold when each is refused, for many sizes and kinds of allocation.

near_limit.py LIMIT_MIB PROCESSES CONTEXTS    one line of JSON: the MiB that NVML says they hold together at the refusal

It runs under the limit, on a simulated GPU or a real one. The figures come from a copy of NVML, which is not caught.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pynvml

from cuda_driver import CudaError, Driver

MIB = 1 << 20
LEFT_MIB = 96  # for the chunks to fill


class Nvml:
    """The driver's own count of what processes hold on the first GPU."""

    def __init__(self) -> None:
        name = "libnvidia-ml.so.1"
        ctypes.CDLL(name)
        lines = Path("/proc/self/maps").read_text().splitlines()
        original = next(line.split()[-1] for line in lines if "/libnvidia-ml.so" in line)
        with tempfile.TemporaryDirectory() as folder:
            self._library = ctypes.CDLL(shutil.copy(original, Path(folder) / "nvml_copy.so"))
        self._handle = ctypes.c_void_p()
        pynvml._nvmlCheckReturn(self._library.nvmlInit_v2())
        pynvml._nvmlCheckReturn(self._library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._handle)))

    def held_bytes(self, pids: set[int]) -> int:
        """The memory that these processes hold together."""
        count = ctypes.c_uint(1024)
        rows = (pynvml.c_nvmlProcessInfo_v3_t * count.value)()
        ask = self._library.nvmlDeviceGetComputeRunningProcesses_v3
        pynvml._nvmlCheckReturn(ask(self._handle, ctypes.byref(count), rows))
        return sum(row.usedGpuMemory for row in rows[: count.value] if row.pid in pids)


def kinds(driver: Driver) -> dict[str, tuple[Callable[[], int], Callable[[int], None]]]:
    """How a chunk of each kind is allocated and freed."""
    sizes = {"256 B": 256, "4 KiB": 4096, "700 KiB": 700 << 10, "1 MiB + 1": MIB + 1, "2 MiB + 1": 2 * MIB + 1}
    sizes |= {"20 MiB + 5": 20 * MIB + 5}

    def plain(size: int) -> Callable[[], int]:
        return lambda: driver.mem_alloc(size)

    found: dict[str, tuple[Callable[[], int], Callable[[int], None]]] = {
        name: (plain(size), driver.mem_free) for name, size in sizes.items()
    }
    found["array"] = (lambda: driver.array(1000, 1000), driver.array_destroy)
    found["cuMemCreate"] = (lambda: driver.mem_create(20 * MIB), driver.mem_release)
    found["pool"] = (lambda: driver.mem_alloc_async(MIB), driver.mem_free_async)
    return found


def fill(driver: Driver, contexts: list[int], allocate: Callable[[], int]) -> list[tuple[int, int]]:
    """Allocate in all contexts in turn until each has been refused."""
    held: list[tuple[int, int]] = []
    left = list(contexts)
    while left:
        for context in list(left):
            driver.set_current(context)
            try:
                held.append((context, allocate()))
            except CudaError as error:
                if error.name != "CUDA_ERROR_OUT_OF_MEMORY":
                    raise
                left.remove(context)
    return held


def work(context_count: int) -> None:
    """A worker: `KIND TO_PREFILL_BYTES` on each line of stdin; waits for another line before it frees everything."""
    driver = Driver()
    driver.init()
    contexts = [driver.context_create() for _ in range(context_count)]
    print("ready", flush=True)
    while line := sys.stdin.readline():
        kind, prefill_bytes = line.rsplit(maxsplit=1)
        allocate, free = kinds(driver)[kind]
        driver.set_current(contexts[0])
        first = driver.mem_alloc(int(prefill_bytes))
        print("filled", flush=True)
        sys.stdin.readline()
        held = fill(driver, contexts, allocate)
        print("refused", flush=True)
        sys.stdin.readline()
        for context, chunk in held:
            driver.set_current(context)
            free(chunk)
        driver.set_current(contexts[0])
        driver.mem_free(first)
        for context in contexts:
            driver.set_current(context)
            driver.synchronize()
        print("freed", flush=True)


def main(limit_bytes: int, process_count: int, context_count: int) -> None:
    """Start the workers and lead them through all kinds."""
    command = [sys.executable, __file__, "work", str(context_count)]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(process_count)
    ]
    pids = {worker.pid for worker in workers}

    def await_all(word: str) -> None:
        for worker in workers:
            answer = worker.stdout.readline()
            assert answer == f"{word}\n", answer

    def tell_all(line: str) -> None:
        for worker in workers:
            worker.stdin.write(f"{line}\n")
            worker.stdin.flush()

    await_all("ready")
    nvml = Nvml()
    held_mib = {}
    for kind in kinds(Driver()):
        free_bytes = limit_bytes - nvml.held_bytes(pids) - LEFT_MIB * MIB
        prefill_bytes = free_bytes // process_count // (2 * MIB) * (2 * MIB)
        tell_all(f"{kind} {prefill_bytes}")
        await_all("filled")
        tell_all("")
        await_all("refused")
        held_mib[kind] = nvml.held_bytes(pids) / MIB
        tell_all("")
        await_all("freed")
    for worker in workers:
        worker.kill()
    print(json.dumps(held_mib))


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work(int(sys.argv[2]))
    else:
        main(int(sys.argv[1]) * MIB, int(sys.argv[2]), int(sys.argv[3]))
