"""A steady PyTorch loop of one kind of work for a number of seconds. Prints its rate and its longest stall as JSON.

loop.py fp32|bf16|graph|train|infer SECONDS
"""

import json
import sys
import time
from collections import deque
from collections.abc import Callable

import torch


def matmul(size: int, dtype: torch.dtype) -> Callable[[], object]:
    """One square product."""
    a = torch.randn(size, size, device="cuda", dtype=dtype)
    b = torch.randn(size, size, device="cuda", dtype=dtype)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def graph() -> Callable[[], object]:
    """The replay of a captured graph of 100 small kernels."""
    x = torch.randn(1024, 1024, device="cuda")
    for _ in range(3):
        x.mul_(1.0001).add_(0.0001)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(50):
            x.mul_(1.0001).add_(0.0001)
    return captured.replay


def encoder(layers: int) -> torch.nn.Module:
    """A small transformer."""
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, layers).cuda()


def train() -> Callable[[], object]:
    """A step of training on a batch of 16 sequences of 256."""
    model = encoder(4)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(16, 256, 512, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        (model(batch) - batch).square().mean().backward()
        optimizer.step()

    return step


def infer() -> Callable[[], object]:
    """An answer at batch size 1, brought to the host."""
    model = encoder(6).eval()
    tokens = torch.randn(1, 64, 512, device="cuda")

    def step() -> object:
        with torch.inference_mode():
            return model(tokens).sum().item()

    return step


def measure(step: Callable[[], object], seconds: float) -> dict[str, float]:
    """Steps completed in a second, and the longest time in milliseconds between two completions."""
    pending: deque[torch.cuda.Event] = deque()
    completed, longest_s = 0, 0.0
    began = last = 0.0  # the first completion
    while not began or last - began < seconds:
        step()
        event = torch.cuda.Event()
        event.record()
        pending.append(event)
        if len(pending) <= 8:
            continue
        pending.popleft().synchronize()
        now = time.perf_counter()
        if began:
            completed += 1
            longest_s = max(longest_s, now - last)
        began, last = began or now, now
    return {"per_second": completed / (last - began), "longest_stall_ms": longest_s * 1000}


step = {
    "fp32": lambda: matmul(2048, torch.float32),  # 0.4 ms on an H200
    "bf16": lambda: matmul(4096, torch.bfloat16),  # 0.2 ms, at the card's power limit
    "graph": graph,
    "train": train,
    "infer": infer,
}[sys.argv[1]]()
measure(step, 1.0)  # settles: clocks, learned costs, the burst
print(json.dumps(measure(step, float(sys.argv[2]))))
