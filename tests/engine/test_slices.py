"""Containers that join a slice share its memory and its time, and a slice holds its place whether they run or not."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli
from in_step import told
from support import WITH_ADMIN_FILE, wait_until
from vgpurun.limits import usage_file
from vgpurun.util.users import current_user

MIB, GIB = 1 << 20, 1 << 30
SIM = ("--driver", "sim")
OUT_OF_MEMORY = 2


@pytest.fixture
def cli(own_gpu: Cli) -> Cli:
    return own_gpu


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder in which containers are told to go on, and tell what they got."""
    path = tmp_path / "steps"
    path.mkdir()
    yield path
    (path / "end").touch()


def create(cli: Cli, name: str, *limits: str) -> None:
    result = cli("slice", "create", *SIM, name, *limits)
    assert (result.exit_code, result.stdout) == (0, f"{name}\n"), result


def inspect(cli: Cli, name: str) -> dict:
    result = cli("slice", "inspect", *SIM, name)
    assert result.exit_code == 0, result
    return json.loads(result.stdout)[0]


def start(cli: Cli, image: str, slice_name: str, name: str, *options: str) -> None:
    command = (image, *GPU_PROGRAM, "member", "/steps") if options else (image, "sleep", "300")
    assert cli.run("-d", "--name", name, "--slice", slice_name, *options, *command).exit_code == 0


