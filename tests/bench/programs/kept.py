"""Holds GIB of memory, says `ready`, and after each line of input whether what it wrote there is as it was.

kept.py GIB
"""

import sys

from cuda_driver import Driver

CHUNK_BYTES = 256 << 20


def main() -> None:
    driver = Driver.started(0)
    held = [driver.mem_alloc(CHUNK_BYTES) for _ in range(int(sys.argv[1]) * 4)]
    for index, address in enumerate(held):
        driver.call("cuMemsetD8_v2", address, index % 255 + 1, CHUNK_BYTES)
    driver.synchronize()
    print("ready", flush=True)
    for _ in sys.stdin:
        is_kept = all(
            driver.copy_from_device(address + at, 64) == bytes([index % 255 + 1]) * 64
            for index, address in enumerate(held)
            for at in range(0, CHUNK_BYTES, 1 << 20)
        )
        print(is_kept, flush=True)


main()
