"""GPUs for tests of what is planned for them."""

from __future__ import annotations

from vgpurun.host.gpus import Gpu

MIB = 1 << 20
GIB = 1 << 30


def make_gpus(count: int, first_index: int = 0, memory_bytes: int = 8 * GIB) -> list[Gpu]:
    """GPUs whose UUID begins with their index and whose minor number is not their index."""
    return [
        Gpu(
            index=index,
            uuid=f"GPU-{index:08d}-aaaa-bbbb-cccc-dddddddddddd",
            name="Test GPU",
            memory_bytes=memory_bytes,
            minor_number=index + 10,
            pci_bus_id=f"00000000:{index:02d}:00.0",
        )
        for index in range(first_index, first_index + count)
    ]
