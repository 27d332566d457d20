"""No more is reserved than there is, however many launch at once, and whatever becomes of them."""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cli import Cli
from engine_relay import held_up
from support import WITH_ADMIN_FILE, wait_until
from support.programs import text_of
from vgpurun import cli
from vgpurun.admission import controller
from vgpurun.admission.lock import shared_folder
from vgpurun.engine.client import Engine
from vgpurun.engine.launches import LaunchEngine
from vgpurun.inventory.reservations import all_holders
from vgpurun.launch.container import sweep
from vgpurun.limits.model import quotas_from_json
from vgpurun.options import ContainerOptions
from vgpurun.util.background import Background

ROOM = 4  # launches of 4 GiB on two GPUs of 8 GiB


@pytest.fixture
def two_gpus(vgpurun: Cli, tmp_path: Path) -> Cli:
    return with_gpus(vgpurun, tmp_path, 2)


@pytest.fixture
def one_gpu(vgpurun: Cli, tmp_path: Path) -> Cli:
    return with_gpus(vgpurun, tmp_path, 1)


def with_gpus(vgpurun: Cli, tmp_path: Path, count: int) -> Cli:
    """GPUs of 8 GiB that no other test knows: who waits for others is in another queue."""
    token = os.urandom(4).hex()
    uuids = [f"GPU-{token}-0000-0000-0000-{number:012d}" for number in range(count)]
    devices = "".join(f"  - name: Simulated GPU\n    uuid: {uuid}\n    memory_mib: 8192\n" for uuid in uuids)
    (tmp_path / "sim.yaml").write_text(f"devices:\n{devices}")
    vgpurun.environment["VGPUSIM_CONFIG"] = str(tmp_path / "sim.yaml")
    return vgpurun


def gpus_of(cli: Cli) -> Counter[str]:
    """How many containers each GPU has."""
    return Counter(uuid for each in cli.containers() for uuid, _ in quotas_from_json(cli.owner(each.id)["quota"]))


def started_together(cli: Cli, stack: ExitStack, count: int, *arguments: str) -> list[subprocess.Popen[str]]:
    command = ("run", *cli.driver, *arguments)
    return [stack.enter_context(cli.started(*command)) for _ in range(count)]


def test_ten_launches_at_once_into_room_for_four(two_gpus: Cli, debian: str) -> None:
    with ExitStack() as stack:
        launches = started_together(two_gpus, stack, 10, "-d", "--mem", "4g", debian, "sleep", "300")
        ended = [(process.communicate(timeout=100), process.returncode) for process in launches]
    assert Counter(code for _, code in ended) == {0: ROOM, 125: 10 - ROOM}, ended
    assert sorted(gpus_of(two_gpus).values()) == [2, 2]
    assert {each.status for each in two_gpus.containers()} == {"running"}
    assert len(two_gpus.states()) == ROOM
    refusals = [stderr for (_, stderr), code in ended if code]
    assert all("no room for --mem 4g on any GPU" in text and "--overcommit" in text for text in refusals)
    assert refusals[0].splitlines()[1].split() == ["GPU", "HOLDER", "USER", "MEMORY", "SM"]
    assert refusals[0].count("4 GiB") == ROOM


def seconds(text: str) -> float:
    return datetime.fromisoformat(f"{text[:19]}+00:00").timestamp() + float(f"0{text[19:-1]}")


