"""Lets a pool of two processes allocate memory. Prints what each then sees of the GPU's memory in all, in MiB.

pool.py fork|spawn|forkserver
"""

import multiprocessing
import sys

from cuda_driver import Driver


def work(mib: int) -> int:
    driver = Driver.started()
    driver.mem_alloc(mib << 20)
    return driver.mem_get_info()[1] >> 20


if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        print(pool.map(work, [10, 20, 30, 40]))
