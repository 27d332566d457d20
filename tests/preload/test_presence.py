"""Each tenant has a file that says when its processes were at work, and that it alone writes. Whatever one does with
its own, and whatever is in the place of it, the programs of others work on, and have their shares."""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from sandbox import MACHINE, UUID, Sandbox, tenant_of

from cuda_driver import Driver
from support.programs import text_of
from vgpurun import abi
from vgpurun.limits.limits_file import limits_bytes, read_limits
from vgpurun.limits.quota import Quota
from vgpurun.storage import tenants

pytestmark = pytest.mark.slow

TOLD = "do not know of each other"
OWN_UUID = f"GPU-{os.getpid():08x}-0000-0000-0000-00000000f11e"
SLOTS = 256
SLOT = struct.Struct("<q")  # when a process was seen at work


def launch_a_hundred() -> None:
    d = Driver.started()
    k = d.kernel("spin_1ms")
    for _ in range(100):
        d.launch(k)
    d.synchronize()


def work() -> None:
    """Print the time after every ten launches, without end."""
    d = Driver.started()
    k = d.kernel("spin_1ms")
    while True:
        for _ in range(10):
            d.launch(k)
        d.synchronize()
        print(time.monotonic(), flush=True)


def on_own_gpu(sandbox: Sandbox) -> dict[str, str]:
    """The environment of programs on a GPU that is this test's alone."""
    config = sandbox.folder / "own.yaml"
    config.write_text(MACHINE.replace(UUID, OWN_UUID))
    return {"VGPUSIM_CONFIG": str(config), "VGPUSIM_STATE": str(sandbox.folder / "own-state")}


def launch(sandbox: Sandbox, *before: str) -> subprocess.CompletedProcess[str]:
    """A program with a limit of 80 %, which has to work to its end: it has a minute for a hundred launches of 1 ms."""
    command = [*before, sys.executable, "-c", text_of(launch_a_hundred)]
    result = sandbox.run(command, CUDA_DEVICE_SM_LIMIT="80", **on_own_gpu(sandbox))
    assert result.returncode == 0, result.stderr
    return result


@pytest.fixture
def own(sandbox: Sandbox) -> Path:
    """The folder that the program of launch() makes."""
    usage = sandbox.folder / "usage"
    usage.touch()
    tenants.make_lock_dir()
    return tenant_of(usage)


# ---- the own file ---------------------------------------------------------------------------------------------------


def test_others_can_read_it_and_its_limits(sandbox: Sandbox, own: Path) -> None:
    mask = os.umask(0o077)
    try:
        assert TOLD not in launch(sandbox).stderr
    finally:
        os.umask(mask)
    assert [(own / name).stat().st_mode & 0o777 for name in ("", "limits", abi.PRESENCE_NAME)] == [0o755, 0o644, 0o644]
    assert (own / abi.PRESENCE_NAME).stat().st_size == abi.PRESENCE_BYTES
    limits = read_limits(own / "limits")
    assert limits is not None
    assert [quota.sm_percent for uuid, quota in limits if uuid == OWN_UUID] == [80]


@pytest.mark.parametrize("dangling", [True, False])
def test_a_link_is_not_followed(sandbox: Sandbox, own: Path, dangling: bool) -> None:
    target = sandbox.folder / "target"
    if not dangling:
        target.write_text("precious")
    own.mkdir()
    (own / abi.PRESENCE_NAME).symlink_to(target)
    assert TOLD in launch(sandbox).stderr
    assert not target.exists() if dangling else target.read_text() == "precious"


