"""CuPy against a memory limit. Prints JSON."""

import json

import cupy

MIB = 1 << 20
_, total_bytes = cupy.cuda.runtime.memGetInfo()
held = []
refusal = ""
while not refusal:
    try:
        held.append(cupy.empty(64 * MIB, dtype=cupy.uint8))
    except cupy.cuda.memory.OutOfMemoryError as error:
        refusal = type(error).__name__
granted = len(held)
del held
cupy.get_default_memory_pool().free_all_blocks()
works = int(cupy.arange(1000).sum()) == 499500
print(
    json.dumps(
        {"total_mib": total_bytes / MIB, "granted_mib": granted * 64, "refusal": refusal, "works_afterwards": works}
    )
)