def test_launches_that_wait_run_later_and_never_more_at_once(two_gpus: Cli, debian: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = "until test -e /here/go; do sleep 0.1; done; sleep 0.5"
    command = ("--wait", "--mem", "4g", "-v", f"{tmp_path}:/here:ro", debian, "sh", "-c", script)
    with ExitStack() as stack:
        launches = started_together(two_gpus, stack, 7, *command)
        wait_until(lambda: len(tickets(two_gpus)) == 7 - ROOM, "queue of who found no room", 100)
        go.touch()
        ended = [(process.communicate(timeout=100), process.returncode) for process in launches]
    assert all(code == 0 for _, code in ended), ended
    assert sum("waiting in place" in stderr for (_, stderr), _ in ended) == 7 - ROOM
    times = [
        (seconds(s["StartedAt"]), seconds(s["FinishedAt"])) for s in (c.attrs["State"] for c in two_gpus.containers())
    ]
    assert len(times) == 7
    assert max(sum(1 for began, end in times if began <= moment < end) for moment, _ in times) <= ROOM


def hold(cli: Cli, image: str, name: str, *limits: str) -> None:
    assert cli.run("-d", "--name", name, *limits, image, "sleep", "300").exit_code == 0


def tickets(cli: Cli) -> list[Path]:
    """The tickets of launches that wait for the GPUs of this test."""
    own = re.findall(r"uuid: (\S+)", Path(cli.environment["VGPUSIM_CONFIG"]).read_text())
    found = []
    for path in shared_folder().glob("vgpurun-wait-*"):
        with suppress(FileNotFoundError):  # others' come and go
            found += [path] if set(own) & set(path.read_text().split()) else []
    return found


def test_first_come_first_served_and_ctrl_c_leaves_the_queue(one_gpu: Cli, debian: str) -> None:
    hold(one_gpu, debian, "holder", "--mem", "6g")
    wait = ("run", *one_gpu.driver, "--wait", "--mem", "5g", "-d", "--name")
    with one_gpu.started(*wait, "first", debian, "sleep", "300") as first:
        assert "place 1" in next(iter(first.stderr))
        with one_gpu.started(*wait, "second", debian, "sleep", "300") as second:
            assert "place 2" in next(iter(second.stderr))
            one_gpu.engine.containers.get("holder").remove(force=True)
            assert first.communicate(timeout=30) and first.returncode == 0
            assert "place 1" in next(iter(second.stderr))
            assert {each.name for each in one_gpu.containers()} == {"first"}
            second.send_signal(signal.SIGINT)
            assert second.communicate(timeout=30) and second.returncode == 130
    assert tickets(one_gpu) == []


def test_a_wait_that_ends_in_vain(one_gpu: Cli, debian: str) -> None:
    hold(one_gpu, debian, "holder", "--mem", "6g")
    result = one_gpu.run("--wait=1s", "--mem", "5g", debian, "true")
    assert result.exit_code == 125
    assert "waited 1 s in vain: no room for --mem 5g on GPU 0: 2 GiB is free" in result.stderr
    assert "holder" in result.stderr


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        (("--mem", "3g"), "2 GiB is free"),
        (("--mem", "1g", "--sm", "50"), "40 % of its time is free"),
        ((), "without --mem it could take the 6 GiB reserved by others"),
    ],
    ids=["memory", "compute", "no limit"],
)
def test_what_does_not_fit_is_refused_unless_overcommitted(
    one_gpu: Cli, debian: str, limits: tuple[str, ...], word: str
) -> None:
    hold(one_gpu, debian, "holder", "--mem", "6g", "--sm", "60")
    result = one_gpu.run(*limits, debian, "true")
    assert (result.exit_code, word in result.stderr) == (125, True), result
    assert one_gpu.run("--overcommit", *limits, debian, "true").exit_code == 0


def test_all_that_is_left(one_gpu: Cli, debian: str) -> None:
    hold(one_gpu, debian, "holder", "--mem", "75%")
    hold(one_gpu, debian, "rest", "--mem", "max")
    rest = quotas_from_json(one_gpu.owner("rest")["quota"])[0][1]
    assert rest.memory_bytes == 2 << 30
    assert "nothing is free" in one_gpu.run("--mem", "max", debian, "true").stderr


def test_local_processes_and_containers_count_for_each_other(one_gpu: Cli, debian: str) -> None:
    with one_gpu.started("local", *one_gpu.driver, "--mem", "6g", "--", "sleep", "60") as local:
        wait_until(one_gpu.states, "state folder of the local process")
        result = one_gpu.run("--mem", "3g", debian, "true")
        assert f"process {local.pid}" in result.stderr
        assert one_gpu.run("--mem", "2g", debian, "true").exit_code == 0
        local.terminate()  # which its child is told
        assert local.wait(60) == 128 + signal.SIGTERM
    assert one_gpu.run("--mem", "3g", debian, "true").exit_code == 0
    hold(one_gpu, debian, "holder", "--mem", "6g")
    assert "holder" in one_gpu("local", *one_gpu.driver, "--mem", "3g", "--", "true").stderr


def test_binpack_fills_one_gpu_and_spread_both(two_gpus: Cli, debian: str) -> None:
    for number in range(3):
        hold(two_gpus, debian, f"packed{number}", "--place", "binpack", "--mem", "2g")
    assert list(gpus_of(two_gpus).values()) == [3]
    hold(two_gpus, debian, "spread", "--mem", "2g")
    assert sorted(gpus_of(two_gpus).values()) == [1, 3]
    hold(two_gpus, debian, "both", "--gpus", "count=2", "--mem", "2g")
    assert sorted(gpus_of(two_gpus).values()) == [2, 4]


