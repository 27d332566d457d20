"""A small PyTorch training run that says how much of a GPU it sees, how fast it is, and what it does when memory ends.

vgpurun --mem 2g --sm 50 -v "$PWD/examples:/examples:ro" pytorch/pytorch python /examples/train.py
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

MIB = 1 << 20


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on random data.")
    parser.add_argument("--steps", type=int, default=200, help="training steps (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=4096, help="samples per step (default: %(default)s)")
    parser.add_argument("--width", type=int, default=2048, help="neurons per layer (default: %(default)s)")
    return parser.parse_args()


def make_network(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))


def train(steps: int, batch: int, width: int) -> None:
    """Train for so many steps; prints the loss and the speed ten times.

    Raises:
        torch.OutOfMemoryError: the network or a batch does not fit.
    """
    torch.manual_seed(0)
    network = make_network(width).cuda()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    inputs = torch.randn(batch, 256, device="cuda")
    targets = inputs.square().mean(dim=1, keepdim=True)
    report_every = max(1, steps // 10)
    since = time.monotonic()
    for step in range(1, steps + 1):
        loss = nn.functional.mse_loss(network(inputs), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % report_every == 0:
            value = loss.item()
            speed = report_every * batch / (time.monotonic() - since)
            print(f"step {step:5}  loss {value:.4f}  {speed:,.0f} samples/s")
            since = time.monotonic()


def main() -> None:
    arguments = parse_arguments()
    if not torch.cuda.is_available():
        raise SystemExit("train.py: PyTorch sees no CUDA device")
    free, total = torch.cuda.mem_get_info()
    print(f"{torch.cuda.get_device_name()}: {total // MIB} MiB, {free // MIB} MiB of it free")
    batch = arguments.batch
    while True:
        try:
            train(arguments.steps, batch, arguments.width)
            break
        except torch.OutOfMemoryError:
            if batch == 1:
                raise SystemExit("train.py: not even one sample fits: the network is too wide for this GPU") from None
        # Outside of the except clause nothing keeps the failed attempt's tensors alive.
        torch.cuda.empty_cache()
        print(f"a batch of {batch} does not fit: trying {batch // 2}")
        batch //= 2
    print(f"at most {torch.cuda.max_memory_reserved() // MIB} MiB were held by PyTorch")


if __name__ == "__main__":
    main()
