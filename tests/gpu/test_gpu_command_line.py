"""Looking after a running PyTorch: `ps` and `top` beside the host's NVML, `update`, `pause --gpu`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from runners import Container, vgpurun

from vgpurun.host import gpus

MIB = 1 << 20
NAME = f"followed-{os.getpid()}"
SOON_S = 0.1


class Followed:
    """A container with tests/gpu/programs/followed.py in it."""

    def lines(self) -> list[dict[str, Any]]:
        done = vgpurun(["logs", NAME])
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def wait(self, holds: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 60
        while not holds(found := self.lines()):
            assert time.monotonic() < deadline, (found[-1:], vgpurun(["logs", NAME]).stderr)
            time.sleep(0.1)
        return found

    def rate(self, seconds: float) -> float:
        """Pieces completed per second, from now on."""
        began_s = time.time()
        time.sleep(seconds)
        ended_s = time.time()
        done = [each["at_s"] for each in self.lines() if began_s <= each["at_s"] <= ended_s]
        return (len(done) - 1) / (done[-1] - done[0]) if len(done) > 1 else 0.0

    def update(self, *limits: str) -> str:
        """Change its limits. Returns what was said on stderr."""
        done = vgpurun(["update", *limits, NAME])
        assert done.returncode == 0, done.stderr
        print(done.stdout.strip(), done.stderr.strip())
        return done.stderr

    def host_pids(self) -> set[int]:
        import docker

        found = docker.from_env().containers.get(NAME).top()
        column = found["Titles"].index("PID")
        return {int(row[column]) for row in found["Processes"]}


@pytest.fixture
def followed(python: str, host_image: Path) -> Iterator[Followed]:
    container = Container(python, host_image)
    limits = ["--mem", "4g", "--sm", "50", "--gpus", "device=0"]
    assert container.run(["-d", "-i", "--name", NAME, *limits], container.program("followed.py")).returncode == 0
    try:
        running = Followed()
        running.wait(lambda lines: len(lines) > 50)
        yield running
    finally:
        vgpurun(["kill", NAME])


def test_ps_and_top_show_what_nvml_shows(followed: Followed) -> None:
    time.sleep(2)
    (listed,) = [json.loads(line) for line in vgpurun(["ps", "--format", "json"]).stdout.splitlines()]
    (device,) = listed["Devices"]
    (gpu,) = (each for each in gpus.list_gpus() if each.uuid == device["uuid"])
    held = gpus.read_processes(gpu)
    pids = followed.host_pids()
    on_host_bytes = sum(held.get(pid, 0) for pid in pids)
    print(f"ps {device['memory_used_bytes'] / MIB:.0f} MiB, NVML {on_host_bytes / MIB:.0f} MiB")
    assert on_host_bytes > 1024 * MIB
    assert device["memory_used_bytes"] == pytest.approx(on_host_bytes, abs=2 * MIB)
    assert device["sm_used_percent"] == pytest.approx(50, abs=3)
    (use,) = gpus.read_use([gpu])
    assert (use.utilization_percent or 0) > 20  # the GPU's own, of the time in which any kernel ran
    page = vgpurun(["top", "--once"]).stdout
    print(page)
    assert NAME in page and "/ 50%" in page


def test_update_reaches_a_running_pytorch(followed: Followed) -> None:
    before = followed.rate(3)
    followed.update("--mem", "3g", "--sm", "20")
    updated_s = time.time()
    lines = followed.wait(lambda lines: lines[-1]["total_mib"] == 3072)
    first_s = next(each["at_s"] for each in lines if each["total_mib"] == 3072)
    # A line is printed when its piece of work is done, which takes this long at 20 %.
    time.sleep(1)
    after = followed.rate(3)
    print(f"{first_s - updated_s:+.3f} s, {before:.2f} -> {after:.2f} pieces a second")
    assert first_s - updated_s < SOON_S + 1 / after
    assert after / before == pytest.approx(20 / 50, abs=0.02)
    followed.update("--sm", "70")
    time.sleep(1)
    assert followed.rate(3) / before == pytest.approx(70 / 50, abs=0.04)


def test_lowered_below_its_use_it_keeps_what_it_has_and_gets_no_more(followed: Followed) -> None:
    assert "gets no more" in " ".join(followed.update("--mem", "1g").split())
    ask(followed)
    assert "granted" not in answers(followed) and answers(followed) == ["refused"]
    followed.update("--mem", "4g")
    ask(followed)
    assert answers(followed) == ["refused", "granted"]


def ask(followed: Followed) -> None:
    """Whether more memory is granted now."""
    import docker

    count = len(answers(followed))
    stream = docker.from_env().api.attach_socket(NAME, params={"stdin": 1, "stream": 1})
    stream._sock.sendall(b"\n")
    stream.close()
    followed.wait(lambda lines: len([each for each in lines if "more" in each]) > count)


def answers(followed: Followed) -> list[str]:
    return [each["more"] for each in followed.lines() if "more" in each]


def test_paused_work_waits_and_goes_on(followed: Followed) -> None:
    assert vgpurun(["pause", "--gpu", NAME]).returncode == 0
    time.sleep(0.5)
    assert followed.rate(1.5) == 0.0
    assert vgpurun(["unpause", "--gpu", NAME]).returncode == 0
    time.sleep(0.5)
    assert followed.rate(1.5) > 2
