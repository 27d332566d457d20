"""The limits file that the host writes, and the usage file that it must not trust."""

from __future__ import annotations

import fcntl
import os
import random
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import sizeof
from pathlib import Path

import pytest

from support.programs import text_of
from vgpurun import abi
from vgpurun.limits.limits_file import limits_bytes, read_limits, write_limits
from vgpurun.limits.quota import Quota
from vgpurun.limits.update import changing
from vgpurun.limits.usage_file import BrokenUsageError, DeviceReading, read_asked_ns, read_counted, read_usage
from vgpurun.suspend.targets import Target

UUIDS = ["GPU-a", "GPU-b"]
NOTHING = [DeviceReading(uuid) for uuid in UUIDS]


def test_limits_file() -> None:
    content = limits_bytes([("GPU-a", Quota(1 << 31, 50)), ("GPU-b", Quota())])
    limits = abi.Limits.from_buffer_copy(content)
    assert len(content) == sizeof(abi.Limits)
    assert (limits.magic, limits.abi_version, limits.device_count) == (abi.LIMITS_MAGIC, abi.ABI_VERSION, 2)
    first, second = limits.devices[0], limits.devices[1]
    assert (first.uuid, first.memory_limit_bytes, first.sm_limit_percent) == (b"GPU-a", 1 << 31, 50)
    assert (second.uuid, second.memory_limit_bytes, second.sm_limit_percent) == (b"GPU-b", 2**64 - 1, 100)
    assert content[:8] == b"VCGLIMTS"


def test_limits_can_be_read_back_and_changed_in_place(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    path.write_bytes(limits_bytes([("GPU-a", Quota(1 << 31, 50))]))
    inode = path.stat().st_ino
    write_limits(path, [("GPU-a", Quota(None, 20)), ("GPU-b", Quota(5, None))])
    assert read_limits(path) == [("GPU-a", Quota(None, 20)), ("GPU-b", Quota(5, None))]
    assert path.stat().st_ino == inode


@pytest.mark.parametrize("content", [b"", b"x" * 100, bytes(5000)])
def test_what_is_no_limits_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "limits").write_bytes(content)
    assert read_limits(tmp_path / "limits") is None


def write_usage(path: Path, slots_used: int = 3) -> None:
    usage = abi.Usage(magic=abi.USAGE_MAGIC, abi_version=abi.ABI_VERSION, slots_used=slots_used)
    usage.devices[1].busy_ns = 123
    usage.devices[1].launches = 7
    usage.devices[1].refusals = 2
    usage.devices[1].not_enforced = abi.NOT_ENFORCED_MEMORY | abi.NOT_ENFORCED_SM | 1 << 31
    for slot in range(3):
        usage.processes[slot].pid = 100 + slot
        usage.processes[slot].devices[0].allocated_bytes = 10 ** (slot + 1)
        usage.processes[slot].devices[0].overhead_bytes = 5
        usage.processes[slot].devices[0].counted_bytes = 10 ** (slot + 1) + 5
        usage.processes[slot].devices[0].context_bytes = 3 + slot
        usage.processes[slot].devices[0].host_bytes = 7
    path.write_bytes(bytes(usage))


@pytest.fixture
def usage_file(tmp_path: Path) -> Iterator[Path]:
    """A usage file with three used slots, of which the processes of 0 and 2 live."""
    path = tmp_path / "usage"
    write_usage(path)
    held = []
    for slot in (0, 2):
        file = os.open(path, os.O_RDWR)
        lock = struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, abi.SLOT_LOCK_OFFSET + slot, 1, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
        held.append(file)
    yield path
    for file in held:
        os.close(file)


def test_only_slots_whose_process_lives_are_counted(usage_file: Path) -> None:
    first, second = read_usage(usage_file, UUIDS) or []
    assert (first.allocated_bytes, first.overhead_bytes, first.memory_used_bytes) == (1010, 10, 1020)
    assert (first.context_bytes, first.other_bytes, first.host_bytes) == (3 + 5, 2, 14)
    assert first.processes == 2 and first.not_enforced == () and second.not_enforced == ("memory", "sm")
    assert (second.busy_ns, second.launches, second.refusals, second.processes) == (123, 7, 2, 0)


@pytest.mark.parametrize(
    ("alive", "dead", "expected"),
    [
        (abi.LIMITER_NONE, abi.LIMITER_LAUNCHES, None),
        (abi.LIMITER_SCHEDULER, abi.LIMITER_LAUNCHES, "scheduler"),
        (abi.LIMITER_LAUNCHES, abi.LIMITER_SCHEDULER, "launches"),
        (77, abi.LIMITER_NONE, None),
    ],
)
def test_the_limiter_is_that_of_living_processes(usage_file: Path, alive: int, dead: int, expected: str | None) -> None:
    for slot, limiter in ((0, abi.LIMITER_SCHEDULER if expected else alive), (1, dead), (2, alive)):
        with usage_file.open("r+b") as file:
            device = abi.Usage.processes.offset + slot * sizeof(abi.ProcessUsage) + abi.ProcessUsage.devices.offset
            file.seek(device + abi.DeviceUsage.limiter.offset)
            file.write(struct.pack("<Q", limiter))
    assert (read_usage(usage_file, UUIDS) or NOTHING)[0].limiter == expected


