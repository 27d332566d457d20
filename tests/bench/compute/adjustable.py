"""A program whose limit changes while it runs, as `vgpurun update` changes it."""

from __future__ import annotations

import sys
from pathlib import Path

from runs import ROOT, Bench, Launch

sys.path.insert(0, str(ROOT))
from vgpurun.limits import limits_file
from vgpurun.limits.quota import Quota


class Adjustable:
    """How to start it, and its limit, in a folder of its own."""

    def __init__(self, bench: Bench, library: str, folder: Path, percent: int | None) -> None:
        self._path, self._uuid = folder / "limits", bench.gpus[0].uuid
        self._path.write_bytes(limits_file.limits_bytes(self._limits(percent)))
        variables = {
            "VGPURUN_LIMITS_FILE": self._path,
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": folder / "usage",
            "LD_PRELOAD": bench.libraries[library],
        }
        environment = {name: str(path) for name, path in variables.items()}
        self.launch = Launch((), {**bench.native().environment, **environment})

    def _limits(self, percent: int | None) -> list[tuple[str, Quota]]:
        return [(self._uuid, Quota(sm_percent=percent))]

    def set(self, percent: int | None) -> None:
        """Another limit, or none."""
        limits_file.write_limits(self._path, self._limits(percent))
