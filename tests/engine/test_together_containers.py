"""Containers of a slice made with --together: they find its MPS server, and what cannot join is refused."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli
from support import wait_until
from vgpurun.together import server
from vgpurun.together.group import Group

SIM = ("--driver", "sim")


@pytest.fixture
def cli(own_gpu: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """A command line with the slice, whose state is in a place that leaves room for a socket's path."""
    with TemporaryDirectory(prefix="vgpurun-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        environment = own_gpu.environment | {"VGPURUN_STATE_DIR": folder}
        short = Cli(own_gpu.engine, environment, Path(folder), own_gpu.driver)
        assert short("slice", "create", *SIM, "team", "--mem", "2g", "--together").exit_code == 0
        yield short
        short.remove_containers()
        wait_until(lambda: not short_group(short).exists(), "end of the group")


def short_group(cli: Cli) -> Path:
    return cli.state_dir / "together" / f"{Group.of(cli.state_dir / 'slices' / 'team').key}"


def members(cli: Cli) -> list[str]:
    (found,) = json.loads(cli("slice", "inspect", *SIM, "team").stdout)
    return [each["name"] for each in found["members"]]


def test_containers_join_and_the_server_goes_with_the_last(cli: Cli, debian: str) -> None:
    group = short_group(cli)
    for name in ("one", "other"):
        result = cli.run("-d", "--name", f"together-{name}", "--slice", "team", "--sm", "25", debian, "sleep", "300")
        assert result.exit_code == 0, result
    found = cli.engine.containers.get("together-one").attrs
    assert found["HostConfig"]["IpcMode"] == "host"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25" in found["Config"]["Env"]
    assert len(members(cli)) == 2 and "25 % of the SMs" in cli("ps", *SIM).stdout
    time.sleep(2)
    assert group.exists(), "nobody holds a lock any more, but containers have its folder"
    cli.engine.containers.get("together-one").remove(force=True)
    time.sleep(2)
    assert server.processes(group / "pipe")
    cli.engine.containers.get("together-other").kill()
    wait_until(lambda: not group.exists(), "the end of the group")
    assert not server.processes(group / "pipe")
    again = cli("start", *SIM, "together-other")
    assert again.exit_code == 125 and "is not started again" in again.stderr


def test_without_a_slice_a_user_s_containers_are_a_group(cli: Cli, debian: str) -> None:
    for name in ("one", "other"):
        result = cli.run(
            "-d", "--name", f"together-{name}", "--together", "--mem", "1g", "--sm", "25", debian, "sleep", "300"
        )
        assert result.exit_code == 0, result
    (group,) = (each for each in (cli.state_dir / "together").iterdir() if each.is_dir())
    assert len(server.processes(group / "pipe")) == 1, "a daemon"
    assert cli("ps", *SIM).stdout.count("25 % of the SMs") == 2
    refused = cli("update", *SIM, "--sm", "50", "together-one")
    assert refused.exit_code == 125 and "is its part of the SMs, from its start" in refused.stderr, refused
    assert cli.run(*WITH_PROGRAMS, "--together", "--mem", "1g", debian, *GPU_PROGRAM, "info").exit_code == 0
    for name in ("one", "other"):
        assert group.exists()
        cli.engine.containers.get(f"together-{name}").kill()
    wait_until(lambda: not group.exists(), "the end of the group")
    assert not server.processes(group / "pipe")
    again = cli("start", *SIM, "together-other")
    assert again.exit_code == 125 and "is not started again" in again.stderr


def test_a_program_in_a_container_is_a_client(cli: Cli, debian: str) -> None:
    """Without a server the library would give it no GPU."""
    assert cli.run(*WITH_PROGRAMS, "--slice", "team", "--mem", "1g", debian, *GPU_PROGRAM, "info").exit_code == 0
    lost = cli.run(
        *WITH_PROGRAMS, "--slice", "team", debian, "env", "CUDA_MPS_PIPE_DIRECTORY=/nowhere", *GPU_PROGRAM, "info"
    )
    assert lost.exit_code != 0 and "found no MPS server (/nowhere)" in lost.stderr


def test_advice_says_who_is_a_member_already(cli: Cli, debian: str, tmp_path: Path) -> None:
    """Nothing records what they have gained."""
    for name, group in (("one", ("--slice", "team")), ("other", ("--together", "--mem", "1g"))):
        asked = (*group, "--name", f"together-{name}", "--profile", str(tmp_path / "profile"), *WITH_PROGRAMS)
        assert cli("run", *SIM, *asked, debian, *GPU_PROGRAM, "spin", "spin_5ms", "0.1").exit_code == 0
    advice = json.loads(cli("advise", "--format", "json", "together-one", "together-other").stdout)
    assert [each["together"] for each in advice["containers"]] == [True, True]
    assert "Together with others already: together-one, together-other." in advice["notes"][0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--user", "1000"), "add --user 0"),
        (("--ipc", "private"), "--ipc private beside --together"),
        (("--restart", "always", "-d"), "--restart beside --together"),
    ],
)
def test_what_cannot_join_is_refused(cli: Cli, debian: str, options: tuple[str, ...], words: str) -> None:
    for group in (("--slice", "team"), ("--together",)):
        refused = cli.run(*group, *options, debian, "true")
        assert refused.exit_code == 125 and words in refused.stderr, refused
    cli.assert_nothing_left()


def test_an_attached_container_says_what_ended_its_work(cli: Cli, debian: str) -> None:
    words = ("run", *SIM, "--rm", "--name", "together-attached", "--slice", "team", debian, "sleep", "300")
    with cli.started(*words) as process:
        group = short_group(cli)
        wait_until(lambda: (group / "keeper").exists(), "the keeper")
        (daemon,) = server.processes(group / "pipe")
        wait_until(lambda: cli.engine.containers.list(filters={"name": "together-attached"}), "the container")
        os.kill(daemon.pid, signal.SIGKILL)
        wait_until(lambda: "is started again" in (group / "keeper").read_text(), "the keeper's word")
        cli.engine.containers.get("together-attached").kill()
        _, said = process.communicate(timeout=30)
    assert "the MPS daemon has ended" in said
