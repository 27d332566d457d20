"""A container is shown its own processes on the GPU, by its own PIDs, and nobody else's."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli

MIB = 1 << 20


def start_holding(vgpurun: Cli, image: str, name: str, size_mib: int) -> None:
    """A container that holds so much; its program is the first process there."""
    hold = (*GPU_PROGRAM, "hold", str(size_mib * MIB))
    assert vgpurun.run("-d", "-i", "--name", name, "--mem", "2g", *WITH_PROGRAMS, image, *hold).exit_code == 0
    vgpurun.wait_for_output(name, b"holding")


@pytest.fixture
def two_containers(vgpurun: Cli, debian: str) -> None:
    start_holding(vgpurun, debian, "watched", 100)
    start_holding(vgpurun, debian, "other", 300)


def test_each_container_lists_its_own_processes(vgpurun: Cli, two_containers: None) -> None:
    applications = ("--query-compute-apps=pid,used_memory", "--format=csv,noheader")
    assert vgpurun("smi", "watched", *applications).stdout.splitlines() == ["1, 618 MiB"]
    assert vgpurun("smi", "other", *applications).stdout.splitlines() == ["1, 818 MiB"]


def test_every_page_agrees(vgpurun: Cli, two_containers: None) -> None:
    query = ("--query-gpu=memory.total,memory.used,memory.free,utilization.gpu", "--format=csv,noheader,nounits")
    assert vgpurun("smi", "watched", *query).stdout.splitlines() == [f"2048, 618, {2048 - 618}, 0"]
    gpu = ElementTree.fromstring(vgpurun("smi", "watched", "-q", "-x").stdout).find("gpu")
    assert [gpu.findtext(f"fb_memory_usage/{name}") for name in ("total", "used", "free")] == [
        "2048 MiB",
        "618 MiB",
        f"{2048 - 618} MiB",
    ]
    assert [each.findtext("pid") for each in gpu.iter("process_info")] == ["1"]
