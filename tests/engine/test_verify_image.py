"""`vgpurun verify IMAGE`: the trial in a real container, judged from the host."""

from __future__ import annotations

import json
import signal

import pytest

from cli import Cli, guarding
from support import wait_until


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


@pytest.mark.exhaustive
def test_what_stops_each_escape(own_gpu: Cli, debian: str) -> None:
    with guarding(own_gpu):
        arguments = ("verify", *own_gpu.driver, "--hostile", "--mem", "1g", "--format", "json", debian)
        result = own_gpu(*arguments, timeout_s=110)
    (found,) = json.loads(result.stdout)
    stopped_by = {each["name"].removeprefix("escape: "): each["stopped_by"] for each in found["checks"]}
    assert stopped_by == {
        **dict.fromkeys(
            ("plain", "empty environment", "lying variables", "RTLD_DEEPBIND", "setuid program", "Nix's loader",
             "forged usage file", "closed usage file"), "the library"),
        **dict.fromkeys(("forged limits file", "unmounted preload", "mount namespace"), "the container"),
        **dict.fromkeys(("dlmopen", "copy of the driver", "driver's own symbols", "loader of its own"), "the guard"),
    }, result  # fmt: skip
    assert result.exit_code == 0 and found["passed"]
    own_gpu.assert_nothing_left()


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
def test_what_stops_each_escape_in_time(own_gpu: Cli, debian: str) -> None:
    with guarding(own_gpu, "--compute", "unheld"):
        arguments = ("verify", *own_gpu.driver, "--hostile", "--sm", "20", "--format", "json", debian)
        result = own_gpu(*arguments, timeout_s=380)
    (found,) = json.loads(result.stdout)
    stopped_by = {each["name"].removeprefix("time: "): each["stopped_by"] for each in found["checks"]}
    assert stopped_by == {
        **dict.fromkeys(("plain", "empty environment", "lying variables", "forged usage file"), "the library"),
        **dict.fromkeys(("forged limits file", "unmounted preload", "mount namespace"), "the container"),
        **dict.fromkeys(("dlmopen", "copy of the driver", "driver's own symbols", "loader of its own",
                         "short processes"), "the guard"),
    }, result  # fmt: skip
    own_gpu.assert_nothing_left()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_trial_that_is_ended_leaves_no_container(vgpurun: Cli, debian: str, number: int, code: int) -> None:
    arguments = ("verify", *vgpurun.driver, "--sm", "50", "--seconds", "100", debian)
    with vgpurun.started(*arguments) as process:
        wait_until(lambda: [each for each in vgpurun.containers() if each.status == "running"], "running container", 60)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors.strip()) == (code, "")
        wait_until(lambda: not vgpurun.containers(), "end of the container", 60)
    wait_until(lambda: not vgpurun.states(), "end of the trial", 10)


def test_a_trial_without_room_says_so(vgpurun: Cli, debian: str) -> None:
    held = vgpurun.run("-d", "--mem", "7g", debian, "sleep", "60")
    assert held.exit_code == 0, held
    result = vgpurun("verify", *vgpurun.driver, "--mem", "2g", debian)
    assert result.exit_code == 125 and "cannot be run: no room for --mem 2g" in result.stderr, result
    vgpurun("rm", "-f", held.stdout.strip())


@pytest.mark.parametrize("hostile", [(), ("--hostile",)])
def test_an_image_that_cannot_be_had_is_no_success(vgpurun: Cli, hostile: tuple[str, ...]) -> None:
    result = vgpurun("verify", *hostile, *vgpurun.driver, "127.0.0.1:9/none:1")
    assert (result.exit_code, result.stdout) == (125, "")
    assert "cannot be pulled" in result.stderr.splitlines()[-1]
