"""allocates.py MIB...    print the MiB that a GPU is said to have, and whether so many can be allocated"""

import sys

from cuda_driver import CudaError, Driver

driver = Driver.started()
answers = []
for mib in map(int, sys.argv[1:]):
    try:
        driver.mem_free(driver.mem_alloc(mib << 20))
        answers.append("ok")
    except CudaError as error:
        answers.append(error.name)
print(driver.device_total_mem() >> 20, *answers, flush=True)