def test_a_link_in_the_place_of_the_folder(sandbox: Sandbox, own: Path) -> None:
    target = sandbox.folder / "target"
    target.mkdir()
    own.symlink_to(target)
    try:
        assert TOLD in launch(sandbox).stderr
    finally:
        own.unlink()
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("name", ["limits", abi.PRESENCE_NAME])
def test_a_link_in_the_place_of_a_folder_that_is_half_made(sandbox: Sandbox, own: Path, name: str) -> None:
    """Its name can be guessed: nothing is made, removed or opened to others where it leads."""
    target = sandbox.folder / "target"
    target.mkdir(mode=0o700)
    (target / name).write_text("precious")
    leads_to, lock_dir = str(target), abi.LOCK_DIR

    def squat() -> None:
        os.symlink(leads_to, f"{lock_dir}/.{os.getpid()}")
        launch_a_hundred()

    command = [sys.executable, "-c", text_of(squat)]
    result = sandbox.run(command, CUDA_DEVICE_SM_LIMIT="80", **on_own_gpu(sandbox))
    for link in Path(abi.LOCK_DIR).glob(".*"):
        if link.is_symlink() and link.readlink() == target:
            link.unlink()
    assert result.returncode == 0 and TOLD not in result.stderr
    assert [each.name for each in target.iterdir()] == [name] and (target / name).read_text() == "precious"
    assert target.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_a_folder_of_another_user_is_not_the_own(sandbox: Sandbox, own: Path) -> None:
    """Or its owner could let another file of ours be written."""
    (sandbox.folder / "usage-b").touch()
    with _at_work(sandbox, "b"):
        shutil.copytree(tenant_of(sandbox.folder / "usage-b"), own)
        os.chown(own, 12345, 12345)
        before = (own / "limits").read_bytes()
        assert TOLD in launch(sandbox).stderr
    assert (own / "limits").read_bytes() == before


def test_a_limit_on_file_sizes_ends_no_program(sandbox: Sandbox, own: Path) -> None:
    """Also one that has not told the kernel to ignore SIGXFSZ, as Python has."""

    def program() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        launch_a_hundred()

    launch(sandbox)  # makes the larger files
    shutil.rmtree(own)
    result = sandbox.run(
        ["sh", "-c", 'ulimit -f 100; exec "$@"', "-", sys.executable, "-c", text_of(program)],
        CUDA_DEVICE_SM_LIMIT="80",
        **on_own_gpu(sandbox),
    )
    assert result.returncode == 0, result.stderr
    assert "File too large" in result.stderr and TOLD in result.stderr
    assert not own.exists()


def test_a_pipe_is_not_waited_for(sandbox: Sandbox, own: Path) -> None:
    own.mkdir()
    os.mkfifo(own / abi.PRESENCE_NAME, 0o666)
    assert TOLD in launch(sandbox).stderr


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * abi.PRESENCE_BYTES, b"\x7f" * 1000_000])
def test_any_size_and_content(sandbox: Sandbox, own: Path, content: bytes) -> None:
    own.mkdir()
    (own / abi.PRESENCE_NAME).write_bytes(content)
    launch(sandbox)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_one_of_another_user_is_not_taken_for_the_own(sandbox: Sandbox, own: Path) -> None:
    own.mkdir()
    (own / abi.PRESENCE_NAME).write_bytes(bytes(abi.PRESENCE_BYTES))
    os.chown(own / abi.PRESENCE_NAME, 12345, 12345)
    assert TOLD in launch(sandbox).stderr


def _has_mounts() -> bool:
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not _has_mounts(), reason="needs to mount")
def test_a_folder_that_cannot_be_written(sandbox: Sandbox, own: Path) -> None:
    read_only = f'mount -t tmpfs -o ro none {abi.LOCK_DIR} && exec "$@"'
    assert TOLD in launch(sandbox, "unshare", "--mount", "sh", "-c", read_only, "-").stderr
    assert not own.exists()


@pytest.mark.skipif(not _has_mounts(), reason="needs to mount")
def test_a_full_disk_is_said_before_it_matters(sandbox: Sandbox, own: Path) -> None:
    full = f'mount -t tmpfs -o size=64k none {abi.LOCK_DIR} && "$@" && ls -A {abi.LOCK_DIR} >&2'
    result = launch(sandbox, "unshare", "--mount", "sh", "-c", full, "-")
    assert result.stderr.strip().endswith(TOLD) and "No space left on device" in result.stderr


# ---- tenants that lie, beside programs at work ----------------------------------------------------------------------


@contextmanager
def _at_work(sandbox: Sandbox, containers: str) -> Iterator[list[subprocess.Popen[str]]]:
    """A process at 50 in each of these containers, on one GPU; all have begun."""
    own_gpu = on_own_gpu(sandbox)
    with ExitStack() as stack:
        programs = []
        for name in containers:
            usage = str(sandbox.folder / f"usage-{name}")
            limits = {"CUDA_DEVICE_SM_LIMIT": "50", "CUDA_DEVICE_MEMORY_SHARED_CACHE": usage}
            programs.append(stack.enter_context(sandbox.start_python(work, **limits, **own_gpu)))
            stack.callback(programs[-1].kill)
        for program in programs:
            assert program.stdout is not None and program.stdout.readline()
        yield programs


