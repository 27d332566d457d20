"""PyTorch against a memory limit: what it is shown, where it is refused, and that it works again. Prints JSON."""

import json
import os

import driver_nvml
import torch

MIB = 1 << 20


def allocate_until_refused(chunk_bytes: int) -> tuple[list[torch.Tensor], str]:
    """Chunks held when the next was refused, and the exception's name."""
    held: list[torch.Tensor] = []
    while True:
        try:
            held.append(torch.empty(chunk_bytes, dtype=torch.uint8, device="cuda"))
        except Exception as error:
            return held, type(error).__name__


free_bytes, total_bytes = torch.cuda.mem_get_info()
held, refusal = allocate_until_refused(32 * MIB)
free_at_refusal_bytes, _ = torch.cuda.mem_get_info()
driver_mib = driver_nvml.process_bytes()[os.getpid()] / MIB
granted = len(held)
del held
torch.cuda.synchronize()
torch.cuda.empty_cache()
held, _ = allocate_until_refused(32 * MIB)
again = len(held)
del held
torch.cuda.synchronize()
torch.cuda.empty_cache()
square = torch.randn(1024, 1024, device="cuda")
works = bool(torch.allclose((square @ torch.eye(1024, device="cuda")), square, atol=1e-2))

print(
    json.dumps(
        {
            "total_mib": total_bytes / MIB,
            "free_at_first_mib": free_bytes / MIB,
            "properties_total_mib": torch.cuda.get_device_properties(0).total_memory / MIB,
            "granted_mib": granted * 32,
            "free_at_refusal_mib": free_at_refusal_bytes / MIB,
            "granted_again_mib": again * 32,
            "driver_holds_mib": driver_mib,
            "refusal": refusal,
            "works_afterwards": works,
            "backend": torch.cuda.get_allocator_backend(),
        }
    )
)
