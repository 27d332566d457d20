"""Holds MIB of the GPU's memory: says `ready`, and ends after a line of input.

torch_held.py MIB
"""

import sys

import torch

held = torch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("ready", flush=True)
input()
