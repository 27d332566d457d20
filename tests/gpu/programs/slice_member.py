"""Runs as one of several programs in a slice, in step with the others by files in a folder. Prints JSON.

slice_member.py FOLDER     at `fill` it takes memory until refused, at `free` it frees it, at `spin` it computes, and
                           measures from the moment on that this file has, which is the same for all
slice_member.py            computes alone
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

CHUNK_BYTES = 64 << 20
SECONDS = 5
# Products before the program waits for them.
GROUP = 16


def wait_for(step: Path) -> None:
    while not step.exists():
        time.sleep(0.01)


def filled_bytes() -> int:
    held = []
    try:
        while True:
            held.append(torch.empty(CHUNK_BYTES, dtype=torch.uint8, device="cuda"))
            time.sleep(0.02)  # the others take some, too
    except torch.OutOfMemoryError:
        (folder / f"filled.{name}").touch()
        wait_for(folder / "free")
    granted = len(held) * CHUNK_BYTES
    del held
    torch.cuda.empty_cache()
    return granted


def compute(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    for _ in range(GROUP):
        torch.mm(left, right, out=out)
    torch.cuda.synchronize()


def products_per_second(begins_s: float | None) -> float:
    """Return two float32 matrices whose product takes a card of today 0.4 ms.

    Less precise products would take the card to the limit of its power: there each takes less time if there are rests
    in between. A member that measures has company in the whole of that time, since all begin earlier and end later.
    """
    torch.set_float32_matmul_precision("highest")
    left, right = (torch.randn(2048, 2048, device="cuda") for _ in range(2))
    out = torch.empty_like(left)
    compute(left, right, out)  # loads what it needs
    if begins_s is None:
        begins_s = time.monotonic() + 0.5
    ends_s = begins_s + SECONDS
    count = 0
    while time.monotonic() < ends_s + 0.5:
        compute(left, right, out)
        if begins_s <= time.monotonic() <= ends_s:
            count += GROUP
    return count / SECONDS


torch.ones(1, device="cuda")
granted_bytes, begins_s = 0, None
if len(sys.argv) > 1:
    folder, name = Path(sys.argv[1]), f"{os.uname().nodename}-{os.getpid()}"
    (folder / f"ready.{name}").touch()
    wait_for(folder / "fill")
    granted_bytes = filled_bytes()
    (folder / f"freed.{name}").touch()
    wait_for(folder / "spin")
    begins_s = float((folder / "spin").read_text())
print(json.dumps({"granted_bytes": granted_bytes, "rate": products_per_second(begins_s)}))
