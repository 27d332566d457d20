"""The file of turns is in a folder that everybody may write: whatever is in its place, or is done to it, programs work
on, and nothing of anybody else's is touched."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from sandbox import MACHINE, UUID, Sandbox

from vgpurun import abi
from vgpurun.storage import state

pytestmark = pytest.mark.real_time

LAUNCH = """
import time
from cuda_driver import *
d = Driver(); d.start(); k = d.kernel('spin_1ms')
began = time.monotonic()
for _ in range(100): d.launch(k)
d.synchronize()
print(time.monotonic() - began)
"""
TOLD = "do not take turns"


@pytest.fixture
def place() -> Iterator[Path]:
    """Where the file of turns of a GPU that is this test's alone will be."""
    state.make_lock_dir()
    path = Path(abi.LOCK_DIR) / f"GPU-{os.getpid():08x}-0000-0000-0000-00000000f11e.turns4"
    yield path
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def on_own_gpu(sandbox: Sandbox, place: Path) -> dict[str, str]:
    """The environment of programs that meet in that file."""
    config = sandbox.folder / "own.yaml"
    config.write_text(MACHINE.replace(UUID, place.stem))
    return {"VGPUSIM_CONFIG": str(config), "VGPUSIM_STATE": str(sandbox.folder / "own-state")}


def launch(sandbox: Sandbox, place: Path, *before: str) -> subprocess.CompletedProcess[str]:
    """A program with a limit of 80 %, which has to work as without turns: promptly, and to its end."""
    command = [*before, sys.executable, "-c", LAUNCH]
    result = sandbox.run(command, CUDA_DEVICE_SM_LIMIT="80", **on_own_gpu(sandbox, place))
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) < 2, "100 ms of work"
    return result


def test_made_for_everybody(sandbox: Sandbox, place: Path) -> None:
    mask = os.umask(0o077)
    try:
        assert TOLD not in launch(sandbox, place).stderr
    finally:
        os.umask(mask)
    assert place.stat().st_mode & 0o777 == 0o666
    assert place.stat().st_size > 8000


@pytest.mark.parametrize("dangling", [True, False])
def test_a_link_is_not_followed(sandbox: Sandbox, place: Path, dangling: bool) -> None:
    target = sandbox.folder / "target"
    if not dangling:
        target.write_text("precious")
    place.symlink_to(target)
    assert TOLD in launch(sandbox, place).stderr
    assert not target.exists() if dangling else target.read_text() == "precious"


def test_a_pipe_is_not_waited_for(sandbox: Sandbox, place: Path) -> None:
    os.mkfifo(place, 0o666)
    assert TOLD in launch(sandbox, place).stderr


def test_a_folder(sandbox: Sandbox, place: Path) -> None:
    place.mkdir()
    assert TOLD in launch(sandbox, place).stderr


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 10312, b"\x7f" * 100_000], ids=["", "5", "ff", "large"])
def test_any_size_and_content(sandbox: Sandbox, place: Path, content: bytes) -> None:
    place.write_bytes(content)
    launch(sandbox, place)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_a_file_of_another_user(sandbox: Sandbox, place: Path) -> None:
    place.write_bytes(bytes(10312))
    os.chown(place, 12345, 12345)
    place.chmod(0o666)
    assert TOLD not in launch(sandbox, place).stderr


def _has_mounts() -> bool:
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not _has_mounts(), reason="needs to mount")
def test_a_folder_that_cannot_be_written(sandbox: Sandbox, place: Path) -> None:
    read_only = f'mount -t tmpfs -o ro none {abi.LOCK_DIR} && exec "$@"'
    assert TOLD in launch(sandbox, place, "unshare", "--mount", "sh", "-c", read_only, "-").stderr


# ---- while programs take turns ------------------------------------------------------------------------------------

SIZE = 10312
WORKS = """
import time
from cuda_driver import *
d = Driver(); d.start(); k = d.kernel('spin_1ms')
while True:
    for _ in range(10): d.launch(k)
    d.synchronize(); print(time.monotonic(), flush=True)
"""


def _truncate(place: Path) -> None:
    os.truncate(place, random.choice((0, 1, 70, 4096)))


def _grow(place: Path) -> None:
    os.truncate(place, random.choice((SIZE, 1 << 20, 1 << 40)))


def _replace(place: Path) -> None:
    place.unlink(missing_ok=True)
    place.write_bytes(random.randbytes(SIZE))


def _remove(place: Path) -> None:
    place.unlink(missing_ok=True)


def _overwrite(place: Path) -> None:
    with place.open("r+b") as file:
        file.write(random.choice((bytes(SIZE), b"\xff" * SIZE, random.randbytes(SIZE))))


def _scatter(place: Path) -> None:
    with place.open("r+b") as file:
        file.seek(random.randrange(0, SIZE, 8))
        file.write(random.choice((bytes(8), b"\x7f" * 8, time.monotonic_ns().to_bytes(8, "little"))))


