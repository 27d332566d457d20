"""vgpurun/abi.py and lib/src/abi.h say the same: every constant, every size, every offset."""

from __future__ import annotations

import c_header
import pytest

import vgpurun
from support import CHECKOUT
from vgpurun import abi

HEADER = CHECKOUT / "lib" / "src" / "abi.h"
STRUCTS = {
    "vgpu_device_limit": abi.DeviceLimit,
    "vgpu_limits": abi.Limits,
    "vgpu_device_shared": abi.DeviceShared,
    "vgpu_device_usage": abi.DeviceUsage,
    "vgpu_process_usage": abi.ProcessUsage,
    "vgpu_usage": abi.Usage,
}


@pytest.fixture(scope="module")
def seen_by_c(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return c_header.facts(HEADER, "VGPU_", STRUCTS, tmp_path_factory.mktemp("abi"))


@pytest.mark.parametrize("name", [name for name in c_header.macros(HEADER, "VGPU_") if name != "VGPU_VERSION"])
def test_constants(name: str, seen_by_c: dict[str, str]) -> None:
    assert str(getattr(abi, name.removeprefix("VGPU_"))) == seen_by_c[name]


def test_variables_of_python_alone() -> None:
    variables = {f"VGPU_{name}" for name in vars(abi) if name.startswith("ENV_")}
    assert variables <= set(c_header.macros(HEADER, "VGPU_ENV_"))


def test_version(seen_by_c: dict[str, str]) -> None:
    assert seen_by_c["VGPU_VERSION"] == vgpurun.__version__


@pytest.mark.parametrize("name", STRUCTS)
def test_layout(name: str, seen_by_c: dict[str, str]) -> None:
    c_header.compare(name, STRUCTS[name], seen_by_c)


def test_every_struct_of_the_header_is_compared() -> None:
    assert c_header.structs(HEADER) == set(STRUCTS)
