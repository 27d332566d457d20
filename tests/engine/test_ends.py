"""`--for`: what has an end is ended by what runs of vgpurun by then."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

from cli import Cli
from support import wait_until
from vgpurun.util.times import boot_s

ENDS_AT_ONCE = ("sh", "-c", "trap 'exit 143' TERM; sleep 600 & wait")


def status(vgpurun: Cli, name: str) -> str:
    return str(vgpurun.engine.containers.get(name).status)


def test_a_container_that_is_waited_for_ends_in_time(vgpurun: Cli, debian: str) -> None:
    result = vgpurun.run("--name", "brief", "--mem", "1g", "--for", "2s", debian, *ENDS_AT_ONCE)
    assert result.exit_code == 143
    assert "the time of --for ends in" in result.stderr and len(result.stderr.splitlines()) == 1
    vgpurun.assert_nothing_left()


def test_one_that_nobody_waits_for_is_ended_by_the_next_launch(vgpurun: Cli, debian: str) -> None:
    assert vgpurun.run("-d", "--name", "goes-on", "--mem", "1g", "--for", "1h", debian, *ENDS_AT_ONCE).exit_code == 0
    assert vgpurun.run("-d", "--name", "over", "--mem", "6g", "--for", "2s", debian, *ENDS_AT_ONCE).exit_code == 0
    shown = vgpurun("ps", "--driver", "sim").stdout
    assert "ends in 1 hour" in shown and "STATUS" in shown
    wait_until(lambda: "past its --for limit" in vgpurun("ps", "--driver", "sim").stdout, "end")
    assert status(vgpurun, "over") == "running", "nothing of vgpurun runs that would end it"
    result = vgpurun.run("--mem", "5g", debian, "true")
    assert (result.exit_code, result.stderr) == (
        0,
        "vgpurun: warning: container over reached its --for limit and was stopped\n",
    )
    assert status(vgpurun, "over") == "exited" and status(vgpurun, "goes-on") == "running"
    assert vgpurun("start", "--driver", "sim", "over").exit_code in (0, 125)  # 125: no room beside the others
    vgpurun.run("--mem", "1g", debian, "true")
    assert vgpurun.owner("over")["has_ended"], "started again, it has no end"


def test_the_guard_ends_it_by_itself(vgpurun: Cli, debian: str) -> None:
    assert vgpurun("slice", "create", "--driver", "sim", "--mem", "1g", "--for", "1s", "course").exit_code == 0
    assert vgpurun.run("-d", "--name", "over", "--mem", "1g", "--for", "2s", debian, *ENDS_AT_ONCE).exit_code == 0
    with vgpurun.started("guard", *vgpurun.driver) as guard:
        wait_until(lambda: status(vgpurun, "over") == "exited", "stop")
        wait_until(lambda: vgpurun("slice", "ls", "-q").stdout == "", "removal")
        guard.terminate()
        assert guard.wait(10) == 0
    assert vgpurun.owner("over")["has_ended"]


def test_the_guard_ends_that_of_another_user_and_warns_before(
    vgpurun: Cli, debian: str, as_nobody: tuple[str, ...]
) -> None:
    """By the engine's list, for the state folder is in the user's home. A restarted container has no end."""
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, 65534, 65534)
        environment = {**vgpurun.environment, "HOME": home}
        del environment["VGPURUN_STATE_DIR"]
        user = Cli(vgpurun.engine, environment, Path(home, ".local/state/vgpurun"), command=as_nobody)
        says_what_it_is_told = "trap 'exit 143' TERM; until cat /.vgpurun/etc/guard; do sleep 0.1; done 2>/dev/null; "
        command = (debian, "sh", "-c", says_what_it_is_told + "sleep 600 & wait")
        try:
            assert user.run("-d", "--name", "theirs", "--mem", "1g", "--for", "20s", *command).exit_code == 0
            with vgpurun.started("guard", *vgpurun.driver) as guard:
                wait_until(lambda: status(user, "theirs") == "exited", "stop")
                said = user("logs", "theirs").stdout
                assert "theirs: warn: the time of --for ends in" in said and len(said.splitlines()) == 1
                vgpurun.engine.containers.get("theirs").start()
                time.sleep(6)  # the guard looks every 5 s
                assert status(user, "theirs") == "running"
                guard.terminate()
                journal = guard.communicate(timeout=60)[1]
            assert "warn container theirs of nobody: the time of --for ends in" in journal
            assert journal.count("stop container theirs: it reached its --for limit") == 1
        finally:
            user.remove_containers()


def test_prune_ends_it_too_and_slices_reserve_nothing_any_more(vgpurun: Cli, debian: str) -> None:
    assert vgpurun("slice", "create", "--driver", "sim", "--mem", "6g", "--for", "1s", "course").exit_code == 0
    time.sleep(1.1)
    late = vgpurun.run("--slice", "course", debian, "true")
    assert late.exit_code == 125
    result = vgpurun("prune", "--driver", "sim")
    assert vgpurun("slice", "ls", "-q").stdout == ""
    assert result.exit_code == 0
    vgpurun.run("-d", "--name", "over", "--mem", "1g", "--for", "1s", debian, *ENDS_AT_ONCE)
    time.sleep(1.1)
    assert "Stopped container over: it reached its --for limit" in vgpurun("prune", "--driver", "sim").stdout
    assert status(vgpurun, "over") == "exited"


def test_a_clock_that_is_set_ends_nothing(vgpurun: Cli, debian: str) -> None:
    """The wall clock seems to jump by two hours; the time since the host was started counts."""
    assert vgpurun.run("-d", "--name", "lasts", "--mem", "1g", "--for", "5m", debian, *ENDS_AT_ONCE).exit_code == 0
    assert "ends in 5 minutes" in vgpurun("ps", "--driver", "sim").stdout
    path = vgpurun.state_folder(vgpurun.engine.containers.get("lasts")) / "owner"
    owner = json.loads(path.read_text())
    path.write_text(json.dumps({**owner, "ends_s": owner["ends_s"] - 7200}))
    assert "Ended" not in vgpurun("prune", "--driver", "sim").stdout
    assert "ends in 5 minutes" in vgpurun("ps", "--driver", "sim").stdout and status(vgpurun, "lasts") == "running"
    path.write_text(json.dumps({**owner, "ends_s": owner["ends_s"] + 7200, "ends_boot_s": boot_s()}))
    assert "Stopped container lasts: it reached its --for limit" in vgpurun("prune", "--driver", "sim").stdout
