"""Memory limits of the driver's own: set before a container's first program, whatever it loads, and gone with it.

The simulated driver has them from version 615 on, by cgroups of the v2 hierarchy, which a private engine uses here.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import pytest

import images
from cli import GPU_PROGRAM, PROGRAMS, WITH_PROGRAMS, Cli, cli_beside
from escapes import HOSTILE, PAST_THE_LIBRARY, command, past_programs
from private_engine import lose_engine, private_engine, start_again
from support import ROUNDS, wait_until
from support.programs import text_of
from vgpurun.host import gpus, memory_limits
from vgpurun.host.visible import activate_simulation

pytestmark = pytest.mark.slow

MIB = 1 << 20
LIMIT_MIB = 1024
FILL = f"python3 /programs/gpu.py fill {2 * MIB}"
# The first device's memory limit, behind the head and the UUID (lib/src/abi.h).
FORGE = (
    'limits = bytearray(open("/.vgpurun/etc/limits", "rb").read()); limits[112:120] = (8 << 30).to_bytes(8, "little"); '
    'open("/forged", "wb").write(limits)'
)
# The library holds these by itself, or is made to let them pass.
BY_THE_LIBRARY = {
    "none": "FILL",
    "no environment": "env -i FILL",
    "forged limits": f"python3 -c '{FORGE}' && mount --bind /forged /.vgpurun/etc/limits && FILL",
    "forged usage": "dd if=/dev/zero of=/.vgpurun/run/usage bs=1M count=64 conv=notrunc status=none; FILL",
}
ALL = BY_THE_LIBRARY | PAST_THE_LIBRARY
# An escape that leaves its container other than it was has one of its own.
ALONE = ("forged limits", "forged usage", "renamed library", "unmounted preload", "emptied preload",
         "unmounted library", "hidden library", "another user", "a cgroup below")  # fmt: skip


@pytest.fixture
def cli(cli_v2: Cli) -> Cli:
    return cli_v2


def cgroups(cli: Cli) -> list[str]:
    """Return the cgroups of containers that are left."""
    engine = Path(cli.environment["DOCKER_HOST"]).parent.name
    command = [*cli.command[:3], "find", f"/sys/fs/cgroup/{engine}", "-mindepth", "1", "-type", "d"]
    return subprocess.run(command, capture_output=True, text=True).stdout.split()


def device(cli: Cli, name: str) -> dict[str, object]:
    (described,) = json.loads(cli("inspect", "--driver", "sim", name).stdout)
    (found,) = described["devices"]
    return dict(found)


@pytest.mark.parametrize(
    "escapes",
    [
        [each for each in ALL if each not in ALONE],
        *(pytest.param([each], marks=pytest.mark.exhaustive) for each in ALONE),
    ],
    ids=["those that change nothing", *ALONE],
)
def test_nothing_gets_past_the_drivers_own_limit(cli: Cli, debian_v2: str, escapes: Sequence[str]) -> None:
    """The escapes run one after the other in a container."""
    commands = [command(ALL[each], "fill", str(2 * MIB), "0") for each in escapes]
    past = ("-v", f"{past_programs()}:/past:ro")
    options = ("--mem", f"{LIMIT_MIB}m", "--enforce", "driver", *HOSTILE, *WITH_PROGRAMS, *past)
    tried = cli.run(*options, debian_v2, "sh", "-c", "; ".join(map(shlex.join, commands)))
    answers = tried.stdout.splitlines()
    assert len(answers) == len(escapes), tried
    for escape, answer in zip(escapes, answers, strict=True):
        filled = json.loads(answer)
        with_context = filled["granted_bytes"] // MIB + 518
        assert filled["result"] == 2 and LIMIT_MIB - 2 <= with_context <= LIMIT_MIB, (escape, answer)


def test_several_processes_have_it_together(cli: Cli, debian_v2: str) -> None:
    hold = f"python3 /programs/gpu.py hold {300 * MIB}"
    holders = "".join(f"sleep 60 | {hold} >/tmp/{name} & " for name in "ab")
    script = f"umount /etc/ld.so.preload; {holders} until [ -s /tmp/a ] && [ -s /tmp/b ]; do sleep 0.1; done; {FILL}"
    filled = cli.run("--mem", "3g", *HOSTILE, *WITH_PROGRAMS, debian_v2, "sh", "-c", script).json()
    assert 3072 - 2 <= filled["granted_bytes"] // MIB + 2 * 300 + 3 * 518 <= 3072


def test_the_library_alone_does_not_hold_without_it(cli: Cli, debian_v2: str) -> None:
    """The attempts of the tests above would succeed otherwise."""
    options = ("--mem", f"{LIMIT_MIB}m", "--enforce", "library", *HOSTILE, *WITH_PROGRAMS)
    filled = cli.run(*options, debian_v2, "sh", "-c", f"umount /etc/ld.so.preload; {FILL}").json()
    assert filled["granted_bytes"] // MIB > 15000


def test_programs_see_one_view(cli: Cli, debian_v2: str) -> None:
    (seen,) = cli.run("--mem", "2g", *WITH_PROGRAMS, debian_v2, *GPU_PROGRAM, "info").json()["devices"]
    assert (seen["total"], seen["nvml_total"]) == (2048 * MIB, 2048 * MIB)


def test_update_in_both_directions(cli: Cli, debian_v2: str) -> None:
    hold = ("-d", "-i", "--name", "held", "--mem", "2g", *WITH_PROGRAMS, debian_v2, *GPU_PROGRAM)
    assert cli.run(*hold, "hold", str(600 * MIB)).exit_code == 0
    cli.wait_for_output("held", b"holding")
    assert device(cli, "held")["memory_limit_driver_bytes"] == 2048 * MIB
    for size in ("4g", "1500m"):
        changed = cli("update", "--driver", "sim", "--mem", size, "held")
        assert (changed.exit_code, changed.stderr) == (0, "")
    assert device(cli, "held")["memory_limit_driver_bytes"] == 1500 * MIB
    lowered = cli("update", "--driver", "sim", "--mem", "1g", "held")
    assert lowered.exit_code == 0
    assert "the driver's own limit on GPU 0 stays at 1.46 GiB: 1.09 GiB is in use" in lowered.stderr
    found = device(cli, "held")
    assert (found["memory_limit_bytes"], found["memory_limit_driver_bytes"]) == (1024 * MIB, 1500 * MIB)
    assert (
        "held, GPU 0: the driver itself holds the memory limit too, for now to 1.46 GiB"
        in cli("smi", "--driver", "sim").stdout
    )
    assert cli("update", "--driver", "sim", "--mem", "1200m", "held").exit_code == 0
    assert device(cli, "held")["memory_limit_driver_bytes"] == 1200 * MIB


def print_the_drivers_limits() -> None:
    activate_simulation()
    (gpu,) = gpus.list_gpus()
    found = memory_limits.read(gpu, memory_limits.cgroup_of(int(sys.argv[1])))
    print(found.guaranteed_bytes >> 20, found.most_bytes >> 20)


def limits_of(cli: Cli, name: str) -> str:
    """Return what the driver itself guarantees a container and lets it have, in MiB."""
    pid = cli.engine.containers.get(name).attrs["State"]["Pid"]
    command = [*cli.command[:3], sys.executable, "-c", text_of(print_the_drivers_limits), str(pid)]
    return subprocess.run(command, env=cli.environment, capture_output=True, text=True, check=True).stdout.strip()


def test_what_is_guaranteed_is_reserved_and_the_soft_limit(cli: Cli, debian_v2: str) -> None:
    for number in (1, 2):
        assert cli.run("-d", "--name", f"held{number}", "--mem", "8g:12g", debian_v2, "sleep", "60").exit_code == 0
    assert "no room for --mem 1g on GPU 0: 0 bytes is free" in cli.run("--mem", "1g", debian_v2, "true").stderr
    found = device(cli, "held1")
    assert (found["memory_guaranteed_bytes"], found["memory_limit_bytes"]) == (8192 * MIB, 12288 * MIB)
    assert "/ 8 GiB:12 GiB" in cli("ps", "--driver", "sim").stdout
    assert limits_of(cli, "held1") == "8192 12288"
    changed = cli("update", "--driver", "sim", "--mem", "6g:10g", "held1")
    assert "8 GiB:12 GiB, 100 % -> 6 GiB:10 GiB, 100 %" in changed.stdout
    assert limits_of(cli, "held1") == "6144 10240"
    assert cli.run("--mem", "1g:2g", debian_v2, "true").exit_code == 0


def test_the_toolkits_variables(cli: Cli, debian_v2: str) -> None:
    """They are limits, and say in the container what it is held to."""
    variables = ("-e", "NVIDIA_GPU_MEMORY_LIMIT=4096", "-e", "NVIDIA_GPU_MEMORY_REQUEST=1024")
    assert cli.run("-d", "--name", "held", *variables, "--mem", "3g", debian_v2, "sleep", "60").exit_code == 0
    assert limits_of(cli, "held") == "1024 3072"
    seen = cli("exec", "held", "sh", "-c", "echo $NVIDIA_GPU_MEMORY_REQUEST $NVIDIA_GPU_MEMORY_LIMIT")
    assert seen.stdout == "1024 3072\n"


def test_a_slices_device_has_it_without_vgpurun(cli: Cli, debian_v2: str, host_v2: str) -> None:
    """Each container of a slice is held by the driver to what the slice has; an update reaches all of them."""
    assert cli("slice", "create", "--driver", "sim", "--mem", "1g", "alice").exit_code == 0
    folder = Path(host_v2.removeprefix("unix://")).parent / "cdi"
    assert cli("cdi", "generate", "--driver", "sim", "-o", str(folder / "vgpurun.yaml")).exit_code == 0
    request = docker.types.DeviceRequest(driver="cdi", device_ids=["vgpurun.io/gpu=alice"])
    loop = ["sh", "-c", f"umount /etc/ld.so.preload; {FILL}; sleep 60"]
    container = cli.engine.containers.run(
        debian_v2, loop, detach=True, device_requests=[request], network_mode="none", cap_add=["SYS_ADMIN"],
        security_opt=["apparmor=unconfined", "seccomp=unconfined"], volumes=[f"{PROGRAMS}:/programs:ro"],
    )  # fmt: skip
    try:
        wait_until(lambda: b"granted" in container.logs(), "the program's answer")
        filled = json.loads(container.logs(stderr=False))
        assert LIMIT_MIB - 2 <= filled["granted_bytes"] // MIB + 518 <= LIMIT_MIB
        assert cli("slice", "update", "--driver", "sim", "--mem", "3g", "alice").exit_code == 0
        assert limits_of(cli, container.id) == "0 3072"
    finally:
        container.remove(force=True)
        cli("cdi", "remove", "--driver", "sim")
    assert cli("slice", "rm", "--driver", "sim", "alice").exit_code == 0
    assert not list(folder.glob("vgpurun.yaml"))


def test_a_restart_sets_it_again(cli: Cli, debian_v2: str) -> None:
    loop = ("sh", "-c", f"umount /etc/ld.so.preload; {FILL}; sleep 60")
    assert cli.run("-d", "--name", "again", "--mem", "1g", *HOSTILE, *WITH_PROGRAMS, debian_v2, *loop).exit_code == 0
    container = cli.engine.containers.get("again")
    wait_until(lambda: container.logs().count(b"granted") == 1, "first run")
    container.restart(timeout=0)
    wait_until(lambda: container.logs().count(b"granted") == 2, "second run")
    for line in container.logs(stderr=False).splitlines():
        assert json.loads(line)["granted_bytes"] // MIB + 518 <= 1024
    assert device(cli, "again")["memory_limit_driver_bytes"] == 1024 * MIB


@pytest.mark.exhaustive  # tests/sim/test_memory_limits.py shows that limits go with their cgroup
@pytest.mark.usefixtures("cli")  # which skips where there is no cgroup v2
@pytest.mark.parametrize("flags", [(), ("--live-restore",)], ids=["ends its containers", "leaves them alone"])
def test_an_engine_that_is_killed(built_library: Path, tmp_path: Path, flags: Sequence[str]) -> None:
    """Its containers are held until they end, and then nothing of them is left."""
    own = tmp_path / "own"
    own.mkdir()
    with private_engine(*flags, with_cgroup2=True) as host:
        engine = docker.DockerClient(host)
        images.debian(engine, "vgpurun-test/killed:2")
        with cli_beside(engine, host, own) as cli:
            waiting = f"umount /etc/ld.so.preload; until [ -e /tmp/go ]; do sleep 0.05; done; {FILL}; exec sleep 600"
            run = ("-d", "--name", "held", "--mem", "1g", *HOSTILE, *WITH_PROGRAMS, "vgpurun-test/killed:2", "sh", "-c")
            assert cli.run(*run, waiting).exit_code == 0
            container = engine.containers.get("held")
            root = Path(f"/proc/{container.attrs['State']['Pid']}/root")
            lose_engine(host)
            if flags:
                (root / "tmp" / "go").touch()
            start_again(host, *flags, prefix=cli.command[:3])
            if flags:
                wait_until(lambda: b"granted" in container.logs(), "the program's answer")
                filled = json.loads(container.logs(stderr=False))
                assert LIMIT_MIB - 2 <= filled["granted_bytes"] // MIB + 518 <= LIMIT_MIB
                assert device(cli, "held")["memory_limit_driver_bytes"] == LIMIT_MIB * MIB
            cli.remove_containers()
            assert_no_trace(cli, "vgpurun-test/killed:2")


@pytest.mark.exhaustive
def test_verify_names_the_driver(cli: Cli, debian_v2: str) -> None:
    arguments = ("verify", "--driver", "sim", "--hostile", "--mem", "1g", "--format", "json", debian_v2)
    result = cli(*arguments, timeout_s=200)
    (found,) = json.loads(result.stdout)
    stopped_by = {each["name"].removeprefix("escape: "): each["stopped_by"] for each in found["checks"]}
    past = ("dlmopen", "copy of the driver", "driver's own symbols", "loader of its own")
    assert {stopped_by[name] for name in past} == {"the driver's own limit"}, result
    assert stopped_by["plain"] == "the library" and found["passed"], result


def test_what_says_which_wall_holds(cli: Cli) -> None:
    assert cli.run("--mem", "2g", "nothing-like-this", "true").exit_code == 125  # root's first launch makes the device
    rows = {each["name"]: each for each in json.loads(cli("doctor", "--driver", "sim", "--format", "json").stdout)}
    assert rows["memory limits"]["status"] in ("ok", "warn")
    Path(cli.environment["VGPUSIM_CONFIG"]).write_text("devices:\n  - memory_mib: 4096\n")
    rows = {each["name"]: each for each in json.loads(cli("doctor", "--driver", "sim", "--format", "json").stdout)}
    assert "not by the driver: the NVIDIA driver 580.0 has no memory limits" in rows["memory limits"]["words"]
    cli.run("--enforce", "driver", "--mem", "2g", "nothing-like-this", "true").assert_refused(
        "--enforce driver: the NVIDIA driver 580.0 has no memory limits of its own (615 or newer has)"
    )


def kill_launches(cli: Cli, image: str, count: int, workers: int) -> None:
    """Launch and kill: the command line, the container, or both, at any moment."""

    def once(number: int) -> None:
        chance = random.Random(number)
        words = ("run", "--driver", "sim", "--mem", "1g", "--name", f"k{number}", image, "sleep", "30")
        with cli.started(*words, start_new_session=True) as process:
            time.sleep(chance.random() * 1.5)
            os.killpg(process.pid, signal.SIGKILL)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(once, range(count)))
    cli.remove_containers()


def assert_no_trace(cli: Cli, image: str) -> None:
    wait_until(lambda: not cgroups(cli), "end of the cgroups")
    assert cli.run("--mem", "16g", image, "true").exit_code == 0, "a reservation is left"
    wait_until(lambda: not cgroups(cli), "end of the last cgroup")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [12, pytest.param(ROUNDS, marks=pytest.mark.exhaustive)], ids=["some", "many"])
def test_killed_launches_leave_nothing(cli: Cli, debian_v2: str, count: int) -> None:
    kill_launches(cli, debian_v2, count, workers=4)
    assert_no_trace(cli, debian_v2)
