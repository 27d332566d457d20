"""`vgpurun ps` and `inspect`: what runs, and what it uses, as a person and as a script see it."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from pathlib import Path

import pytest

from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli
from docker_command import docker_command

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


def test_dockers_options_of_ps(vgpurun: Cli, holder: str, debian: str) -> None:
    for name, code in (("three", 3), ("zero", 0)):
        done = vgpurun("run", *vgpurun.driver, "--mem", "1g", "--name", name, debian, "sh", "-c", f"exit {code}")
        assert done.exit_code == code
    names = ("--format", "{{.Names}}")
    assert ps(vgpurun, "-l", *names) == "zero\n"
    assert ps(vgpurun, "-n", "2", *names).split() == ["zero", "three"]
    assert ps(vgpurun, "-n", "-1", *names) == "holder\n"
    assert ps(vgpurun, "-a", "--filter", "exited=3", *names) == "three\n"
    assert ps(vgpurun, "--filter", "exited=3", *names) == "", "as docker: what has ended is shown with -a"
    table = ps(vgpurun, "-s").splitlines()
    assert table[0].split()[-1] == "SIZE" and re.search(r"\S+B \(virtual \S+B\)$", table[1])
    assert ps(vgpurun, "--format", "{{.Size}}").startswith(("0B (virtual", "1"))
    assert "SIZE" not in ps(vgpurun).splitlines()[0]


def test_without_gpus_the_limits_are_shown(vgpurun: Cli, holder: str) -> None:
    result = vgpurun("ps", "--driver", "host")
    if result.stderr:
        assert "warning" in result.stderr
    assert "? / 2 GiB" in result.stdout and "? / 50 %" in result.stdout


def test_dockers_options_of_inspect_and_top(vgpurun: Cli, holder: str) -> None:
    vgpurun.environment["PATH"] = f"{Path(docker_command()).parent}:{os.environ['PATH']}"
    assert vgpurun("inspect", "-f", "{{.State.Status}} {{.Name}}", "holder").stdout == "running /holder\n"
    assert json.loads(vgpurun("inspect", "--size", "holder").stdout)[0]["SizeRootFs"] > 0
    assert vgpurun("inspect", "--type", "image", "holder").exit_code == 1
    assert vgpurun("inspect", "-f", "{{.Id}}", "nobody").exit_code == 1
    assert "gpu.py hold" in vgpurun("top", "holder").stdout
    assert vgpurun("top", "holder", "-o", "pid,comm").stdout.split()[:3] == ["PID", "COMMAND", *vgpurun(
        "top", "holder", "-o", "pid").stdout.split()[1:2]]  # fmt: skip
    assert vgpurun("top", "nobody").exit_code == 1


def test_inspect(vgpurun: Cli, holder: str) -> None:
    result = vgpurun("inspect", "--driver", "sim", "holder", "nobody")
    assert (result.exit_code, result.stderr) == (1, "vgpurun: No such container: nobody\n")
    (found,) = json.loads(result.stdout)
    assert (found["id"], found["name"], found["status"]) == (holder, "holder", "running")
    assert found["devices"][0]["memory_used_bytes"] == 256 * MIB + CONTEXT
    assert found["state_folder"].startswith(str(vgpurun.state_dir)) and found["version"]
    assert found["docker"]["Config"]["Labels"] == found["labels"]