@contextmanager
def _at_work(sandbox: Sandbox, place: Path, containers: str) -> Iterator[list[subprocess.Popen[str]]]:
    """A process at 50 in each of these containers, on one GPU; all have begun."""
    own_gpu = on_own_gpu(sandbox, place)
    with ExitStack() as stack:
        programs = []
        for name in containers:
            usage = str(sandbox.folder / f"usage-{name}")
            limits = {"CUDA_DEVICE_SM_LIMIT": "50", "CUDA_DEVICE_MEMORY_SHARED_CACHE": usage}
            programs.append(stack.enter_context(sandbox.start_python(WORKS, **limits, **own_gpu)))
            stack.callback(programs[-1].kill)
        for program in programs:
            assert program.stdout is not None and program.stdout.readline()
        yield programs


@pytest.mark.parametrize("attack", [_truncate, _grow, _replace, _remove, _overwrite, _scatter])
def test_whatever_is_done_to_the_file_both_go_on(sandbox: Sandbox, place: Path, attack: Callable[[Path], None]) -> None:
    random.seed(1)
    with _at_work(sandbox, place, "ab") as programs:
        end_s = time.monotonic() + 1
        while time.monotonic() < end_s:
            attack(place)
            time.sleep(0.0005)
        for program in programs:
            assert program.stdout is not None
            while (line := program.stdout.readline()) and float(line) < end_s + 0.1:
                pass
            assert line, f"ended with {program.wait()}"


# ---- strangers, for longer ----------------------------------------------------------------------------------------

ATTACK_S = 8  # and twenty on simulated time: tests/c/strangers_test.c
SLOTS, FIRST_SLOT = 256, 20
SLOT = struct.Struct("<qqqQIHH")  # end of its turn, ticket, seen, tenant, percent, policy, priority
SLOT_LOCKS = abi.SLOT_LOCK_OFFSET
LONGEST_LEASE_NS = 250_000_000


def test_the_processes_of_a_container_are_one_tenant(sandbox: Sandbox, place: Path) -> None:
    with _at_work(sandbox, place, "aab"):
        slots = list(SLOT.iter_unpack(place.read_bytes()[64 : 64 + SLOTS * SLOT.size]))
    tenants = Counter(tenant for _, _, seen_ns, tenant, *_ in slots if seen_ns)
    assert sorted(tenants.values()) == [1, 2]


def _say(file: int, count: int, waits: bool, turn_ends_ns: int = 0) -> None:
    """Fill slots with tenants of the highest priority, which have waited for half a second or do not wait."""
    now_ns = time.monotonic_ns()
    slots = (
        SLOT.pack(turn_ends_ns, now_ns - 500_000_000 if waits else 0, now_ns, 1000 + i, 100, 0, 0) for i in range(count)
    )
    os.pwrite(file, b"".join(slots), 64 + FIRST_SLOT * SLOT.size)


def _lock(file: int, start: int, length: int) -> None:
    fcntl.fcntl(file, fcntl.F_OFD_SETLKW, struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))


def _random_bytes(file: int) -> None:
    os.pwrite(file, random.randbytes(SIZE), 0)


def _cut_off(file: int) -> None:
    os.ftruncate(file, random.choice((0, 70, 4096)))


def _wait_without_lock(file: int) -> None:
    _say(file, SLOTS - FIRST_SLOT, True)


def _wait_with_lock(file: int) -> None:
    _lock(file, SLOT_LOCKS + FIRST_SLOT, SLOTS - FIRST_SLOT)
    _say(file, SLOTS - FIRST_SLOT, True)


def _are_there(file: int) -> None:
    _lock(file, SLOT_LOCKS + FIRST_SLOT, 100)
    _say(file, 100, False)


def _keep_the_turn(file: int) -> None:
    _lock(file, SLOT_LOCKS + FIRST_SLOT, 1)
    _say(file, 1, False, time.monotonic_ns() + LONGEST_LEASE_NS)


def _keep_the_lock(file: int) -> None:
    _lock(file, SLOT_LOCKS - 1, 1)


_OTHER_ATTACKS = [_random_bytes, _cut_off, _wait_without_lock, _wait_with_lock, _are_there, _keep_the_lock]


@pytest.mark.parametrize(
    "attack",
    [_keep_the_turn, *(pytest.param(attack, marks=pytest.mark.exhaustive) for attack in _OTHER_ATTACKS)],
)
def test_strangers_take_little(sandbox: Sandbox, place: Path, attack: Callable[[int], None]) -> None:
    random.seed(1)
    with _at_work(sandbox, place, "ab") as programs:
        time.sleep(0.5)
        file = os.open(place, os.O_RDWR)
        began_s = time.monotonic()
        while time.monotonic() < began_s + ATTACK_S:
            attack(file)
            time.sleep(0.001)
        for program in programs:
            program.kill()
        os.close(file)
        for program in programs:
            assert program.stdout is not None
            times = [float(line) for line in program.stdout.read().splitlines()[:-1]]
            times = [began_s, *(at for at in times if began_s < at < began_s + ATTACK_S), began_s + ATTACK_S]
            share = (len(times) - 2) * 0.010 / ATTACK_S
            longest_s = max(after - before for before, after in pairwise(times))
            print(f"{share:.3f} of the time, {longest_s:.3f} s without progress at most")
            # Without turns the GPU mixes the two, and each is charged for both: that leaves a quarter, less one wait.
            assert 0.2 < share < 0.52, f"{share:.3f} of the time"
            assert longest_s < 1.2, f"{longest_s:.3f} s"  # a wait of 0.9, and ten kernels
