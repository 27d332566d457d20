"""Trains: holds MIB of memory, and for STEPS steps runs a kernel of MS milliseconds and looks that no byte is wrong.

Prints when each step began, by CLOCK_MONOTONIC, and at the end "right".
"""

import hashlib
import sys
import time

from cuda_driver import Driver

MIB = 1 << 20
KEPT = 4  # pieces of 1 MiB whose bytes are looked at; the rest is held alone


def pattern(seed: int) -> bytes:
    return hashlib.sha256(str(seed).encode()).digest() * (MIB // 32)


def main() -> None:
    mib, steps, milliseconds = map(int, sys.argv[1:4])
    driver = Driver.started(0)
    kernel = driver.kernel(f"spin_{milliseconds}ms")
    held = [driver.mem_alloc(MIB) for _ in range(KEPT)]
    driver.mem_alloc((mib - KEPT) * MIB)
    for seed, address in enumerate(held):
        driver.copy_to_device(address, pattern(seed))
    for step in range(steps):
        print(f"{time.monotonic():.3f}", flush=True)
        driver.launch(kernel)
        driver.synchronize()
        address = held[step % KEPT]
        if driver.copy_from_device(address, MIB) != pattern(step):
            print("wrong", step, flush=True)
            return
        driver.copy_to_device(address, pattern(step + KEPT))
    print("right", flush=True)


main()
