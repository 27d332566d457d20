"""Shares that are moved to other GPUs while their programs run, on simulated GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support import assert_refused
from support.suspension import PATTERNS, Host, Program

HELD_MIB = 100 + 4 + 2 + 6
ABOUT_GPU_1 = ("--mem", "1500m", "--gpus", "device=1")


def launch(host: Host, *options: str) -> subprocess.CompletedProcess[str]:
    return host.vgpurun("local", "--driver", "sim", *options, "--", "true")


def test_it_goes_on_on_the_other_gpu(host: Host, start: Callable[..., Program]) -> None:
    program = start("--mem", "1g", "--gpus", "device=0")
    assert program.asks("uuid") == host.uuids[0]
    done = program.move("1")
    expected = f"process {program.pid}: GPU 0 -> GPU 1, {HELD_MIB} MiB moved\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
    assert host.used_mib() == [0, HELD_MIB]
    assert program.asks("check") == "right 4"
    assert program.asks("uuid") == host.uuids[1]
    assert program.asks("alloc 50") == "held"
    assert host.used_mib() == [0, HELD_MIB + 50]
    assert program.move("device=0").returncode == 0
    assert program.asks("check") == "right 5"
    assert host.used_mib() == [HELD_MIB + 50, 0]
    assert not (program.folder / "suspension").exists()


def test_its_reservation_goes_with_it(host: Host, start: Callable[..., Program]) -> None:
    program = start("--mem", "1500m", "--sm", "60", "--gpus", "device=0")
    assert launch(host, *ABOUT_GPU_1).returncode == 0
    assert program.move("1").returncode == 0
    assert_refused(launch(host, *ABOUT_GPU_1), "548 MiB is free")
    assert_refused(launch(host, "--sm", "50", "--mem", "100m", "--gpus", "device=1"), "40 % of its time is free")
    assert launch(host, "--mem", "2g", "--gpus", "device=0").returncode == 0


def test_its_memory_limit_holds_there(host: Host, start: Callable[..., Program]) -> None:
    program = start("--mem", "300m", "--gpus", "device=0")
    assert program.move("1").returncode == 0
    assert program.asks("take 150") == "taken"
    program.tell("take 100")
    assert program.hears() == "", "it is out of memory"
    program.process.wait(10)


def test_no_room_there(host: Host, start: Callable[..., Program]) -> None:
    program = start("--mem", "1g", "--gpus", "device=0")
    other = start(*ABOUT_GPU_1)
    assert_refused(program.move("1"), "no room for --mem 1g on GPU 1: 548 MiB is free")
    assert program.asks("check") == "right 4"
    assert host.used_mib() == [HELD_MIB, HELD_MIB]
    waiting = host.start("move", "--driver", "sim", "--gpus", "1", "--wait=60s", "--process", program.pid)
    assert "in place 1 of the queue" in waiting.stderr.readline()
    other.end()
    assert waiting.communicate(timeout=60)[0].endswith("GPU 0 -> GPU 1, 112 MiB moved\n")
    assert program.asks("check") == "right 4"


def test_memory_there_that_others_use(host: Host, start: Callable[..., Program]) -> None:
    """A driver that finds too little would never bring it back."""
    program = start("--mem", "1500m", "--gpus", "device=0")
    assert program.asks("take 1200") == "taken"
    other = start("--gpus", "device=1")
    assert other.asks("take 1000") == "taken"
    assert_refused(program.move("1", "--overcommit"), "is not in use there")
    assert program.asks("check") == "right 4"
    assert program.asks("uuid") == host.uuids[0]
    assert launch(host, "--mem", "2g", "--gpus", "device=0").returncode == 125, "it has its room still"


def test_what_cannot_be_moved(host: Host, start: Callable[..., Program]) -> None:
    program = start("--mem", "1g", "--gpus", "device=0")
    for gpus, message in (
        ("0", "is on GPU 0 already"),
        ("0,1", "has 1 GPU; name as many"),
        ("7", "no GPU '7' among 0, 1"),
        ("all", "no GPU 'all' among 0, 1; use indexes as nvidia-smi shows them, or UUIDs, with commas"),
    ):
        refused = program.move(gpus)
        assert (refused.returncode, message in refused.stderr) == (125, True), refused.stderr
    assert program.suspend("--hold").returncode == 0
    assert_refused(program.move("1"), "is suspended; resume it first")
    assert program.resume().returncode == 0
    assert program.asks("share") == "shared"
    assert_refused(program.move("1"), "CUDA IPC")
    assert program.asks("check") == "right 4"
    assert program.asks("uuid") == host.uuids[0]
    assert host.used_mib() == [HELD_MIB, 0]
    assert_refused(host.vgpurun("move", "--driver", "sim", "--gpus", "1"), "name a container")


def test_shares_within_shares_stay(host: Host, start: Callable[..., Program]) -> None:
    within = ("--", sys.executable, "-m", "vgpurun", "local", "--driver", "sim", "--mem", "1g")
    whole = start("--mem", "1800m", "--gpus", "device=0", *within)
    part = ("move", "--driver", "sim", "--gpus", "1", "--process", str(whole.child()))
    for refused, message in (
        (host.vgpurun(*part), "is a part of another share, and stays on that one's GPUs"),
        (whole.move("1"), "has given a part of its share away"),
    ):
        assert (refused.returncode, message in refused.stderr) == (125, True), refused.stderr
    assert whole.asks("check") == "right 4"
    assert whole.asks("uuid") == host.uuids[0]


def test_another_kind_of_gpu(host: Host, start: Callable[..., Program]) -> None:
    config = host.folder / "sim.yaml"
    config.write_text(config.read_text().replace(f"- uuid: {host.uuids[1]}", f"- uuid: {host.uuids[1]}\n  name: Other"))
    program = start("--mem", "1g", "--gpus", "device=0")
    assert_refused(program.move("1"), "they are of different kinds (Simulated GPU, Other)")
    assert program.asks("check") == "right 4"


def test_a_program_that_starts_afterwards(host: Host, start: Callable[..., Program]) -> None:
    """Its environment names the GPU that the share had at first: it finds the one that it has now."""
    assert host.vgpurun(
        "slice", "create", "team", "--driver", "sim", "--mem", "1500m", "--gpus", "device=0", "--movable"
    ).returncode == 0  # fmt: skip
    first = start("--slice", "team")
    environment = Path(f"/proc/{first.child()}/environ").read_text().split("\0")
    variables = dict(each.partition("=")[::2] for each in environment if each)
    assert variables["CUDA_VISIBLE_DEVICES"] == host.uuids[0]
    for gpu in ("1", "0", "1"):
        assert host.vgpurun("move", "--driver", "sim", "--gpus", gpu, "--slice", "team").returncode == 0
        assert first.asks("check") == "right 4"
        for named in (
            host.uuids[0],
            "0",
            "1",
        ):  # an index that it has set itself is one of the host's, by then or before
            again = subprocess.run(
                [sys.executable, "-u", str(PATTERNS)], env={**variables, "CUDA_VISIBLE_DEVICES": named}, input="uuid\n",
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert again.stdout.split() == ["ready", host.uuids[int(gpu)]], again.stderr
    (shown,) = json.loads(host.vgpurun("slice", "inspect", "--driver", "sim", "team").stdout)
    assert [each["uuid"] for each in shown["devices"]] == [host.uuids[1]]


@pytest.mark.slow
def test_indexes_in_a_share_of_two_that_has_moved(built_library: Path, tmp_path: Path) -> None:
    """Each names one of the share's GPUs, and none of them another's."""
    host = Host(tmp_path, count=4)
    made = host.vgpurun(
        "slice", "create", "team", "--driver", "sim", "--mem", "1g", "--gpus", "device=0,1", "--movable"
    )
    assert made.returncode == 0, made.stderr
    code = (
        "from cuda_driver import Driver; d = Driver(); d.init()\n"
        "print(*(d.device_uuid(number) for number in range(d.device_count())))"
    )
    for gpus in ("2,3", "1,3"):
        assert host.vgpurun("move", "--driver", "sim", "--gpus", gpus, "--slice", "team").returncode == 0
        first, second = (host.uuids[int(number)] for number in gpus.split(","))
        for named, seen in (
            ("0,1", [first, second]),
            ("1,0", [second, first]),
            ("2,3", [first, second]),
            ("7", [first]),
        ):
            command = ("env", f"CUDA_VISIBLE_DEVICES={named}", sys.executable, "-c", code)
            done = host.vgpurun("local", "--driver", "sim", "--slice", "team", "--", *command)
            assert done.stdout.split() == seen, (gpus, named, done.stderr)


def test_a_program_that_has_started_cuda_alone(host: Host, start: Callable[..., Program]) -> None:
    """The program holds nothing of any GPU, and comes along."""
    code = (
        "import sys; from cuda_driver import Driver; d = Driver(); d.call('cuInit', 0); print('ready', flush=True)\n"
        "sys.stdin.readline(); d.start(0); print(d.device_uuid(), d.mem_alloc(1 << 20) > 0, flush=True)"
    )
    process = host.start(
        "local", "--driver", "sim", "--mem", "1g", "--gpus", "device=0", "--", sys.executable, "-c", code
    )
    try:
        assert process.stdout.readline() == "ready\n"
        assert host.vgpurun("move", "--driver", "sim", "--gpus", "1", "--process", str(process.pid)).returncode == 0
    finally:
        said, _ = process.communicate("\n", timeout=30)
    assert said == f"{host.uuids[1]} True\n"