def test_a_user_sees_what_a_member_uses(cli: Cli, debian: str, as_nobody: tuple[str, ...]) -> None:
    """Its PID namespace is root's to see, and the driver's count is everybody's."""
    with TemporaryDirectory(prefix="vgpurun-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        environment = {**cli.environment, "VGPURUN_STATE_DIR": folder, "VGPUSIM_CONFIG": f"{folder}/sim.yaml"}
        shutil.copy(cli.environment["VGPUSIM_CONFIG"], environment["VGPUSIM_CONFIG"])
        Path(environment["VGPUSIM_CONFIG"]).chmod(0o644)
        root = replace(cli, environment=environment, state_dir=Path(folder))
        nobody = replace(root, command=as_nobody, environment={**environment, "HOME": "/nonexistent"})
        Path(cli.environment["DOCKER_HOST"].removeprefix("unix://")).chmod(0o660)
        create(root, "team", "--mem", "4g")
        hold = ("--slice", "team", *WITH_PROGRAMS, debian, *GPU_PROGRAM, "hold", str(200 * MIB))
        assert root.run("-d", "-i", "--name", "mine", *hold).exit_code == 0
        root.wait_for_output("mine", b"holding")
        listed = nobody("ps", *SIM)
        assert listed.exit_code == 0 and "718 MiB / 4 GiB" in listed.stdout, listed
        (member,) = json.loads(nobody("slice", "inspect", *SIM, "team").stdout)[0]["members"]
        assert member["memory_used_bytes"] == [718 * MIB]
        root("rm", "-f", "mine")


def test_ten_containers_never_pass_the_memory_together_and_share_the_compute(
    cli: Cli, debian: str, folder: Path
) -> None:
    create(cli, "ten", "--mem", "8g", "--sm", "50")
    usage = cli.state_dir / "slices" / "ten" / "run" / "usage"
    for number in range(10):
        start(cli, debian, "ten", f"member{number}", *WITH_PROGRAMS, "-v", f"{folder}:/steps")
    told(folder, "started", 10)
    (folder / "fill").touch()
    most_bytes = 0
    while len(list(folder.glob("filled.????????????"))) < 10:
        (reading,) = usage_file.read_usage(usage, ["-"]) or ()
        most_bytes = max(most_bytes, reading.memory_used_bytes)
        time.sleep(0.001)  # they want the CPU too
    filled = told(folder, "filled", 10)
    assert {each["result"] for each in filled} == {OUT_OF_MEMORY}
    shown = inspect(cli, "ten")
    held_bytes = shown["devices"][0]["memory_used_bytes"]
    assert most_bytes <= 8 * GIB
    assert 8 * GIB - 20 * MIB < held_bytes <= 8 * GIB, "all of it is had by somebody"
    parts = [each["memory_used_bytes"][0] for each in shown["members"]]
    assert len(parts) == 10 and sum(parts) == held_bytes
    overhead_bytes = shown["devices"][0]["memory_overhead_bytes"]
    assert sum(each["bytes"] for each in filled) == held_bytes - overhead_bytes
    (folder / "free").touch()
    (folder / "spin").touch()
    spun = told(folder, "spun", 10)
    work_s = sum(each["launches"] for each in spun) * 0.002
    # They need not have begun together on a busy machine; all of them have the same clock.
    lasted_s = max(each["ended_s"] for each in spun) - min(each["began_s"] for each in spun)
    assert 0.2 * lasted_s < work_s < 0.55 * lasted_s + 0.1, (work_s, lasted_s)


def test_a_slice_holds_its_place_once(cli: Cli, debian: str) -> None:
    create(cli, "whole", "--mem", "12g", "--sm", "60")
    refused = cli.run("--mem", "5g", debian, "true")
    assert refused.exit_code == 125
    assert "4 GiB is free" in refused.stderr and "slice whole  root" in refused.stderr
    for number in range(3):
        start(cli, debian, "whole", f"in{number}")
    assert cli.run("--mem", "4g", "--sm", "40", debian, "true").exit_code == 0
    assert "no room" in cli("slice", "create", *SIM, "more", "--mem", "5g").stderr
    assert cli("slice", "rm", *SIM, "whole").exit_code == 125
    for container in cli.containers():
        container.remove(force=True)
    assert cli("slice", "rm", *SIM, "whole").exit_code == 0
    assert cli.run("--mem", "16g", debian, "true").exit_code == 0


def test_the_limits_are_the_slices(cli: Cli, debian: str) -> None:
    create(cli, "small", "--mem", "1g")
    in_it = ("--slice", "small", *WITH_PROGRAMS, "-e", "CUDA_DEVICE_MEMORY_LIMIT=8g", debian, *GPU_PROGRAM, "info")
    assert cli.run(*in_it).json()["devices"][0]["total"] == GIB
    for option in (("--gpus", "all"), ("--wait",), ("--overcommit",)):
        cli.run(*option, "--slice", "small", debian, "true").assert_refused(option[0], "leave it out\n")
    for option in (("--sm-policy", "burst"), ("--priority", "low")):
        cli.run(*option, "--slice", "small", debian, "true").assert_refused(option[0], "vgpurun slice update small")
    cli.run("--slice", "none", debian, "true").assert_refused("there is no slice 'none' (existing: small)")
    cli.assert_nothing_left()


def test_an_update_is_seen_by_all_that_run_in_it(cli: Cli, debian: str, folder: Path) -> None:
    create(cli, "both", "--mem", "2g")
    for name in ("one", "two"):
        start(cli, debian, "both", name, *WITH_PROGRAMS, "-v", f"{folder}:/steps")
    told(folder, "started", 2)
    assert "2 GiB, 100 % -> 3 GiB, 100 %" in cli("slice", "update", *SIM, "--mem", "3g", "both").stdout
    (folder / "fill").touch()
    granted = sum(each["bytes"] for each in told(folder, "filled", 2))
    assert 3 * GIB - 2 * 518 * MIB - 40 * MIB < granted <= 3 * GIB - 2 * 518 * MIB
    assert "holds" in cli("slice", "update", *SIM, "--mem", "1g", "both").stderr
    cli("update", *SIM, "--mem", "1g", "one").assert_refused("one is in slice both", "vgpurun slice update both")
    assert inspect(cli, "both")["devices"][0]["memory_limit_bytes"] == GIB


def test_one_in_use_is_kept_unless_all_is_taken_from_it(cli: Cli, debian: str, folder: Path) -> None:
    create(cli, "used", "--mem", "2g")
    start(cli, debian, "used", "user", *WITH_PROGRAMS, "-v", f"{folder}:/steps")
    told(folder, "started", 1)
    cli("slice", "rm", *SIM, "used").assert_refused("slice used is in use by user", "--force")
    cli.engine.containers.get("user").pause()
    cli("slice", "rm", *SIM, "used").assert_refused("in use by user")
    cli.engine.containers.get("user").unpause()
    forced = cli("slice", "rm", *SIM, "--force", "used")
    assert (forced.exit_code, forced.stdout) == (0, "used\n")
    assert "user was in slice used, and is granted nothing more" in forced.stderr
    (folder / "fill").touch()
    assert told(folder, "filled", 1) == [{"bytes": 0, "result": OUT_OF_MEMORY}]
    late = cli.engine.containers.get("user").exec_run([*GPU_PROGRAM, "fill", str(MIB)])
    assert late.exit_code != 0 and b"nothing is granted" in late.output, "what starts now finds no limits file"
    assert cli("slice", "ls", *SIM, "-q").stdout == ""


def test_a_stopped_container_keeps_its_slice(cli: Cli, debian: str) -> None:
    create(cli, "kept", "--mem", "2g")
    start(cli, debian, "kept", "stopped")
    container = cli.engine.containers.get("stopped")
    container.kill()
    cli("slice", "rm", *SIM, "kept").assert_refused("in use by stopped")
    container.start()
    container.remove(force=True)
    assert cli("slice", "rm", *SIM, "kept").exit_code == 0


def test_smi_and_ps_show_the_slice_and_its_containers(cli: Cli, debian: str, folder: Path) -> None:
    create(cli, "shown", "--mem", "4g", "--sm", "30")
    start(cli, debian, "shown", "one", *WITH_PROGRAMS, "-v", f"{folder}:/steps")
    start(cli, debian, "shown", "idle")
    told(folder, "started", 1)
    with cli.started("local", *SIM, "--slice", "shown", "--", "sleep", "60") as process:
        wait_until(lambda: len(inspect(cli, "shown")["members"]) == 3, "the local process")
        rows = [line.split() for line in cli("smi", *SIM).stdout.splitlines()]
        (of_slice,) = [row for row in rows if row[:5] == ["slice", "shown", current_user(), "3", "members"]]
        assert of_slice[5:10] == ["518", "MiB", "/", "4", "GiB"]
        below = rows[rows.index(of_slice) + 1 :][:3]
        assert {row[0] for row in below} == {"one", "idle", "process"}
        assert [row[3:] for row in below if row[0] == "one"] == [["518", "MiB"]]
        shown = json.loads(cli("smi", *SIM, "--format", "json").stdout)
        assert [each["name"] for each in shown["slices"]] == ["slice shown"]
        assert {each["slice"] for each in (*shown["containers"], *shown["processes"])} == {"shown"}
        listed = cli("ps", *SIM, "--filter", "slice=shown", "--format", "{{.Names}} {{.Memory}} of {{.MemoryLimit}}")
        local = f"process {process.pid} 0 bytes of 4 GiB"
        assert set(listed.stdout.splitlines()) == {"one 518 MiB of 4 GiB", "idle 0 bytes of 4 GiB", local}
        table = cli("slice", "ls", *SIM).stdout.splitlines()
        assert table[1].split()[:6] == ["shown", "0", "518", "MiB", "/", "4"]
        process.terminate()  # which its child is told
        assert process.wait(60) == 128 + signal.SIGTERM


def test_two_creates_at_once_make_one(cli: Cli) -> None:
    command = ("slice", "create", *SIM, "same", "--mem", "1g")
    with ExitStack() as stack:
        makers = [stack.enter_context(cli.started(*command)) for _ in range(6)]
        ended = [(process.communicate(timeout=60), process.returncode) for process in makers]
    assert Counter(code for _, code in ended) == {0: 1, 125: 5}, ended
    assert all("already" in stderr for (_, stderr), code in ended if code)
    assert [path.name for path in (cli.state_dir / "slices").iterdir()] == ["same"]


def test_creates_at_once_are_reserved_no_more_than_there_is(cli: Cli) -> None:
    with ExitStack() as stack:
        commands = [("slice", "create", *SIM, f"s{number}", "--mem", "5g") for number in range(6)]
        makers = [stack.enter_context(cli.started(*command)) for command in commands]
        codes = Counter(process.wait(60) for process in makers)
    assert codes == {0: 3, 125: 3}
    assert len(cli("slice", "ls", *SIM, "-q").stdout.split()) == 3


def test_a_killed_create_leaves_a_slice_or_nothing(cli: Cli) -> None:
    slices = cli.state_dir / "slices"
    for number in range(5):
        with cli.started("slice", "create", *SIM, "killed", "--mem", "16g") as process:
            # From the moment that something is there on, in ever other states.
            wait_until(lambda: process.poll() is not None or (slices.exists() and any(slices.iterdir())), "folder")
            time.sleep(0.003 * number)
            process.send_signal(signal.SIGKILL)
        assert cli("prune").exit_code == 0
        left = [path.name for path in slices.iterdir()]
        assert left in ([], ["killed"]), left
        if left:
            assert inspect(cli, "killed")["devices"][0]["memory_limit_bytes"] == 16 * GIB
            assert cli("slice", "rm", *SIM, "killed").exit_code == 0
    create(cli, "after", "--mem", "16g")


def test_quotas_are_of_who_makes_it(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "admin.yaml").write_text("quotas: {default: {memory_per_gpu: 3g}}\n")
    cli.command = (cli.command[0], "-c", WITH_ADMIN_FILE, str(tmp_path / "admin.yaml"))
    cli("slice", "create", *SIM, "much", "--mem", "4g").assert_refused("4 GiB", "3 GiB for user root")
    create(cli, "some", "--mem", "2g")
    assert "2 GiB of the 3 GiB for user root" in cli("slice", "create", *SIM, "rest", "--mem", "2g").stderr


def test_a_launch_that_fails_leaves_the_slice_free(cli: Cli, debian: str) -> None:
    create(cli, "free", "--mem", "2g")
    assert cli.run("--slice", "free", debian, "/nothing").exit_code == 127
    cli.assert_nothing_left()
    assert cli("slice", "rm", *SIM, "free").exit_code == 0
