"""A PyTorch program that can be followed while its limits change: a line of JSON for each piece of work, for ever.

Each piece is 20 products of about 3 ms; a line has the time at its end and the memory that PyTorch is shown. A tensor
of 1 GiB is held. At a line of input it says whether 512 MiB more are granted.
"""

import json
import select
import sys
import time

import torch

held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
left, right = (torch.randn(4096, 4096, device="cuda") for _ in range(2))
out = torch.empty_like(left)
while True:
    for _ in range(20):
        torch.mm(left, right, out=out)
    torch.cuda.synchronize()
    seen = {"at_s": time.time(), "total_mib": torch.cuda.mem_get_info()[1] >> 20}
    if select.select([sys.stdin], [], [], 0)[0] and sys.stdin.readline():
        try:
            more = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
            seen["more"] = "granted"
            del more
            torch.cuda.empty_cache()
        except torch.OutOfMemoryError:
            seen["more"] = "refused"
    print(json.dumps(seen), flush=True)
