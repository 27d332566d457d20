"""`vgpurun verify IMAGE`: the trial in a real container, judged from the host."""

from __future__ import annotations

import json
import signal

from cli import Cli, wait_until


def test_limits_hold_in_a_container(vgpurun: Cli, debian: str) -> None:
    limits = ("--mem", "1200m", "--sm", "50", "--seconds", "0.7")
    result = vgpurun("verify", *vgpurun.driver, *limits, "--format", "json", debian, timeout_s=110)
    assert result.exit_code in (0, 1), result  # shares of time are judged where a busy machine is allowed for
    (found,) = json.loads(result.stdout)
    assert found["passed"] == (result.exit_code == 0)
    checks = {check["name"]: check for check in found["checks"]}
    assert {"compute: launches", "compute: graphs", "compute: two processes"} < checks.keys()
    failed = {name for name, check in checks.items() if check["status"] == "fail"}
    assert not [name for name in failed if name.startswith("memory")], checks
    empty = checks["memory: an empty environment"]
    assert empty["status"] == "ok" and (1200 << 20) - (4 << 20) <= empty["used_bytes"] <= 1200 << 20
    assert checks["memory: two processes"]["status"] == "ok"
    vgpurun.assert_nothing_left()


def test_ctrl_c_ends_the_trial_and_its_container(vgpurun: Cli, debian: str) -> None:
    arguments = ("verify", *vgpurun.driver, "--sm", "50", "--seconds", "100", debian)
    with vgpurun.started(*arguments) as process:
        wait_until(lambda: [each for each in vgpurun.containers() if each.status == "running"], "running container", 60)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.strip()) == (130, "")
    wait_until(lambda: not vgpurun.containers(), "end of the container", 60)
    vgpurun.assert_nothing_left()


def test_a_trial_that_is_killed_leaves_no_container(vgpurun: Cli, debian: str) -> None:
    arguments = ("verify", *vgpurun.driver, "--sm", "50", "--seconds", "100", debian)
    with vgpurun.started(*arguments) as process:
        wait_until(lambda: [each for each in vgpurun.containers() if each.status == "running"], "running container", 60)
        process.kill()
        wait_until(lambda: not vgpurun.containers(), "end of the container", 60)
    wait_until(lambda: not vgpurun.states(), "end of the trial", 10)


def test_a_trial_without_room_says_so(vgpurun: Cli, debian: str) -> None:
    held = vgpurun.run("-d", "--mem", "7g", debian, "sleep", "60")
    assert held.exit_code == 0, held
    result = vgpurun("verify", *vgpurun.driver, "--mem", "2g", debian)
    assert result.exit_code == 125 and "cannot be run: no room for --mem 2g" in result.stderr, result
    vgpurun("rm", "-f", held.stdout.strip())
