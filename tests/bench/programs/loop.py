"""A steady PyTorch loop of one kind of work for a number of seconds.

Prints as JSON when it begins to measure itself, by CLOCK_MONOTONIC; then its rate, its longest stall, and what it
completed in each 50 ms.

loop.py fp32|bf16|graph|small|train|train16|generate|infer|decode SECONDS
"""

import json
import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise

import torch

SAMPLE_S = 0.05


def matmul(size: int, dtype: torch.dtype) -> Callable[[], object]:
    """Return a step that makes one square product."""
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


def small_kernels() -> Callable[[], object]:
    """A hundred small kernels, one launch after the other: PyTorch launches no faster."""
    x = torch.randn(64, device="cuda")

    def step() -> None:
        for _ in range(100):
            x.add_(1.0)

    return step


def encoder(layers: int, width: int = 512, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """A transformer."""
    with torch.device("cuda"):
        layer = torch.nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, dropout=0.0, batch_first=True, dtype=dtype
        )
        return torch.nn.TransformerEncoder(layer, layers)


def train(sequences: int) -> Callable[[], object]:
    """A step of training on a batch of so many sequences of 256."""
    model = encoder(4)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(sequences, 256, 512, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        (model(batch) - batch).square().mean().backward()
        optimizer.step()

    return step


def infer(tokens: int, width: int, layers: int = 6, dtype: torch.dtype = torch.float32) -> Callable[[], object]:
    """An answer to one sequence of so many tokens, brought to the host."""
    model = encoder(layers, width, dtype).eval()
    sequence = torch.randn(1, tokens, width, device="cuda", dtype=dtype)

    def step() -> object:
        with torch.inference_mode():
            return model(sequence).sum().item()

    return step


def spread(samples: list[float], from_s: float, to_s: float) -> None:
    """Spread a step over the samples; it may be longer than one."""
    first, last = int(from_s / SAMPLE_S), int(to_s / SAMPLE_S)
    for i in range(first, last + 1):
        part_s = min(to_s, (i + 1) * SAMPLE_S) - max(from_s, i * SAMPLE_S)
        samples[i] += part_s / (to_s - from_s) if to_s > from_s else 1.0


def measure(step: Callable[[], object], seconds: float) -> dict[str, object]:
    """Steps completed in a second, the longest time in milliseconds between two completions, and the series."""
    pending: deque[torch.cuda.Event] = deque()
    completed: list[float] = []
    while not completed or completed[-1] - completed[0] < seconds:
        step()
        event = torch.cuda.Event()
        event.record()
        pending.append(event)
        if len(pending) <= 8:
            continue
        pending.popleft().synchronize()
        completed.append(time.monotonic())
    began_s = completed[0]
    samples = [0.0] * (int((completed[-1] - began_s) / SAMPLE_S) + 1)
    for before, after in pairwise(completed):
        spread(samples, before - began_s, after - began_s)
    return {
        "per_second": (len(completed) - 1) / (completed[-1] - began_s),
        "longest_stall_ms": 1000 * max(after - before for before, after in pairwise(completed)),
        "began_at_s": began_s,
        "samples": samples[:-1],
        "sample_s": SAMPLE_S,
    }


STEPS: dict[str, Callable[[], Callable[[], object]]] = {
    "fp32": lambda: matmul(2048, torch.float32),  # 0.4 ms on an H200
    "bf16": lambda: matmul(4096, torch.bfloat16),  # 0.2 ms, at the card's power limit
    "graph": graph,
    "small": small_kernels,
    "train": lambda: train(32),
    "train16": lambda: train(16),  # its GPU is as fast as the host's Python, to a few percent, on some hosts slower
    "generate": lambda: infer(1, 8192, 32, torch.bfloat16),  # 52 GB of weights: its GPU waits for its memory
    "infer": lambda: infer(2048, 1024),
    "decode": lambda: infer(64, 512),  # its GPU waits for the host's Python most of the time
}

if __name__ == "__main__":
    step = STEPS[sys.argv[1]]()
    measure(step, 1.0)  # settles: clocks, learned costs, the burst
    print(json.dumps({"begins_at_s": time.monotonic()}), flush=True)
    print(json.dumps(measure(step, float(sys.argv[2]))))
