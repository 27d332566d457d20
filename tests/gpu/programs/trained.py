"""Trains for a number of seconds, always the same: says how far it came in each half, and what its weights were.

trained.py SECONDS: prints as JSON the steps per second of each half, the longest time between two steps in each, and
the weights' checksum after each 250 steps.
"""

import hashlib
import json
import sys
import time

import torch

EACH = 250  # steps

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


def checksum() -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


seconds = float(sys.argv[1])
step()
began_s = now_s = time.monotonic()
steps, longest_s, checksums = [0, 0], [0.0, 0.0], []
while now_s < began_s + seconds:
    half, before_s = int(now_s > began_s + seconds / 2), now_s
    step()
    now_s = time.monotonic()
    steps[half] += 1
    longest_s[half] = max(longest_s[half], now_s - before_s)
    if sum(steps) % EACH == 0:
        checksums.append(checksum())
        now_s = time.monotonic()
print(
    json.dumps(
        {
            "per_second": [2 * each / seconds for each in steps],
            "longest_ms": [1000 * each_s for each_s in longest_s],
            "checksums": checksums,
        }
    )
)
