"""Steps of a training in data parallel, on all GPUs that it sees: work on each, then an all-reduce over them by NCCL.

all_reduce.py together|each SECONDS    together: one process for all GPUs; each: one for each GPU

Prints one line of JSON.
"""

import json
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed
import torch.multiprocessing

WIDTH, PRODUCTS = 4096, 24  # some 10 ms on an H200
GRADIENT = 16 << 20  # floats
PORT = 29517


class Worker:
    """A GPU with its work, and what is to be summed over all of them."""

    def __init__(self, gpu: int) -> None:
        self.device = torch.device("cuda", gpu)
        self.matrix = torch.randn(WIDTH, WIDTH, device=self.device)
        self.product = torch.empty_like(self.matrix)
        self.gradient = torch.ones(GRADIENT, device=self.device)

    def work(self) -> None:
        for _ in range(PRODUCTS):
            torch.mm(self.matrix, self.matrix, out=self.product)


def measure(seconds: float, step: Callable[[float], bool]) -> dict[str, float]:
    """Take steps for so many seconds, after some that warm up. It gets how many are left, and says whether to end."""
    for _ in range(5):
        step(seconds)
    began_s = now_s = time.monotonic()
    steps, longest_s, ends = 0, 0.0, False
    while not ends:
        before_s = now_s
        ends = step(began_s + seconds - now_s)
        now_s = time.monotonic()
        steps, longest_s = steps + 1, max(longest_s, now_s - before_s)
    return {"exchanges": steps, "began_at_s": began_s, "seconds": now_s - began_s, "longest_ms": 1000 * longest_s}


def together(seconds: float) -> None:
    workers = [Worker(gpu) for gpu in range(torch.cuda.device_count())]

    def step(left_s: float) -> bool:
        for worker in workers:
            worker.work()
        torch.cuda.nccl.all_reduce([worker.gradient for worker in workers])
        for worker in workers:
            torch.cuda.synchronize(worker.device)
        return left_s < 0

    print(json.dumps(measure(seconds, step)))


def one_of_each(gpu: int, count: int, seconds: float) -> None:
    torch.cuda.set_device(gpu)
    torch.distributed.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{PORT}", rank=gpu, world_size=count)
    worker = Worker(gpu)
    left = torch.empty(1, device=worker.device)

    def step(left_s: float) -> bool:
        """All end together: nobody waits for who has ended."""
        worker.work()
        torch.distributed.all_reduce(worker.gradient)
        torch.distributed.all_reduce(left.fill_(left_s), torch.distributed.ReduceOp.MIN)
        return left.item() < 0

    measured = measure(seconds, step)
    if gpu == 0:
        print(json.dumps(measured), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    kind, seconds = sys.argv[1], float(sys.argv[2])
    if kind == "together":
        together(seconds)
    else:
        gpus = torch.cuda.device_count()
        torch.multiprocessing.spawn(one_of_each, (gpus, seconds), gpus)
