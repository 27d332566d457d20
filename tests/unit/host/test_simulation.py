"""The simulated GPUs of a container: the chosen ones, with the settings that they have on the host."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from fakes import make_gpus

from vgpurun.errors import DriverError
from vgpurun.host.simulation import container_config

GPUS = make_gpus(3)
CONFIG = """
driver_version: 580.10   # a text, though it looks like a number
state_file: /tmp/other.state
devices:
  - name: "A: one"
  - name: B
    memory_mib: 4096
    uuid: GPU-0000000B-aaaa-bbbb-cccc-dddddddddddd
  - name: C
kernels:
  - name: matmul
    duration_us: 4.50
"""


def read(path: str | None, *numbers: int) -> dict[str, object]:
    text = container_config(path, [GPUS[number] for number in numbers])
    content = yaml.load(text, yaml.BaseLoader)
    assert isinstance(content, dict)
    return content


def test_only_the_chosen_gpus_with_their_settings(tmp_path: Path) -> None:
    (tmp_path / "sim.yaml").write_text(CONFIG)
    assert read(str(tmp_path / "sim.yaml"), 1, 2) == {
        "driver_version": "580.10",
        "state_file": "/.vgpurun/sim.state",
        "devices": [
            {"name": "B", "memory_mib": "4096", "uuid": GPUS[1].uuid},
            {"name": "C", "uuid": GPUS[2].uuid},
        ],
        "kernels": [{"name": "matmul", "duration_us": "4.50"}],
    }


@pytest.mark.parametrize("text", [None, "", "# nothing\n"])
def test_without_a_configuration_it_is_the_default_gpu(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "sim.yaml"
    path.write_text(text or "")
    assert read(None if text is None else str(path), 0)["devices"] == [{"uuid": GPUS[0].uuid}]


@pytest.mark.parametrize("text", ["{[", "- a\n", "devices: x\n", "devices:\n  - name: only\n", "\x00"])
def test_what_cannot_be_read_is_one_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "sim.yaml").write_text(text)
    with pytest.raises(DriverError, match=r"VGPUSIM_CONFIG=.*sim\.yaml cannot be read") as raised:
        read(str(tmp_path / "sim.yaml"), 1)
    assert "\n" not in str(raised.value)
