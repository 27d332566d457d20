"""Holds one kind of thing on the GPU: says `ready`, and after each line of input whether all of it is as it was.

torch_kept.py KIND
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed
import torch.multiprocessing

SIZE_BYTES = 256 << 20
Check = Callable[[], bool]


def tensor(device: str = "cuda") -> torch.Tensor:
    return torch.arange(SIZE_BYTES // 8, device=device)


def is_right(held: torch.Tensor) -> bool:
    return bool((held == torch.arange(len(held), device=held.device)).all())


@contextmanager
def memory() -> Iterator[Check]:
    held = tensor()
    yield lambda: is_right(held)


@contextmanager
def streams() -> Iterator[Check]:
    """An event that is recorded before the suspension, and is waited for after it."""
    held, stream, event = tensor(), torch.cuda.Stream(), torch.cuda.Event()
    event.record(stream)
    yield lambda: event.query() and is_right(held)


@contextmanager
def graph() -> Iterator[Check]:
    held = tensor()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        held += 1
        held -= 1

    def check() -> bool:
        captured.replay()
        return is_right(held)

    yield check


@contextmanager
def pinned() -> Iterator[Check]:
    held, host = tensor(), tensor("cpu").pin_memory()
    yield lambda: is_right(held) and bool((host.to("cuda", non_blocking=True) == held).all())


@contextmanager
def managed() -> Iterator[Check]:
    torch.zeros(1, device="cuda")
    driver, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
    assert driver.cuMemAllocManaged(ctypes.byref(pointer), ctypes.c_size_t(SIZE_BYTES), 1) == 0
    assert driver.cuMemsetD8_v2(pointer, ctypes.c_ubyte(7), ctypes.c_size_t(SIZE_BYTES)) == 0
    assert driver.cuCtxSynchronize() == 0
    copy = ctypes.create_string_buffer(SIZE_BYTES)

    def check() -> bool:
        code = driver.cuMemcpyDtoH_v2(copy, pointer, ctypes.c_size_t(SIZE_BYTES))
        return code == 0 and copy.raw == bytes([7]) * SIZE_BYTES

    yield check


def hold_shared(shared: torch.Tensor, ready: "torch.multiprocessing.Event", end: "torch.multiprocessing.Event") -> None:
    shared[0] = 0
    torch.cuda.synchronize()
    ready.set()
    end.wait()


@contextmanager
def ipc() -> Iterator[Check]:
    """Memory that another process has opened."""
    held, context = tensor(), torch.multiprocessing.get_context("spawn")
    ready, end = context.Event(), context.Event()
    child = context.Process(target=hold_shared, args=(held, ready, end), daemon=True)
    child.start()
    ready.wait()
    yield lambda: is_right(held)
    end.set()
    child.join()


class OnGpu(torch.utils.data.Dataset[int]):
    """Each worker has a context of its own."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> int:
        return int(torch.full((1,), index, device="cuda").item())


@contextmanager
def workers() -> Iterator[Check]:
    """A DataLoader's, each with a context of its own."""
    held = tensor()
    loader = torch.utils.data.DataLoader(OnGpu(), batch_size=4, num_workers=2, multiprocessing_context="spawn")
    batches = enumerate(iter(loader))
    next(batches)

    def check() -> bool:
        number, batch = next(batches)
        return is_right(held) and batch.tolist() == list(range(4 * number, 4 * number + 4))

    yield check


def rank(number: int, asked: "torch.multiprocessing.Queue[bool]", said: "torch.multiprocessing.Queue[bool]") -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
    torch.cuda.set_device(number)
    torch.distributed.init_process_group("nccl", rank=number, world_size=2)
    while True:
        mine = torch.full((1 << 20,), number + 1, device="cuda")
        torch.distributed.all_reduce(mine)
        said.put(bool((mine == 3).all()))
        asked.get()


@contextmanager
def nccl() -> Iterator[Check]:
    """Two processes, each on a GPU of its own."""
    context = torch.multiprocessing.get_context("spawn")
    queues = [(context.Queue(), context.Queue()) for _ in range(2)]
    for number, (asked, said) in enumerate(queues):
        context.Process(target=rank, args=(number, asked, said), daemon=True).start()
    assert all(said.get() for _, said in queues)

    def check() -> bool:
        for asked, _ in queues:
            asked.put(True)
        return all(said.get() for _, said in queues)

    yield check


@contextmanager
def peers() -> Iterator[Check]:
    """Check a process with memory on two GPUs."""
    both = [tensor("cuda:0"), tensor("cuda:1")]
    yield lambda: all(map(is_right, both)) and bool((both[0].to("cuda:1") == both[1]).all())


KINDS = {
    each.__name__: each for each in (memory, streams, graph, pinned, managed, ipc, workers, nccl, peers)
} | {"pools": memory, "expandable": memory}  # by PYTORCH_CUDA_ALLOC_CONF  # fmt: skip

if __name__ == "__main__":
    with KINDS[sys.argv[1]]() as check:
        torch.cuda.synchronize()
        print("ready", flush=True)
        for _ in sys.stdin:
            print(check(), flush=True)
