"""Launches kernels of 2 ms without end, ten ahead, and prints what part of each half second they took."""

import time

from cuda_driver import Driver

KERNEL_S = 2e-3
WINDOW_S = 0.5
AHEAD = 10


def main() -> None:
    driver = Driver.started(0)
    kernel = driver.kernel("spin_2ms")
    events = [driver.event() for _ in range(AHEAD)]
    for event in events:
        driver.event_record(event)
    while True:
        began_s, count = time.monotonic(), 0
        while time.monotonic() < began_s + WINDOW_S:
            event = events[count % AHEAD]
            driver.event_synchronize(event)
            driver.launch(kernel)
            driver.event_record(event)
            count += 1
        driver.synchronize()
        print(count * KERNEL_S / (time.monotonic() - began_s), flush=True)


main()
