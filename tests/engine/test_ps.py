"""`vgpurun ps` and `inspect`: what runs, and what it uses, as a person and as a script see it."""

from __future__ import annotations

import csv
import io
import json

import pytest

from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli

MIB = 1 << 20
CONTEXT = 518 * MIB


@pytest.fixture
def holder(vgpurun: Cli, debian: str) -> str:
    """A container that holds 256 MiB of its 2 GiB."""
    options = ("-d", "-i", "--name", "holder", "--mem", "2g", "--sm", "50", "--label", "team=vision", *WITH_PROGRAMS)
    result = vgpurun.run(*options, debian, *GPU_PROGRAM, "hold", str(256 * MIB))
    assert result.exit_code == 0, result
    vgpurun.wait_for_output("holder", b"holding")
    return result.stdout.strip()


def ps(vgpurun: Cli, *arguments: str) -> str:
    result = vgpurun("ps", "--driver", "sim", *arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result
    return result.stdout


def test_what_a_container_holds_is_shown(vgpurun: Cli, holder: str) -> None:
    row = ps(vgpurun).splitlines()[1].split()
    assert row[:2] == [holder[:12], "holder"]
    assert row[3:9] == ["0", "774", "MiB", "/", "2", "GiB"]
    (described,) = map(json.loads, ps(vgpurun, "--format", "json").splitlines())
    device = described["Devices"][0]
    assert device["memory_used_bytes"] == 256 * MIB + CONTEXT and device["sm_limit_percent"] == 50
    assert described["User"] and described["Labels"]["team"] == "vision"
    (line,) = csv.DictReader(io.StringIO(ps(vgpurun, "--format", "csv")))
    assert int(line["memory_used_bytes"]) == 256 * MIB + CONTEXT
    assert ps(vgpurun, "--format", "{{.Names}} {{.MemoryLimit}}") == "holder 2 GiB\n"


def test_which_containers_are_listed(vgpurun: Cli, holder: str, debian: str) -> None:
    assert vgpurun("run", *vgpurun.driver, "--mem", "1g", "--name", "done", debian, "true").exit_code == 0
    assert ps(vgpurun, "-q") == f"{holder[:12]}\n"
    assert ps(vgpurun, "-q", "--no-trunc") == f"{holder}\n"
    assert ps(vgpurun, "-a", "--format", "{{.Names}}").splitlines() == ["done", "holder"]
    assert "Exited (0)" in ps(vgpurun, "-a", "--filter", "name=done")
    for filter_ in ("gpu=0", "label=team=vision", "name=hold", "status=running"):
        assert ps(vgpurun, "--filter", filter_, "-q") == f"{holder[:12]}\n"
    assert ps(vgpurun, "--filter", "status=exited", "--format", "{{.Names}}") == "done\n"
    assert ps(vgpurun, "--filter", "gpu=1", "-q") == ""


def test_an_update_is_shown(vgpurun: Cli, holder: str) -> None:
    vgpurun("update", "--driver", "sim", "--mem", "3g", "holder")
    assert ps(vgpurun, "--format", "{{.MemoryLimit}}") == "3 GiB\n"


def test_without_gpus_the_limits_are_shown(vgpurun: Cli, holder: str) -> None:
    result = vgpurun("ps", "--driver", "host")
    if result.stderr:
        assert "warning" in result.stderr
    assert "? / 2 GiB" in result.stdout and "? / 50 %" in result.stdout


def test_inspect(vgpurun: Cli, holder: str) -> None:
    result = vgpurun("inspect", "--driver", "sim", "holder", "nobody")
    assert (result.exit_code, result.stderr) == (1, "vgpurun: No such container: nobody\n")
    (found,) = json.loads(result.stdout)
    assert (found["id"], found["name"], found["status"]) == (holder, "holder", "running")
    assert found["devices"][0]["memory_used_bytes"] == 256 * MIB + CONTEXT
    assert found["state_folder"].startswith(str(vgpurun.state_dir)) and found["version"]
    assert found["docker"]["Config"]["Labels"] == found["labels"]