def test_slots_that_were_never_claimed_are_not_looked_at(usage_file: Path) -> None:
    with usage_file.open("r+b") as file:
        file.seek(abi.Usage.slots_used.offset)
        file.write(struct.pack("<I", 1))
    assert (read_usage(usage_file, UUIDS) or NOTHING)[0].allocated_bytes == 10
    with usage_file.open("r+b") as file:
        file.seek(abi.Usage.slots_used.offset)
        file.write(struct.pack("<I", 2**32 - 1))
    assert (read_usage(usage_file, UUIDS) or NOTHING)[0].allocated_bytes == 1010


def test_a_file_that_is_missing_short_or_of_another_kind_reads_as_nothing(tmp_path: Path) -> None:
    assert read_usage(tmp_path / "missing", UUIDS) == NOTHING
    (tmp_path / "short").write_bytes(b"VCGUSAGE")
    assert read_usage(tmp_path / "short", UUIDS) == NOTHING
    (tmp_path / "zero").write_bytes(bytes(sizeof(abi.Usage)))
    assert read_usage(tmp_path / "zero", UUIDS) == NOTHING
    (tmp_path / "folder").mkdir()
    assert read_usage(tmp_path / "folder", UUIDS) == NOTHING


def test_a_link_is_not_followed(tmp_path: Path, usage_file: Path) -> None:
    (tmp_path / "link").symlink_to(usage_file)
    assert read_usage(tmp_path / "link", UUIDS) == NOTHING


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    seen: list[object] = []
    reader = threading.Thread(target=lambda: seen.append(read_usage(tmp_path / "pipe", UUIDS)), daemon=True)
    reader.start()
    reader.join(timeout=60)
    assert seen == [NOTHING]


def test_any_content_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "noise"
    generator = random.Random(1)
    for _ in range(20):
        header = struct.pack("<QII", abi.USAGE_MAGIC, abi.ABI_VERSION, generator.getrandbits(32))
        path.write_bytes(header + generator.randbytes(sizeof(abi.Usage) - len(header)))
        readings = read_usage(path, UUIDS)
        assert readings is not None
        assert [reading.memory_used_bytes for reading in readings] == [0, 0], "no slot has a living process"


def test_what_this_user_may_not_read_is_unknown(usage_file: Path) -> None:
    usage_file.chmod(0)
    user = os.geteuid()
    os.seteuid(user or 65534)  # root may read everything
    try:
        assert read_usage(usage_file, UUIDS) is None
    finally:
        os.seteuid(user)


def test_a_slot_that_was_taken_just_now_names_nobody(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    path.write_bytes(bytes(abi.Usage(magic=abi.USAGE_MAGIC, abi_version=abi.ABI_VERSION, slots_used=1)))
    with path.open("r+b") as taken:
        lock = struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, abi.SLOT_LOCK_OFFSET, 1, 0)
        fcntl.fcntl(taken, fcntl.F_OFD_SETLK, lock)
        assert read_counted(path) == frozenset()


def lease() -> None:
    file = os.open(sys.argv[1], os.O_RDONLY)
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    print(flush=True)
    time.sleep(600)


@contextmanager
def leased(path: Path) -> Iterator[None]:
    """Its owner has a lease of the file, as root in a container may; who waits for it ends that one by SIGIO."""
    with subprocess.Popen([sys.executable, "-c", text_of(lease), path], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            yield
        finally:
            process.kill()


def test_a_lease_holds_no_reader_up(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    path.write_bytes(bytes(abi.Usage()))
    with leased(path), pytest.raises(BlockingIOError):
        read_counted(path)


def test_nobody_has_a_lease_of_limits_that_are_being_changed(tmp_path: Path) -> None:
    folder = tmp_path / "box"
    (folder / "etc").mkdir(parents=True)
    (folder / "owner").touch()
    path = folder / "etc" / "limits"
    path.write_bytes(limits_bytes([("GPU-1", Quota(1 << 30))]))
    with leased(path), changing(Target("1", "box", folder)):
        assert read_limits(path) == [("GPU-1", Quota(1 << 30))]
        with path.open("rb") as file, pytest.raises(OSError, match="unavailable"):
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)


def test_a_regular_file_that_makes_readers_wait_is_none() -> None:
    if os.geteuid() != 0 or not Path("/proc/kmsg").exists():
        pytest.skip("only root may read /proc/kmsg")
    assert read_asked_ns(Path("/proc/kmsg")) == 0
    with pytest.raises(BrokenUsageError):
        read_counted(Path("/proc/kmsg"))
