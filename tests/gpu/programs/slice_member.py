"""One of several programs in a slice, in step with the others by files in a folder. Prints JSON.

slice_member.py FOLDER     at `fill` it takes memory until refused, at `free` it frees it, at `spin` it computes
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


def wait_for(step: Path) -> None:
    while not step.exists():
        time.sleep(0.01)


def filled_bytes() -> int:
    held = []
    try:
        while True:
            held.append(torch.empty(CHUNK_BYTES, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        (folder / f"filled.{name}").touch()
        wait_for(folder / "free")
    granted = len(held) * CHUNK_BYTES
    del held
    torch.cuda.empty_cache()
    return granted


def products_per_second() -> float:
    """Of matrices whose product takes a card of today some 2 ms."""
    left = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    right = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    out = torch.empty_like(left)
    count, began = 0, time.monotonic()
    while (lasted := time.monotonic() - began) < SECONDS:
        for _ in range(16):
            torch.mm(left, right, out=out)
        torch.cuda.synchronize()
        count += 16
    return count / lasted


torch.ones(1, device="cuda")
granted_bytes = 0
if len(sys.argv) > 1:
    folder, name = Path(sys.argv[1]), f"{os.uname().nodename}-{os.getpid()}"
    (folder / f"ready.{name}").touch()
    wait_for(folder / "fill")
    granted_bytes = filled_bytes()
    (folder / f"freed.{name}").touch()
    wait_for(folder / "spin")
print(json.dumps({"granted_bytes": granted_bytes, "rate": products_per_second()}))