@pytest.mark.parametrize(
    ("request_path", "is_answered"),
    [
        ("/containers/create", False),
        ("/containers/create", True),
        ("/attach", True),
        ("/start", False),
        ("/start", True),
    ],
)
def test_a_launch_killed_at_any_moment_leaves_nothing_after_prune(
    one_gpu: Cli, debian: str, docker_host: str, tmp_path: Path, request_path: str, is_answered: bool
) -> None:
    """A container that was started runs on, as with docker run, and is no half-made one."""
    assert one_gpu.run("--mem", "1g", debian, "sleep", "0").exit_code == 0  # the image and program have been looked at
    with held_up(docker_host, tmp_path, request_path, is_answered) as (address, held):
        command = ("run", *one_gpu.driver, "--rm", "--mem", "8g", debian, "sleep", "300")
        with by_way_of(one_gpu, address).started(*command) as process:
            held.wait()
            process.kill()
    is_started = request_path == "/start" and is_answered
    was_made = request_path != "/containers/create" or is_answered
    assert len(one_gpu.states()) == 1, "the launch was under way"
    assert [each.status for each in one_gpu.containers()] == ["running" if is_started else "created"] * was_made
    assert one_gpu("prune").exit_code == 0
    if is_started:
        assert "no room" in one_gpu.run("--mem", "1g", debian, "true").stderr
        one_gpu.remove_containers()
        assert one_gpu("prune").exit_code == 0
    one_gpu.assert_nothing_left()
    assert one_gpu.run("--mem", "8g", debian, "true").exit_code == 0, "no lock is left, nor any claim to the memory"


def by_way_of(cli: Cli, address: str) -> Cli:
    return replace(cli, environment=cli.environment | {"DOCKER_HOST": address})


def test_a_container_that_nobody_will_start_is_swept_by_the_next_launch(
    one_gpu: Cli, debian: str, docker_host: str, tmp_path: Path
) -> None:
    with held_up(docker_host, tmp_path, "/start") as (address, held):
        command = ("run", *one_gpu.driver, "--mem", "8g", debian, "sleep", "300")
        with by_way_of(one_gpu, address).started(*command) as process:
            held.wait()
            assert "no room" in one_gpu.run("--mem", "1g", debian, "true").stderr, "a living launch holds its place"
            process.kill()
            process.wait()
            assert one_gpu.run("--mem", "8g", debian, "true").exit_code == 0
    one_gpu.assert_nothing_left()


