"""holds.py    use a GPU, print `ready`, and stay"""

import time

from cuda_driver import Driver

driver = Driver.started()
driver.mem_alloc(100 << 20)
print("ready", flush=True)
time.sleep(600)
