"""Trains or infers in fixed steps, and prints a checksum of all weights after each: the same in each run.

torch_suspended.py train|infer STEPS: a line `step N CHECKSUM` each.
"""

import hashlib
import sys

import torch

torch.manual_seed(1)
torch.use_deterministic_algorithms(True)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
generator = torch.Generator(device="cuda").manual_seed(2)


def checksum() -> str:
    digest = hashlib.sha256()
    for each in model.parameters():
        digest.update(each.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


for step in range(int(sys.argv[2])):
    batch = torch.randn(256, 1024, device="cuda", generator=generator)
    if sys.argv[1] == "train":
        optimizer.zero_grad()
        (model(batch) ** 2).mean().backward()
        optimizer.step()
        shown = checksum()
    else:
        with torch.no_grad():
            shown = hashlib.sha256(model(batch).cpu().numpy().tobytes()).hexdigest()
    print("step", step, shown, flush=True)
