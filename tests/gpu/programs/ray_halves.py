"""Two tasks of Ray with half a GPU each, at once, in PyTorch. Prints JSON: for each its view and its rate of products.

The rate is also that of a task which has all of the GPU, alone. Ray starts for this program, and ends with it.
"""

import json
import time

import torch

import ray

SECONDS = 5


@ray.remote
def task(start_at_s: float) -> dict[str, float]:
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    matrix = torch.rand(4096, 4096, device="cuda")
    refused = False
    try:
        torch.empty(total_bytes + (1 << 30), dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        refused = True
    torch.cuda.synchronize()
    time.sleep(max(0.0, start_at_s - time.time()))
    began_s, products = time.monotonic(), 0
    while time.monotonic() < began_s + SECONDS:
        for _ in range(8):
            matrix @ matrix
        torch.cuda.synchronize()
        products += 8
    rate = products / (time.monotonic() - began_s)
    return {"total_bytes": total_bytes, "free_bytes": free_bytes, "refused": refused, "rate": rate}


def at_once(*fractions: float) -> list[dict[str, float]]:
    begin_s = time.time() + 20  # imports and contexts take their time
    return ray.get([task.options(num_gpus=each).remote(begin_s) for each in fractions])


ray.init("local", num_gpus=1, include_dashboard=False)
print(json.dumps({"alone": at_once(1)[0], "halves": at_once(0.5, 0.5)}))
