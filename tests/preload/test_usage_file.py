"""The usage file when disks are full, limits of the system are met, versions change, or programs close what is open."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from ctypes import c_uint8, c_uint16, c_uint32
from pathlib import Path

import pytest
from sandbox import Sandbox, fill

from cuda_driver import Driver, byref, c_void_p
from support import unavailable
from support.programs import Program, text_of
from vgpurun import abi

LIMIT = {"CUDA_DEVICE_MEMORY_LIMIT_0": "2g"}


def start_and_fill() -> None:
    d = Driver.started()
    print(fill(d))


def fill_and_wait() -> None:
    d = Driver.started()
    print(fill(d, 5), flush=True)
    sys.stdin.readline()
    print(fill(d), flush=True)


def run(sandbox: Sandbox, program: Program, usage: Path | None) -> tuple[str, str]:
    """Return the program's output and the library's first word about it. Without a file, the default one is used."""
    command = [sys.executable, "-c", text_of(program)]
    result = sandbox.run(command, CUDA_DEVICE_MEMORY_SHARED_CACHE=str(usage or ""), **LIMIT)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip(), result.stderr.split("\n")[0]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], capture_output=True).returncode != 0:
        unavailable("only root may mount")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk(sandbox: Sandbox, small_disk: Path) -> None:
    printed, said = run(sandbox, start_and_fill, small_disk / "usage")
    assert printed == "15"
    assert said.endswith("usage: No space left on device; each process is held to the limit by itself")


def test_a_read_only_disk(sandbox: Sandbox, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    printed, said = run(sandbox, start_and_fill, small_disk / "usage")
    assert printed == "15"
    assert "Read-only file system; each process" in said


def test_a_limit_on_the_size_of_files(sandbox: Sandbox) -> None:
    """To write past it would end the program by SIGXFSZ."""

    def start() -> None:
        Driver().start()

    def program() -> None:
        d = Driver()
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
        d.start()
        print(fill(d))

    sandbox.python(start)  # the simulated driver's own file is made beforehand
    printed, said = run(sandbox, program, sandbox.folder / "small")
    assert printed == "15"
    assert "File too large; each process" in said


@pytest.mark.parametrize("limit_bytes", [0, 65536])
def test_a_limit_on_the_size_of_files_below_that_of_the_usage_file(sandbox: Sandbox, limit_bytes: int) -> None:
    """In a container the file has its size: the program counts there, and the others see what it holds."""

    def program() -> None:
        d = Driver.started()
        print(fill(d, 5), flush=True)
        sys.stdin.readline()

    def start() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
        program()

    def start_and_cut_off() -> None:
        start()
        os.truncate(os.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"], 100)
        print(fill(Driver()), flush=True)

    path = sandbox.folder / "usage"
    assert run(sandbox, start_and_fill, path)[0] == "15"
    with sandbox.start_python(start, **LIMIT) as first:
        assert first.stdout.readline() == "5\n"
        assert run(sandbox, start_and_fill, path)[0] == "5", "2048 - 2 contexts of 518 - 500"
        first.communicate("\n")
    result = sandbox.run([sys.executable, "-c", text_of(start_and_cut_off)], **LIMIT)
    assert result.stdout == "5\n0\n", result.stderr
    assert "File too large; nothing more is granted to this process" in result.stderr


def test_a_file_that_is_too_short_is_made_longer(sandbox: Sandbox) -> None:
    path = sandbox.folder / "usage"
    path.write_bytes(bytes(abi.Usage(magic=abi.USAGE_MAGIC, abi_version=abi.ABI_VERSION))[:100])
    assert run(sandbox, start_and_fill, path)[0] == "15"
    assert path.stat().st_size == ctypes.sizeof(abi.Usage)


def test_a_file_of_another_version_is_emptied_once_nobody_uses_it(sandbox: Sandbox) -> None:
    path = sandbox.folder / "usage"
    old = abi.Usage(magic=abi.USAGE_MAGIC, abi_version=abi.ABI_VERSION + 1, slots_used=abi.MAX_PROCESSES)
    for process in old.processes:
        process.devices[0].counted_bytes = 1 << 40
    path.write_bytes(bytes(old))
    with sandbox.start_python(fill_and_wait, LIBCUDA_LOG_LEVEL="2", **LIMIT) as first:
        assert first.stdout.readline() == "5\n"
        assert run(sandbox, start_and_fill, path)[0] == "5", "both use the same file"
        assert first.communicate("\n")[0] == "10\n"
    assert abi.Usage.from_buffer_copy(path.read_bytes()).abi_version == abi.ABI_VERSION


def test_a_file_of_another_version_that_is_in_use_is_left_alone(sandbox: Sandbox) -> None:
    path = sandbox.folder / "usage"
    content = bytes(abi.Usage(magic=abi.USAGE_MAGIC, abi_version=abi.ABI_VERSION + 1))
    path.write_bytes(content)
    name, slot_lock = str(path), abi.SLOT_LOCK_OFFSET + 7

    def program() -> None:
        d = Driver()
        holder = os.open(name, os.O_RDWR)
        fcntl.fcntl(holder, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, slot_lock, 1, 0))
        d.start()
        print(fill(d))

    printed, said = run(sandbox, program, path)
    assert printed == "15"
    assert "processes of another version of vgpurun use it; each process" in said
    assert path.read_bytes() == content


def test_a_file_of_another_program_is_left_alone(sandbox: Sandbox) -> None:
    path = sandbox.folder / "thesis.txt"
    path.write_bytes(b"important" * 99)
    mode = path.stat().st_mode
    printed, said = run(sandbox, start_and_fill, path)
    assert printed == "15"
    assert "it is not a usage file of vgpurun" in said
    assert (path.read_bytes(), path.stat().st_mode) == (b"important" * 99, mode)


def fill_as(user: int) -> Program:
    def program() -> None:
        d = Driver()
        assert ctypes.CDLL(None).prctl(28, 4, 0, 0, 0) == 0  # keep the capabilities
        os.seteuid(user)
        d.start()
        print(fill(d))

    return program


def test_a_default_file_of_another_user_is_not_trusted(sandbox: Sandbox) -> None:
    """Its maker may write it."""
    if os.geteuid() != 0:
        unavailable("only root can be two users")
    user = 64999

    path = Path(f"/tmp/vgpurun-{user}.usage")
    path.write_bytes(b"")
    try:
        printed, said = run(sandbox, fill_as(user), None)
        assert printed == "15"
        assert "belongs to another user; each process is held to the limit by itself" in said
        assert path.stat().st_size == 0
    finally:
        path.unlink()


@pytest.mark.parametrize("is_there", [False, True])
def test_no_other_user_can_open_a_default_file(sandbox: Sandbox, is_there: bool) -> None:
    """Or lock its slots. That of an older version was open to all."""
    if os.geteuid() != 0:
        unavailable("only root can be two users")
    user = 64998 - is_there  # both cases may run at the same time

    path = Path(f"/tmp/vgpurun-{user}.usage")
    if is_there:
        path.touch()
        path.chmod(0o666)
        os.chown(path, user, user)
    try:
        printed, said = run(sandbox, fill_as(user), None)
        assert printed == "15" and "usage file" not in said
        assert path.stat().st_uid == user and path.stat().st_mode & 0o777 == 0o600
    finally:
        path.unlink()


@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_no_descriptor_left(sandbox: Sandbox, left: int) -> None:
    """A process that the others could not count gets nothing and says why: else each would have the whole limit."""

    def program() -> None:
        d = Driver()
        d.init()
        held = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        with suppress(OSError):
            while True:
                held.append(os.dup(2))
        for _ in range(left):
            os.close(held.pop())
        started = d.result("cuDevicePrimaryCtxRetain", byref(c_void_p()), 0)
        if started == "CUDA_SUCCESS":
            d.start()
        print(fill(d) if started == "CUDA_SUCCESS" else started)

    def other() -> None:
        d = Driver.started()
        print(fill(d, 10), flush=True)
        sys.stdin.readline()

    with sandbox.start_python(other, **LIMIT) as other_process:
        assert other_process.stdout.readline() == "10\n"
        result = sandbox.run([sys.executable, "-c", text_of(program)], **LIMIT)
        other_process.communicate("\n")
    assert result.stdout.strip() in ("0", "CUDA_ERROR_OUT_OF_MEMORY"), "2048 - 2 contexts of 518 - 1000"
    assert left > 1 or "usage: Too many open files; nothing is granted to this process\n" in result.stderr


def lock_no_files() -> None:
    """Let the kernel refuse the locks that belong to open files."""

    class Rule(ctypes.Structure):
        _fields_ = [("code", c_uint16), ("yes", c_uint8), ("no", c_uint8), ("value", c_uint32)]

    class Rules(ctypes.Structure):
        _fields_ = [("count", c_uint16), ("rules", ctypes.POINTER(Rule))]

    of_fcntl, set_ofd_lock = {"x86_64": 72, "aarch64": 25}[platform.machine()], 37
    ours = 100  # the library's descriptors are no lower
    rules = (Rule * 8)(
        (0x20, 0, 0, 0),
        (0x15, 0, 5, of_fcntl),
        (0x20, 0, 0, 24),
        (0x15, 0, 3, set_ofd_lock),
        (0x20, 0, 0, 16),
        (0x35, 0, 1, ours),
        (0x06, 0, 0, 0x50000 | errno.ENOLCK),
        (0x06, 0, 0, 0x7FFF0000),
    )
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, byref(Rules(8, rules)), 0, 0) == 0


def test_files_that_cannot_be_locked(sandbox: Sandbox) -> None:
    """A file system without such locks is named as the reason, not too many processes."""

    def program() -> None:
        d = Driver()
        d.init()
        lock_no_files()
        d.start()
        print(fill(d))

    printed, said = run(sandbox, program, sandbox.folder / "usage")
    assert printed == "15"
    assert "cannot be locked: No locks available" in said


CLOSING = ("closes all descriptors", "puts its own files in their place")


@pytest.mark.parametrize("kind", CLOSING)
def test_a_program_that_closes_what_it_finds_open(sandbox: Sandbox, kind: str) -> None:
    """The others go on counting the program, and it goes on seeing who is alive."""

    def closing() -> None:
        d = Driver.started()
        fill(d, 5)
        if kind == "closes all descriptors":
            os.closerange(3, 4096)
        else:
            null = os.open("/dev/null", os.O_RDWR)
            for number in range(3, 256):
                if number != null:
                    os.dup2(null, number)
        print("closed", flush=True)
        sys.stdin.readline()
        print(fill(d), flush=True)
        sys.stdin.readline()

    def no_room() -> None:
        d = Driver()
        d.init()
        print(d.result("cuDevicePrimaryCtxRetain", byref(c_void_p()), 0))

    with sandbox.start_python(closing, **LIMIT) as closer, sandbox.start_python(fill_and_wait, **LIMIT) as other:
        assert closer.stdout.readline() == "closed\n"
        assert other.stdout.readline() == "5\n"
        assert other.communicate("\n")[0] == "0\n", "2048 - 2 contexts of 518 - 1000"
        closer.stdin.write("\n")
        closer.stdin.flush()
        assert closer.stdout.readline() == "10\n", "the other one has ended"
        assert run(sandbox, no_room, sandbox.folder / "usage")[0] == "CUDA_ERROR_OUT_OF_MEMORY"
        closer.communicate("\n")
    assert run(sandbox, start_and_fill, sandbox.folder / "usage")[0] == "15"
