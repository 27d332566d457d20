"""Holds memory on each of two GPUs, without PyTorch: says `ready`, and after each line whether it is as it was."""

import sys

from cuda_driver import Driver

SIZE_BYTES = 256 << 20

driver, held = Driver(), []
driver.init()
for device in range(2):
    context = driver.primary_context(device)
    held.append((context, driver.mem_alloc(SIZE_BYTES), bytes([device + 1]) * SIZE_BYTES))
    driver.copy_to_device(*held[-1][1:])
print("ready", flush=True)
for _ in sys.stdin:
    right = True
    for context, address, content in held:
        driver.set_current(context)
        right = right and driver.copy_from_device(address, SIZE_BYTES) == content
    print(right, flush=True)
