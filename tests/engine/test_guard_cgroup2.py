"""The guard on cgroup v2, where the kernel itself freezes and ends a container's cgroup."""

from __future__ import annotations

from cli import Cli, wait_until
from test_driver_limits import cli, client, debian_v2, engine_host  # noqa: F401  (an engine on cgroup v2)
from test_guard import MIB, actions, frozen, guarding, start, status, verbs

LIMITS = ("--mem", "1g", "--enforce", "library")  # what is tested is the guard alone


def test_frozen_until_it_is_within_again(cli: Cli, debian_v2: str) -> None:  # noqa: F811
    with guarding(cli):
        start(cli, debian_v2, "/programs/escape.py", "copy", "hold", str(1300 * MIB), options=LIMITS)
        wait_until(lambda: verbs(cli) == ["freeze"] and frozen(cli) == ["memory"], "freeze")
        assert actions(cli)[0]["is_unified"]
        assert cli("update", *cli.driver, "--mem", "2g", "tenant").exit_code == 0
        wait_until(lambda: verbs(cli) == ["freeze", "thaw"], "thaw")
        assert b"thaw" in cli.engine.containers.get("tenant").exec_run(["cat", "/.vgpurun/etc/guard"]).output


def test_frozen_ones_can_be_ended(cli: Cli, debian_v2: str) -> None:  # noqa: F811
    with guarding(cli):
        for number, end in enumerate((lambda one: one.kill(), lambda one: one.stop(timeout=1))):
            name = f"tenant-{number}"
            start(cli, debian_v2, "/programs/escape.py", "copy", "hold", str(1300 * MIB), name=name, options=LIMITS)
            wait_until(lambda: frozen(cli) == ["memory"], "freeze")
            end(cli.engine.containers.get(name))
            wait_until(lambda: frozen(cli) == [], "end")


def test_ended(cli: Cli, debian_v2: str) -> None:  # noqa: F811
    with guarding(cli, "--memory", "kill"):
        start(cli, debian_v2, "/programs/escape.py", "daemon-loader", "fill", str(16 * MIB), options=LIMITS)
        wait_until(lambda: status(cli) == "exited", "end")
    assert verbs(cli) == ["kill"] and actions(cli)[0]["is_unified"]


def test_held_to_its_share(cli: Cli, debian_v2: str) -> None:  # noqa: F811
    with guarding(cli):
        options = ("--sm", "20", "--enforce", "library")
        start(cli, debian_v2, "/programs/escape.py", "copy", "spin", "spin_1ms", "4", options=options)
        wait_until(lambda: status(cli) == "exited", "end")
        wait_until(lambda: not frozen(cli), "end")
    assert verbs(cli) == ["hold"]
    launches, _, _, seconds, _ = cli.engine.containers.get("tenant").logs().decode().splitlines()[-1].split()
    assert int(launches) * 0.001 / float(seconds) < 0.7, "it was held back, how exactly is another test's"
