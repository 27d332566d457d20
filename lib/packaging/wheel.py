"""Puts what `make dist` has built for one machine into the wheel, and says in its name for which one.

Any other wheel carries the library's sources alone, from which vgpurun builds it when it is first used.
"""

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The glibc that lib/Makefile's targets are linked for.
TAG = "py3-none-manylinux_2_17_{machine}.manylinux2014_{machine}"


class CustomBuildHook(BuildHookInterface):
    """Hatchling finds it by this name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files. VGPURUN_WHEEL_FOR is the machine, such as x86_64."""
        del version
        if machine := os.environ.get("VGPURUN_WHEEL_FOR"):
            build_data["tag"] = TAG.format(machine=machine)
            built = Path(self.root, "lib", "build-dist", machine)
            parts = ("libvgpu.so", "vgpurun-verify", "sim/libcuda.so.1", "sim/libnvidia-ml.so.1", "sim/nvidia-smi")
            build_data["force_include"].update({str(built / part): f"vgpurun/_built/{part}" for part in parts})
