"""PyTorch works while another thread makes contexts and ends them, ten a second, each with work of its own.

For so many seconds. Prints how many products ended in the first half, and in the second one.
"""

import ctypes
import json
import sys
import threading
import time

import torch

cuda = ctypes.CDLL("libcuda.so.1")
seconds = float(sys.argv[1])
left, right = (torch.randn(2048, 2048, device="cuda") for _ in range(2))
torch.cuda.synchronize()
began_s = time.monotonic()
ended: list[float] = []


def make_contexts() -> None:
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    while time.monotonic() < began_s + seconds:
        assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
        assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20)) == 0
        assert cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(1), ctypes.c_size_t(1 << 20)) == 0
        assert cuda.cuCtxSynchronize() == 0
        time.sleep(0.05)
        assert cuda.cuCtxDestroy_v2(context) == 0
        time.sleep(0.05)


thread = threading.Thread(target=make_contexts)
thread.start()
while time.monotonic() < began_s + seconds:
    for _ in range(20):
        torch.mm(left, right)
    torch.cuda.synchronize()
    ended.append(time.monotonic())
thread.join()
early = sum(each < began_s + seconds / 2 for each in ended)
print(json.dumps({"first": early, "second": len(ended) - early}))