def test_the_processes_of_a_container_share_one_file(sandbox: Sandbox) -> None:
    with _at_work(sandbox, "aab"):
        files = [tenant_of(sandbox.folder / f"usage-{name}") / abi.PRESENCE_NAME for name in "ab"]
        slots = [list(SLOT.iter_unpack(file.read_bytes()[: SLOTS * SLOT.size])) for file in files]
    assert [sum(seen_ns != 0 for (seen_ns,) in each) for each in slots] == [2, 1]


def test_what_somebody_has_removed_is_made_again(sandbox: Sandbox) -> None:
    """So those at work go on to see each other, and those that begin see them."""
    with _at_work(sandbox, "ab") as programs:
        _wait_until_found(sandbox, programs, lambda: None)
        folders = [tenant_of(sandbox.folder / f"usage-{name}") for name in "ab"]
        for folder in folders:
            shutil.rmtree(folder)
        _wait_until_found(sandbox, programs, lambda: None)
        ends_s = time.monotonic() + 20
        while any(_percents(folder) != [50] for folder in folders):
            assert time.monotonic() < ends_s, "they have no limits"
            time.sleep(0.01)


def _percents(folder: Path) -> list[int | None]:
    limits = read_limits(folder / "limits")
    return [quota.sm_percent for uuid, quota in limits or () if uuid == OWN_UUID]


def test_what_a_host_has_made_and_somebody_has_removed_is_said_once(sandbox: Sandbox) -> None:
    def program() -> None:
        launch_a_hundred()
        shutil.rmtree(os.path.dirname(os.environ["VGPURUN_PRESENCE_FILE"]))
        launch_a_hundred()

    of = sandbox.folder / "made"
    (of / "etc").mkdir(parents=True)
    (of / "etc" / "limits").write_bytes(limits_bytes([(OWN_UUID, Quota(None, 80))]))
    tenants.make(of)
    named = {"CUDA_DEVICE_SM_LIMIT": "80", abi.ENV_PRESENCE_FILE: str(tenants.presence_file(of))}
    result = sandbox.run([sys.executable, "-c", text_of(program)], **named, **on_own_gpu(sandbox))
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("has been removed") == 1, result.stderr
    assert not tenants.folder_of(of).exists()


@pytest.fixture
def liar(sandbox: Sandbox) -> Iterator[Path]:
    """The folder of a tenant without a limit on the same GPU, as a launch makes it."""
    of = sandbox.folder / "liar"
    (of / "etc").mkdir(parents=True)
    (of / "etc" / "limits").write_bytes(limits_bytes([(OWN_UUID, Quota(None, None))]))
    tenants.make(of)
    yield tenants.folder_of(of)
    for folder in Path(abi.LOCK_DIR).glob(f"{tenants.folder_of(of).name}*"):
        shutil.rmtree(folder)


def _truncate(folder: Path) -> None:
    os.truncate(folder / abi.PRESENCE_NAME, random.choice((0, 1, 70, 4096)))


def _grow(folder: Path) -> None:
    os.truncate(folder / abi.PRESENCE_NAME, random.choice((abi.PRESENCE_BYTES, 1 << 20, 1 << 40)))


def _random_bytes(folder: Path) -> None:
    (folder / abi.PRESENCE_NAME).write_bytes(random.randbytes(abi.PRESENCE_BYTES))


def _replace(folder: Path) -> None:
    """By what cannot be read, or has no end: also the limits."""
    for name in ("limits", abi.PRESENCE_NAME):
        with suppress(FileNotFoundError):
            (folder / name).unlink()
        kinds: list[Callable[[Path], object]] = [
            os.mkfifo,
            lambda path: path.symlink_to("/dev/zero"),
            lambda path: path.symlink_to(path),
            lambda path: path.write_bytes(b"short"),
        ]
        random.choice(kinds)(folder / name)


def _make_more(folder: Path, count: int, owner: int = -1) -> None:
    """Tenants that are at work as long as the one with this folder."""
    for number in range(count):
        other = folder.with_name(f"{folder.name}-{number}")
        other.mkdir()
        for name in ("limits", abi.PRESENCE_NAME):
            (other / name).hardlink_to(folder / name)
        os.chown(other, owner, -1)


