"""The guard on cgroup v2, where the kernel itself freezes and ends a container's cgroup."""

from __future__ import annotations

from cli import Cli, guarding
from support import wait_until
from test_guard import MIB, actions, frozen, start, status, verbs

LIMITS = ("--mem", "1g", "--enforce", "library")  # the guard alone is tested


def test_frozen_until_it_is_within_again(cli_v2: Cli, debian_v2: str) -> None:
    with guarding(cli_v2):
        start(cli_v2, debian_v2, "/programs/escape.py", "copy", "hold", str(1300 * MIB), options=LIMITS)
        wait_until(lambda: verbs(cli_v2) == ["freeze"] and frozen(cli_v2) == ["memory"], "freeze")
        assert actions(cli_v2)[0]["is_unified"]
        assert cli_v2("update", *cli_v2.driver, "--mem", "2g", "tenant").exit_code == 0
        wait_until(lambda: verbs(cli_v2) == ["freeze", "thaw"], "thaw")
        assert b"thaw" in cli_v2.engine.containers.get("tenant").exec_run(["cat", "/.vgpurun/etc/guard"]).output


def test_frozen_ones_can_be_ended(cli_v2: Cli, debian_v2: str) -> None:
    with guarding(cli_v2):
        for number, end in enumerate((lambda one: one.kill(), lambda one: one.stop(timeout=1))):
            name = f"tenant-{number}"
            start(cli_v2, debian_v2, "/programs/escape.py", "copy", "hold", str(1300 * MIB), name=name, options=LIMITS)
            wait_until(lambda: frozen(cli_v2) == ["memory"], "freeze")
            end(cli_v2.engine.containers.get(name))
            wait_until(lambda: frozen(cli_v2) == [], "end")


def test_ended(cli_v2: Cli, debian_v2: str) -> None:
    with guarding(cli_v2, "--memory", "kill"):
        start(cli_v2, debian_v2, "/programs/escape.py", "daemon-loader", "fill", str(16 * MIB), options=LIMITS)
        wait_until(lambda: status(cli_v2) == "exited", "end")
    assert verbs(cli_v2) == ["kill"] and actions(cli_v2)[0]["is_unified"]


def test_held_to_its_share(cli_v2: Cli, debian_v2: str) -> None:
    with guarding(cli_v2):
        options = ("--sm", "20", "--enforce", "library")
        start(cli_v2, debian_v2, "/programs/escape.py", "copy", "spin", "spin_1ms", "4", options=options)
        wait_until(lambda: status(cli_v2) == "exited", "end")
        wait_until(lambda: not frozen(cli_v2), "end")
    # The guard also lets it go where it looks between the end of the program and its own.
    assert verbs(cli_v2) in (["hold"], ["hold", "release"])
    launches, _, _, seconds, _ = cli_v2.engine.containers.get("tenant").logs().decode().splitlines()[-1].split()
    assert int(launches) * 0.001 / float(seconds) < 0.7, "it was held back, how exactly is another test's"
