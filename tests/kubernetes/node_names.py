"""Names on the node of the tests: its GPUs, and the resources as Alnair's plugin has them."""

import os

MEMORY = "alnair/vgpu-memory"
COMPUTE = "alnair/vgpu-compute"
# GPUs of this run of the tests alone: programs on GPUs of one UUID meet in abi.LOCK_DIR.
UUIDS = tuple(f"GPU-{os.getpid():08x}-{part * 4}-0000-0000-000000000000" for part in "ab")
