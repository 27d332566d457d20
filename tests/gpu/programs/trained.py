"""Trains for a number of seconds, always the same: says how far it came in each second, and what its weights were.

trained.py SECONDS: prints as JSON the steps that ended in each second of the clock, the longest of these, and the
weights' checksum after each 100 steps.
"""

import itertools
import json
import os
import sys
import time

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # with which cuBLAS always computes the same

import torch

EACH = 100  # steps

torch.manual_seed(1)
torch.use_deterministic_algorithms(True)
with torch.device("cuda"):
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(4096, 4096), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers)
    batch = torch.randn(4096, 4096)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def step() -> None:
    optimizer.zero_grad(set_to_none=True)
    (model(batch) - batch).square().mean().backward()
    optimizer.step()
    torch.cuda.synchronize()


def checksum() -> list[int]:
    """Sums over the bits of all weights."""
    words = [parameter.detach().view(torch.int32).to(torch.int64) for parameter in model.parameters()]
    return [sum(int(each.sum()) for each in words), sum(int((each * each).sum()) for each in words)]


step()
began_s = now_s = time.time()
steps: dict[int, int] = {}
longest_ms: dict[int, float] = {}
checksums = []
for count in itertools.count(1):
    before_s = now_s
    step()
    now_s = time.time()
    steps[int(now_s)] = steps.get(int(now_s), 0) + 1
    longest_ms[int(now_s)] = max(longest_ms.get(int(now_s), 0), 1000 * (now_s - before_s))
    if count % EACH == 0:
        checksums.append(checksum())
        now_s = time.time()
    if now_s > began_s + float(sys.argv[1]):
        break
print(json.dumps({"steps": steps, "longest_ms": longest_ms, "checksums": checksums}))
