"""Holds memory with patterns in it, and answers lines: check, start MS, alloc MIB and so on."""

import hashlib
import sys

from cuda_driver import Driver

MIB = 1 << 20


def pattern(seed: int, size: int) -> bytes:
    return (hashlib.sha256(str(seed).encode()).digest() * (size // 32 + 1))[:size]


def main() -> None:
    driver = Driver.started(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    held = []

    def hold(size: int) -> None:
        address = driver.mem_alloc(size)
        driver.copy_to_device(address, pattern(len(held), size))
        held.append((address, size))

    for size in (3 * MIB, 1000, 512, 5 * MIB + 7):
        hold(size)
    print("ready", flush=True)
    for line in sys.stdin:
        match line.split():
            case ["check"]:
                for seed, (address, size) in enumerate(held):
                    if driver.copy_from_device(address, size) != pattern(seed, size):
                        print("wrong", seed, flush=True)
                        break
                else:
                    print("right", len(held), flush=True)
            case ["start", milliseconds]:
                driver.launch(driver.kernel(f"spin_{milliseconds}ms"))
                print("started", flush=True)
            case ["begin"]:  # work that ends when it is told to
                driver.launch(driver.kernel("held_until_release"), driver.stream())
                print("begun", flush=True)
            case ["release"]:
                driver.launch(driver.kernel("release"), driver.stream())
                print("released", flush=True)
            case ["alloc", mib]:
                hold(int(mib) * MIB)
                print("held", flush=True)
            case ["take", mib]:  # more than the simulated driver keeps
                driver.mem_alloc(int(mib) * MIB)
                print("taken", flush=True)
            case ["share"]:
                driver.ipc_handle(held[0][0])
                print("shared", flush=True)
            case ["managed"]:
                driver.mem_alloc_managed(4 * MIB)
                print("managed", flush=True)
            case ["uuid"]:
                print(driver.device_uuid(), flush=True)
            case _:
                return


main()
