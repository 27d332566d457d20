"""`vgpurun pause|unpause`: the GPU work of a container by its limits file, or the whole container by docker."""

from __future__ import annotations

import json

import pytest

from cli import WITH_PROGRAMS, Cli
from support import wait_until

SPIN = ("python3", "-u", "/programs/gpu.py", "spin", "spin_1ms")


def device(vgpurun: Cli) -> dict:
    shown = json.loads(vgpurun("smi", *vgpurun.driver, "--format", "json").stdout)
    return shown["containers"][0]["devices"][0]


def status(vgpurun: Cli) -> str:
    container = vgpurun.engine.containers.get("paused")
    return str(container.status)


@pytest.mark.parametrize("limit", [("--sm", "60"), ("--mem", "1g")], ids=["limited", "unlimited"])
def test_gpu_work_waits_and_goes_on(vgpurun: Cli, debian: str, limit: tuple[str, str]) -> None:
    assert vgpurun.run("-d", "--name", "paused", *limit, *WITH_PROGRAMS, debian, "sleep", "60").exit_code == 0
    container = vgpurun.engine.containers.get("paused")
    assert vgpurun("pause", "--gpu", "paused").stdout == "paused\n"
    assert status(vgpurun) == "running"
    assert device(vgpurun)["paused"] is True
    assert "(GPU paused)" in vgpurun("ps", "-a", *vgpurun.driver).stdout
    (inspected,) = json.loads(vgpurun("inspect", *vgpurun.driver, "paused").stdout)
    assert inspected["devices"][0]["paused"] is True
    assert " paused" in vgpurun("top", "--once", *vgpurun.driver).stdout.splitlines()[-1]
    execution = vgpurun.engine.api.exec_create(container.id, [*SPIN, "0.2"])["Id"]
    vgpurun.engine.api.exec_start(execution, detach=True)
    wait_until(lambda: vgpurun.engine.api.exec_inspect(execution)["Running"], "start")
    assert container.exec_run(["sleep", "1.5"]).exit_code == 0
    assert vgpurun.engine.api.exec_inspect(execution)["Running"], "it waits at its first launch"
    assert vgpurun("unpause", "--gpu", "paused").exit_code == 0
    assert device(vgpurun)["paused"] is False
    wait_until(lambda: not vgpurun.engine.api.exec_inspect(execution)["Running"], "end")
    assert vgpurun.engine.api.exec_inspect(execution)["ExitCode"] == 0


def test_whole_containers(vgpurun: Cli, debian: str) -> None:
    assert vgpurun.run("-d", "--name", "paused", debian, "sleep", "60").exit_code == 0
    assert vgpurun("pause", "paused").exit_code == 0
    assert status(vgpurun) == "paused"
    assert vgpurun("unpause", "paused").exit_code == 0
    assert status(vgpurun) == "running"
    assert device(vgpurun)["paused"] is False
    refused = vgpurun("unpause", "paused")
    assert refused.exit_code == 1 and "not paused" in refused.stderr


def test_unpause_undoes_whichever_pause_it_was(vgpurun: Cli, debian: str) -> None:
    assert vgpurun.run("-d", "--name", "paused", "--mem", "1g", debian, "sleep", "60").exit_code == 0
    for pauses in ([("--gpu",)], [()], [("--gpu",), ()]):
        for given in pauses:
            assert vgpurun("pause", *given, "paused").exit_code == 0
        result = vgpurun("unpause", "paused")
        assert (result.exit_code, result.stdout, result.stderr) == (0, "paused\n", "")
        assert status(vgpurun) == "running" and device(vgpurun)["paused"] is False
    assert vgpurun("suspend", *vgpurun.driver, "--hold", "paused").exit_code == 0
    refused = vgpurun("unpause", "paused")
    assert refused.exit_code == 1 and "is not paused but suspended: vgpurun resume paused" in refused.stderr


def test_update_changes_the_policy(vgpurun: Cli, debian: str) -> None:
    assert (
        vgpurun.run("-d", "--name", "paused", "--sm", "30", "--priority", "low", debian, "sleep", "60").exit_code == 0
    )
    assert (device(vgpurun)["sm_policy"], device(vgpurun)["priority"]) == ("hard", "low")
    changed = vgpurun("update", *vgpurun.driver, "--sm-policy", "burst", "--priority", "high", "paused")
    assert changed.stdout == "paused, GPU 0: all memory, 30 % low priority -> all memory, 30 % burst\n"
    assert (device(vgpurun)["sm_policy"], device(vgpurun)["priority"]) == ("burst", "high")