def test_a_container_started_since_it_was_listed_is_neither_overlooked_nor_swept(
    one_gpu: Cli, debian: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its launcher has let go of its folder meanwhile: so had it if it were dead."""
    hold(one_gpu, debian, "started", "--mem", "8g")
    for name in ("DOCKER_HOST", "VGPURUN_STATE_DIR"):
        monkeypatch.setenv(name, one_gpu.environment[name])
    engine = Engine.connect()
    as_listed_before = [replace(each, status="created") for each in engine.containers() if each.name == "started"]
    monkeypatch.setattr(engine, "containers", lambda: as_listed_before)
    assert [holder.name for holder in all_holders(engine)] == ["started"]
    sweep(engine, Background(engine.facts))
    assert [each.status for each in one_gpu.containers()] == ["running"]


def vgpurun_without_removal() -> None:
    with patch.object(LaunchEngine, "remove"):  # an engine that does not answer
        sys.exit(cli.main(sys.argv[1:]))


def test_what_a_failed_start_could_not_remove_holds_nobody_up(one_gpu: Cli, debian: str) -> None:
    whole, one_gpu.command = one_gpu.command, (sys.executable, "-c", text_of(vgpurun_without_removal))
    assert one_gpu("run", *one_gpu.driver, "--mem", "8g", debian, "no-such-command").exit_code == 127
    (left,) = one_gpu.containers()
    assert one_gpu.states() == [left.labels["vgpurun.state"]]
    one_gpu.command = whole
    assert one_gpu.run("--mem", "8g", debian, "true").exit_code == 0
    one_gpu.assert_nothing_left()


def vgpurun_without_lock() -> None:
    """Before it makes its container, it waits in the folder that the first argument names until another does, too."""
    make, meeting = LaunchEngine.create, Path(sys.argv.pop(1))

    def make_together(
        engine: LaunchEngine, options: ContainerOptions, body: dict[str, Any], folder: Path
    ) -> tuple[str, list[str]]:
        (meeting / str(options.name)).touch()
        while len(list(meeting.iterdir())) < 2:  # both have looked, and have found room
            time.sleep(0.01)
        return make(engine, options, body, folder)

    with patch.object(LaunchEngine, "create", make_together), patch.object(controller, "admission_lock", nullcontext):
        sys.exit(cli.main(sys.argv[1:]))


def test_two_that_look_at_the_same_time_without_a_lock_see_each_other_in_the_end(
    one_gpu: Cli, debian: str, tmp_path: Path
) -> None:
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    one_gpu.command = (sys.executable, "-c", text_of(vgpurun_without_lock), str(meeting))
    with ExitStack() as stack:
        run = ("run", *one_gpu.driver, "-d", "--mem", "5g", "--name")
        launches = [
            stack.enter_context(one_gpu.started(*run, name, debian, "sleep", "300")) for name in ("first", "second")
        ]
        ended = [(process.communicate(timeout=100), process.returncode) for process in launches]
    refused = [stderr for (_, stderr), code in ended if code == 125]
    assert refused and all("no room for --mem 5g" in stderr for stderr in refused), ended
    left = [each.status for each in one_gpu.containers()]
    assert left == ["running"] * (2 - len(refused))
    assert len(one_gpu.states()) == len(left)


def test_an_update_to_more_needs_room_and_one_to_less_does_not(one_gpu: Cli, debian: str) -> None:
    hold(one_gpu, debian, "holder", "--mem", "5g", "--sm", "60")
    hold(one_gpu, debian, "other", "--mem", "2g", "--sm", "20")
    update = ("update", *one_gpu.driver)
    assert one_gpu(*update, "--mem", "3g", "other").exit_code == 0
    result = one_gpu(*update, "--mem", "4g", "other")
    assert result.exit_code == 125
    reason, way_out = "no room for --mem 4g on GPU 0: 3 GiB is free", "ask for less, or share regardless"
    assert f"{reason}; {way_out} with --overcommit\n" in result.stderr, "a change does not wait"
    assert "no room for --sm 50 on GPU 0: 40 % of its time" in one_gpu(*update, "--sm", "50", "other").stderr
    assert one_gpu(*update, "--overcommit", "--mem", "6g", "other").exit_code == 0
    assert one_gpu(*update, "--mem", "4g", "other").exit_code == 0, "still too much, but less than before"


ADMIN = """
defaults: {mem: 1g, place: binpack}
quotas:
  default: {memory_per_gpu: 3g, containers: 2, overcommit: false}
  users:
    nobody: {gpus: [1]}
"""


def test_quotas_and_defaults_of_the_administrator(two_gpus: Cli, debian: str, tmp_path: Path) -> None:
    (tmp_path / "admin.yaml").write_text(ADMIN)
    two_gpus.command = (sys.executable, "-c", WITH_ADMIN_FILE, str(tmp_path / "admin.yaml"))
    hold(two_gpus, debian, "first")
    quota = quotas_from_json(two_gpus.owner("first")["quota"])
    assert [each.memory_bytes for _, each in quota] == [1 << 30]
    two_gpus.run("--mem", "4g", debian, "true").assert_refused("4 GiB", "3 GiB for user root", "admin.yaml:4")
    two_gpus.run("--overcommit", debian, "true").assert_refused("user root", "may not use --overcommit")
    hold(two_gpus, debian, "second", "--mem", "3g")
    assert sorted(gpus_of(two_gpus).values()) == [1, 1], "3 GiB and 1 GiB are too much for root on one GPU"
    result = two_gpus.run(debian, "true")
    assert result.exit_code == 125
    assert "2 of the 2 for user root (containers" in result.stderr
    assert "second  root" in result.stderr
    two_gpus.environment["SUDO_UID"] = str(pwd.getpwnam("nobody").pw_uid)
    hold(two_gpus, debian, "of-nobody")
    mine = two_gpus.owner("of-nobody")
    assert mine["user"] == "nobody"
    assert quotas_from_json(mine["quota"])[0][0].endswith("000000000001")
    two_gpus.run("--gpus", "device=0", debian, "true").assert_refused("user nobody", "may not use GPU 0")
