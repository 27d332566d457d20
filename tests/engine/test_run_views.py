"""A container is shown its own processes on the GPU, by its own PIDs, and nobody else's."""

from __future__ import annotations

from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli

MIB = 1 << 20


def start_holding(vgpurun: Cli, image: str, name: str, size_mib: int) -> None:
    """A container that holds so much; its program is the first process there."""
    hold = (*GPU_PROGRAM, "hold", str(size_mib * MIB))
    assert vgpurun.run("-d", "-i", "--name", name, "--mem", "2g", *WITH_PROGRAMS, image, *hold).exit_code == 0
    vgpurun.wait_for_output(name, b"holding")


def test_each_container_lists_its_own_processes(vgpurun: Cli, debian: str) -> None:
    """tests/preload/test_preload_views.py has what every page shows."""
    start_holding(vgpurun, debian, "watched", 100)
    start_holding(vgpurun, debian, "other", 300)
    applications = ("--query-compute-apps=pid,used_memory", "--format=csv,noheader")
    assert vgpurun("smi", "watched", *applications).stdout.splitlines() == ["1, 618 MiB"]
    assert vgpurun("smi", "other", *applications).stdout.splitlines() == ["1, 818 MiB"]
