"""A GPU as plain data, for code that does not ask the driver."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """A whole GPU, or a MIG instance, which is a device like another.

    `index` is NVML's, as nvidia-smi shows it on this host, and `minor_number` is N of /dev/nvidiaN: of an instance,
    those of the GPU that it is on. `mig_index` is the instance's own number there, `mig_ids` are those of its GPU
    instance and compute instance. `mig_enabled`: a GPU in MIG mode without an instance, where nothing can run.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int
    minor_number: int
    pci_bus_id: str
    mig_enabled: bool = False
    mig_index: int | None = None
    mig_ids: tuple[int, int] = (0, 0)

    @property
    def number(self) -> str:
        """How people name it: `0`, or `0:1` for the second instance on GPU 0, as nvidia-smi and CDI have it."""
        return str(self.index) if self.mig_index is None else f"{self.index}:{self.mig_index}"

    @property
    def place(self) -> tuple[int, int]:
        """Its place among others, in NVML's order."""
        return self.index, self.mig_index or 0
