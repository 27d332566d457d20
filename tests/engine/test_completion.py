"""Shells' completions, asked for as click's scripts ask, and as bash itself does."""

from __future__ import annotations

import subprocess

import pytest

from cli import Cli
from support.debian_packages import tool


def complete(vgpurun: Cli, *words: str) -> list[str]:
    """The answers for the last one of the words."""
    question = {"_VGPURUN_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("vgpurun", *words))}
    asking = Cli(vgpurun.engine, vgpurun.environment | question | {"COMP_CWORD": str(len(words))}, vgpurun.state_dir)
    result = asking()
    assert (result.exit_code, result.stderr) == (0, ""), result
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line]


def test_verbs_options_and_values(vgpurun: Cli) -> None:
    assert {"ps", "prune", "pause"} <= set(complete(vgpurun, "p"))
    assert {"--mem", "--memory-swap"} <= set(complete(vgpurun, "--mem"))
    assert complete(vgpurun, "--driver", "s") == ["sim"]
    assert complete(vgpurun, "top", "--sort", "m") == ["memory"]


def test_containers(vgpurun: Cli, debian: str) -> None:
    assert vgpurun.run("-d", "--name", "runs", debian, "sleep", "600").exit_code == 0
    assert vgpurun("run", *vgpurun.driver, "--name", "ended", debian, "true").exit_code == 0
    assert complete(vgpurun, "rm", "e") == ["ended"]
    assert complete(vgpurun, "rm", "ended", "e") == []
    assert complete(vgpurun, "exec", "r") == ["runs"]
    assert complete(vgpurun, "exec", "e") == []


def test_images_gpus_and_slices(vgpurun: Cli, debian: str) -> None:
    assert debian.rpartition(":")[0] in {name.rpartition(":")[0] for name in complete(vgpurun, "run", debian[:12])}
    assert complete(vgpurun, "run", "--driver", "sim", "--gpus", "a") == ["all"]
    assert complete(vgpurun, "smi", "--driver", "sim", "--gpus", "device")[0] == "device=0"
    assert vgpurun("slice", "create", "--driver", "sim", "--mem", "1g", "course").exit_code == 0
    assert complete(vgpurun, "run", "--slice", "c") == ["course"]
    vgpurun("slice", "rm", "--driver", "sim", "course")


def test_without_an_engine_nothing_is_completed_and_nothing_said(vgpurun: Cli) -> None:
    vgpurun.environment["DOCKER_HOST"] = "unix:///none.sock"
    assert complete(vgpurun, "rm", "x") == []


@pytest.mark.parametrize(
    "shell", ["bash", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("zsh", "fish"))]
)
def test_scripts(vgpurun: Cli, shell: str) -> None:
    script = vgpurun("completion", shell).stdout
    assert "_VGPURUN_COMPLETE" in script
    assert subprocess.run([tool(shell, shell), "-n"], input=script, text=True, capture_output=True).returncode == 0
