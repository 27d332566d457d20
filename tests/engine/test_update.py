"""`vgpurun update`: other limits for a container that runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli

MIB = 1 << 20
GIB = 1 << 30


def seen_bytes(vgpurun: Cli) -> int:
    """The size of the GPU as a program in the container sees it."""
    output = vgpurun.engine.containers.get("updated").exec_run([*GPU_PROGRAM, "info"]).output
    size: int = json.loads(output.decode().splitlines()[-1])["devices"][0]["total"]
    return size


@pytest.fixture
def container(vgpurun: Cli, debian: str) -> str:
    """A container with limits of 1 GiB and 50 %, which waits."""
    options = ["-d", "--name", "updated", "--mem", "1g", "--sm", "50", *WITH_PROGRAMS]
    result = vgpurun.run(*options, debian, "sleep", "600")
    assert result.exit_code == 0, result
    return result.stdout.strip()


def update(vgpurun: Cli, *arguments: str) -> list[str]:
    """The lines that an update prints, without colour or name."""
    result = vgpurun("update", "--driver", "sim", *arguments)
    assert result.exit_code == 0, result
    return result.stdout.splitlines()


def test_new_limits_are_seen_inside_and_shown(vgpurun: Cli, container: str) -> None:
    assert seen_bytes(vgpurun) == GIB
    assert update(vgpurun, "--mem", "3g", "updated") == ["updated, GPU 0: 1 GiB, 50 % -> 3 GiB, 50 %"]
    assert seen_bytes(vgpurun) == 3 * GIB
    assert update(vgpurun, "--sm", "70", container[:12]) == ["updated, GPU 0: 3 GiB, 50 % -> 3 GiB, 70 %"]
    assert update(vgpurun, "--mem", "0=2g", "--sm", "100", "updated") == ["updated, GPU 0: 3 GiB, 70 % -> 2 GiB, 100 %"]
    device = json.loads(vgpurun("smi", "--driver", "sim", "--format", "json").stdout)["containers"][0]["devices"][0]
    assert (device["memory_limit_bytes"], device["sm_limit_percent"]) == (2 * GIB, None)


def test_what_it_holds_takes_no_room_from_it_and_is_not_taken_away(vgpurun: Cli, debian: str) -> None:
    hold = ("-d", "-i", "--name", "updated", "--mem", "2g", *WITH_PROGRAMS, debian, *GPU_PROGRAM, "hold", str(GIB))
    assert vgpurun.run(*hold).exit_code == 0
    vgpurun.wait_for_output("updated", b"holding")
    assert update(vgpurun, "--mem", "7g", "updated") == ["updated, GPU 0: 2 GiB, 100 % -> 7 GiB, 100 %"], (
        "1 GiB is its own"
    )
    result = vgpurun("update", "--driver", "sim", "--mem", "512m", "updated")
    assert result.exit_code == 0
    assert "updated holds 1.51 GiB of GPU 0, more than its new limit: it gets no more" in " ".join(
        result.stderr.split()
    )
    holding = vgpurun.engine.containers.get("updated")
    assert holding.status == "running"
    device = json.loads(vgpurun("smi", "--driver", "sim", "--format", "json").stdout)["containers"][0]["devices"][0]
    assert device["memory_limit_bytes"] == GIB // 2
    assert (device["memory_allocated_bytes"], device["memory_context_bytes"]) == (GIB, 518 * MIB)
    assert device["not_enforced"] == []
    refused = holding.exec_run([*GPU_PROGRAM, "fill", str(MIB)])
    assert refused.exit_code != 0 and b"cuDevicePrimaryCtxRetain" in refused.output, "no room for a context"


def test_what_is_held_above_a_lowered_limit_is_its_own_too(vgpurun: Cli, debian: str) -> None:
    """An update is undone by another, beside a neighbour that leaves just the room there was."""
    beside = ("-d", "--name", "beside", "--mem", "5g", debian, "sleep", "600")
    assert vgpurun.run(*beside).exit_code == 0
    hold = ("-d", "-i", "--name", "updated", "--mem", "3g", *WITH_PROGRAMS, debian, *GPU_PROGRAM, "hold", str(2 * GIB))
    assert vgpurun.run(*hold).exit_code == 0
    vgpurun.wait_for_output("updated", b"holding")
    assert update(vgpurun, "--mem", "1g", "updated") == ["updated, GPU 0: 3 GiB, 100 % -> 1 GiB, 100 %"]
    assert update(vgpurun, "--mem", "3g", "updated") == ["updated, GPU 0: 1 GiB, 100 % -> 3 GiB, 100 %"]
    refused = vgpurun("update", "--driver", "sim", "--mem", "4g", "updated")
    assert refused.exit_code == 125 and "no room for --mem 4g" in refused.stderr


def test_an_overcommitted_container_keeps_its_memory(vgpurun: Cli, debian: str, container: str) -> None:
    beside = ("-d", "--name", "beside", "--mem", "8g", "--sm", "20", "--overcommit", debian, "sleep", "600")
    assert vgpurun.run(*beside).exit_code == 0
    assert update(vgpurun, "--sm", "80", "updated") == ["updated, GPU 0: 1 GiB, 50 % -> 1 GiB, 80 %"]
    for more, reason in [(("--mem", "2g"), "0 bytes is free"), (("--sm", "90"), "80 % of its time is free")]:
        refused = vgpurun("update", "--driver", "sim", *more, "updated")
        assert refused.exit_code == 125 and reason in refused.stderr, refused


def test_more_than_the_gpu_has_changes_nothing(vgpurun: Cli, container: str) -> None:
    vgpurun("update", "--driver", "sim", "--mem", "9999g", "updated").assert_refused("9999g")
    assert seen_bytes(vgpurun) == GIB


def test_a_limit_that_nobody_could_keep_is_refused_late(vgpurun: Cli, musl: str) -> None:
    """Without a limit nobody looks at the image."""
    started = vgpurun.run("-d", musl, "sleep", "300")
    assert (started.exit_code, started.stderr) == (0, "")
    vgpurun("update", "--driver", "sim", "--mem", "1g", started.stdout.strip()).assert_refused("musl")
    assert vgpurun("ps", "--driver", "sim", "--format", "{{.MemoryLimit}}").stdout == "no limit\n"


def test_what_may_not_keep_a_limit_is_said_late(vgpurun: Cli, busybox: str, debian: str, tmp_path: Path) -> None:
    for name in ("hosts", "hostname", "resolv.conf", "mtab"):
        (tmp_path / name).touch()  # the engine's own
    for image, options, words in (
        (busybox, (), "statically linked"),
        (debian, ("-v", f"{tmp_path}:/etc:ro"), "/etc/ld.so.preload has no place"),
    ):
        started = vgpurun.run("-d", "--overcommit", *options, image, "sleep", "300")
        assert (started.exit_code, started.stderr) == (0, "")
        given = ("--mem", "1g", "--overcommit", started.stdout.strip())
        changed = vgpurun("update", "--driver", "sim", *given)
        assert changed.exit_code == 0 and words in changed.stderr
