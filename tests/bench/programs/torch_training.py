"""Trains: holds GIB of memory, and for STEPS steps computes and looks that no byte of a part is wrong. Prints "right".

torch_training.py GIB STEPS
"""

import sys

import torch


def main() -> None:
    gib, steps = map(int, sys.argv[1:3])
    held = [torch.full((1 << 30,), index % 251, dtype=torch.uint8, device="cuda") for index in range(gib - 2)]
    left = torch.randn(8192, 8192, device="cuda")
    for step in range(steps):
        left = torch.nn.functional.normalize(left @ left)
        torch.cuda.synchronize()
        index = step % len(held)
        assert bool((held[index] == index % 251).all()), "wrong"
    print("right", flush=True)


main()
