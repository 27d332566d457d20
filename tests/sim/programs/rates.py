"""Launches kernels of 2 ms without end, and prints what part of each half second they took."""

import time

from cuda_driver import Driver

KERNEL_S = 2e-3
WINDOW_S = 0.5


def main() -> None:
    driver = Driver()
    driver.start(0)
    kernel = driver.kernel("spin_2ms")
    while True:
        began_s, count = time.monotonic(), 0
        while time.monotonic() < began_s + WINDOW_S:
            driver.launch(kernel)
            count += 1
        driver.synchronize()
        print(count * KERNEL_S / (time.monotonic() - began_s), flush=True)


main()