def _be_thousands(folder: Path) -> None:
    if not folder.with_name(f"{folder.name}-0").exists():
        _make_more(folder, 3000)
    _are_there(folder)


def _are_there(folder: Path) -> None:
    """Fill all slots with processes that are at work."""
    with (folder / abi.PRESENCE_NAME).open("r+b") as opened:
        opened.write(SLOT.pack(time.monotonic_ns()) * SLOTS)


def _measured(sandbox: Sandbox, attack: Callable[[], None], attack_s: float) -> list[tuple[float, float]]:
    """The share of each of two programs, and the longest time without progress."""
    random.seed(1)
    found = []
    with _at_work(sandbox, "ab") as programs:
        time.sleep(0.5)
        began_s = time.monotonic()
        while time.monotonic() < began_s + attack_s:
            attack()
            time.sleep(0.001)
        for program in programs:
            program.kill()
        for program in programs:
            times = [float(line) for line in program.stdout.read().splitlines()[:-1]]
            times = [began_s, *(at for at in times if began_s < at < began_s + attack_s), began_s + attack_s]
            longest_s = max(after - before for before, after in pairwise(times))
            found.append(((len(times) - 2) * 0.010 / attack_s, longest_s))
            print(f"{found[-1][0]:.3f} of the time, {longest_s:.3f} s without progress at most")
    return found


ATTACK_S = 4
_OTHERS = [_replace, _truncate, _grow, _random_bytes, _be_thousands]


@pytest.mark.real_time
@pytest.mark.parametrize(
    "attack", [_are_there, *(pytest.param(each, marks=pytest.mark.exhaustive) for each in _OTHERS)]
)
def test_a_liar_harms_itself(sandbox: Sandbox, liar: Path, attack: Callable[[Path], None]) -> None:
    for share, longest_s in _measured(sandbox, lambda: attack(liar), ATTACK_S):
        assert 0.25 < share < 0.52, f"{share:.3f} of the time"
        assert longest_s < 1.2, f"{longest_s:.3f} s"


def _wait_until_found(sandbox: Sandbox, programs: list[subprocess.Popen[str]], meanwhile: Callable[[], None]) -> None:
    wanted = {tenant_of(sandbox.folder / f"usage-{name}") / abi.PRESENCE_NAME for name in "ab"}
    ends_s = time.monotonic() + 20
    while not all(wanted <= _open_files(program.pid) for program in programs):
        assert time.monotonic() < ends_s, "they do not know of each other"
        meanwhile()
        time.sleep(0.01)


@pytest.mark.real_time  # others on this machine would look through them too
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_many_tenants_of_one_user_keep_out_no_others(sandbox: Sandbox, liar: Path) -> None:
    """There are places for 64 on a GPU, and these are a thousand."""
    _make_more(liar, 1000, owner=12345)
    with _at_work(sandbox, "ab") as programs:
        _wait_until_found(sandbox, programs, lambda: os.utime(liar / abi.PRESENCE_NAME))


@pytest.mark.real_time  # others on this machine would look through them too
def test_thousands_that_have_ended_keep_out_nobody(sandbox: Sandbox, liar: Path) -> None:
    """Also not those that begin once more, which changes nothing in the folder of the tenants."""
    _make_more(liar, 3000)
    os.utime(liar / abi.PRESENCE_NAME, (0, 0))
    for _ in range(2):
        with _at_work(sandbox, "ab") as programs:
            _wait_until_found(sandbox, programs, lambda: None)


def _open_files(pid: int) -> set[Path]:
    found = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(each.readlink())
    return found


@pytest.mark.real_time
def test_what_a_reader_can_lock_counts_for_nothing(sandbox: Sandbox) -> None:
    """A file that may only be read can be locked all the same."""
    import fcntl

    def lock() -> None:
        for name in "ab":
            file = os.open(tenant_of(sandbox.folder / f"usage-{name}") / abi.PRESENCE_NAME, os.O_RDONLY)
            held.append(file)
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhxxxxqqixxxx", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
            fcntl.flock(file, fcntl.LOCK_SH)

    held: list[int] = []
    try:
        for share, _ in _measured(sandbox, lambda: held or lock(), 2):
            assert 0.35 < share < 0.55, f"{share:.3f} of the time"
    finally:
        for file in held:
            os.close(file)
