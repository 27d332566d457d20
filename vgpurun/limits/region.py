"""The two files that the library and the host share: limits, which the host writes, and usage, which it reads.

The usage file is written by the container, so it is untrusted: it may be missing, short, a link, a pipe, or full of
nonsense. Reading it never fails, never blocks and never follows a link; what cannot be is cut to what can.
"""

import fcntl
import os
import stat
import struct
import time
from collections.abc import Sequence
from ctypes import sizeof
from pathlib import Path
from typing import NamedTuple

from vgpurun import abi
from vgpurun.limits.policies import Priority, SmPolicy
from vgpurun.limits.quota import Quota
from vgpurun.limits.utilization import Utilization, read_seconds
from vgpurun.limits.wait_times import WaitTimes, read_wait_times

# What the bits of not_enforced mean, by the limit that could not be held.
NOT_ENFORCED = {
    "memory": abi.NOT_ENFORCED_MEMORY,
    "sm": abi.NOT_ENFORCED_SM,
    "turns": abi.NOT_ENFORCED_TURNS,
}

# struct flock of Linux on 64 bits: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhxxxxqqixxxx")


class BrokenUsageError(Exception):
    """A usage file that holds something else than usage; the message says what is wrong with it."""


class DeviceReading(NamedTuple):
    """What a container uses of one device at one moment. Times are nanoseconds since its first process began.

    `context_bytes` is a part of `overhead_bytes`; `host_bytes` lies in host memory and counts against no device limit.
    `not_enforced` names what could not be held to its limit at some time: keys of NOT_ENFORCED.
    """

    uuid: str
    allocated_bytes: int = 0
    overhead_bytes: int = 0
    context_bytes: int = 0
    host_bytes: int = 0
    not_enforced: tuple[str, ...] = ()
    processes: int = 0
    busy_ns: int = 0
    throttled_ns: int = 0
    launches: int = 0
    refusals: int = 0
    last_launch_ns: int = 0  # of CLOCK_MONOTONIC; 0: none yet
    utilization: Utilization = Utilization()
    turn_waits: WaitTimes | None = None  # None: it did not wait for a turn in the last minute

    @property
    def memory_used_bytes(self) -> int:
        """What counts against the memory limit, in bytes."""
        return self.allocated_bytes + self.overhead_bytes

    @property
    def other_bytes(self) -> int:
        """The overhead without contexts: loaded modules, and what else the driver keeps."""
        return self.overhead_bytes - self.context_bytes


def limits_bytes(limits: Sequence[tuple[str, Quota]], may_disable: bool = False) -> bytes:
    """Return the content of a limits file: the UUID and quota of each device, in the order of their NVML index.

    `may_disable`: whether a program may lift its limits by CUDA_DISABLE_CONTROL=true.
    """
    content = abi.Limits(magic=abi.LIMITS_MAGIC, abi_version=abi.ABI_VERSION, device_count=len(limits))
    content.may_disable = may_disable
    for device, (uuid, quota) in zip(content.devices, limits, strict=False):
        device.uuid = uuid.encode()
        device.memory_limit_bytes = abi.NO_MEMORY_LIMIT if quota.memory_bytes is None else quota.memory_bytes
        device.sm_limit_percent = abi.NO_SM_LIMIT if quota.sm_percent is None else quota.sm_percent
        device.virtual_limit_bytes = quota.virtual_bytes or 0
        device.sm_policy = quota.sm_policy.value
        device.priority = quota.priority.value
        device.paused = quota.paused
    return bytes(content)


def write_limits(path: Path, limits: Sequence[tuple[str, Quota]], may_disable: bool = False) -> None:
    """Change a limits file in place: running processes have it mapped and see it at their next call. Raises OSError."""
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.pwrite(file, limits_bytes(limits, may_disable), 0)
    finally:
        os.close(file)


def read_limits(path: Path) -> list[tuple[str, Quota]] | None:
    """Return the UUIDs and quotas of a limits file in its order, or None when it is none. Raises OSError."""
    content = read_regular(path, sizeof(abi.Limits))
    if content is None or len(content) < sizeof(abi.Limits):
        return None
    limits = abi.Limits.from_buffer_copy(content)
    if limits.magic != abi.LIMITS_MAGIC or limits.abi_version != abi.ABI_VERSION:
        return None
    devices = limits.devices[: min(limits.device_count, abi.MAX_DEVICES)]
    return [(device.uuid.decode(errors="replace"), _quota_of(device)) for device in devices]


def _quota_of(device: abi.DeviceLimit) -> Quota:
    return Quota(
        None if device.memory_limit_bytes == abi.NO_MEMORY_LIMIT else device.memory_limit_bytes,
        None if device.sm_limit_percent == abi.NO_SM_LIMIT else device.sm_limit_percent,
        SmPolicy(device.sm_policy) if device.sm_policy in {policy.value for policy in SmPolicy} else SmPolicy.HARD,
        Priority.HIGH if device.priority == abi.PRIORITY_HIGH else Priority.LOW,
        bool(device.paused),
        device.virtual_limit_bytes if device.virtual_limit_bytes > device.memory_limit_bytes else None,
    )


def read_usage(path: Path, uuids: Sequence[str], pid_namespace: int | None = None) -> list[DeviceReading] | None:
    """Return what the container uses of each of its devices, given by UUID in the order of its limits file.

    None when this user may not read it; all zero when no process of the container has used a GPU yet. With a PID
    namespace, that of one container of several that share the file: its memory alone, for the rest is not told apart.
    """
    try:
        return read_sound_usage(path, uuids, pid_namespace)
    except PermissionError:
        return None
    except (OSError, BrokenUsageError):
        return [DeviceReading(uuid) for uuid in uuids]


def read_sound_usage(path: Path, uuids: Sequence[str], pid_namespace: int | None = None) -> list[DeviceReading]:
    """Return the same, but for a file that cannot be read or is broken raise OSError or BrokenUsageError."""
    file = _open_regular(path)
    if file is None:
        raise BrokenUsageError("it is no regular file")
    try:
        if os.fstat(file).st_size < sizeof(abi.Usage):
            raise BrokenUsageError("it is too short")
        # Most of the file are slots that nobody ever claimed.
        size = sizeof(abi.UsageHead)
        usage = abi.UsageHead.from_buffer(bytearray(os.pread(file, size, 0)).ljust(size, b"\0"))
        if usage.magic == 0:
            return [DeviceReading(uuid) for uuid in uuids]
        if usage.magic != abi.USAGE_MAGIC or usage.abi_version != abi.ABI_VERSION:
            raise BrokenUsageError("it is not one of this version")
        slots = _live_slots(file, min(usage.slots_used, abi.MAX_PROCESSES))
        known = uuids[: abi.MAX_DEVICES]
        if pid_namespace is None:
            age_s = time.time() - path.parent.stat().st_mtime  # the file was made with its folder, which has no other
            read = [_read_device(usage, slots, number, uuid, age_s) for number, uuid in enumerate(known)]
        else:
            slots = [slot for slot in slots if slot.pid_namespace == pid_namespace]
            read = [_read_memory(slots, number, uuid) for number, uuid in enumerate(known)]
        return [*read, *(DeviceReading(uuid) for uuid in uuids[abi.MAX_DEVICES :])]
    finally:
        os.close(file)


def _live_slots(file: int, count: int) -> list[abi.ProcessUsage]:
    size = sizeof(abi.ProcessUsage)
    content = bytearray(os.pread(file, count * size, abi.Usage.processes.offset)).ljust(count * size, b"\0")
    return [abi.ProcessUsage.from_buffer(content, slot * size) for slot in range(count) if _is_live(file, slot)]


def _read_device(
    usage: abi.UsageHead, slots: Sequence[abi.ProcessUsage], number: int, uuid: str, age_s: float
) -> DeviceReading:
    shared = usage.devices[number]
    return _read_memory(slots, number, uuid)._replace(
        not_enforced=tuple(name for name, bit in NOT_ENFORCED.items() if shared.not_enforced & bit),
        busy_ns=shared.busy_ns,
        throttled_ns=shared.throttled_ns,
        launches=shared.launches,
        refusals=shared.refusals,
        last_launch_ns=shared.last_launch_ns,
        utilization=read_seconds(shared.seconds, time.monotonic_ns(), age_s),
        turn_waits=read_wait_times(shared.turn_waits, time.monotonic_ns()),
    )


def _read_memory(slots: Sequence[abi.ProcessUsage], number: int, uuid: str) -> DeviceReading:
    held = [slot.devices[number] for slot in slots]
    return DeviceReading(
        uuid=uuid,
        allocated_bytes=sum(device.allocated_bytes for device in held),
        overhead_bytes=sum(device.overhead_bytes for device in held),
        context_bytes=sum(min(device.context_bytes, device.overhead_bytes) for device in held),
        host_bytes=sum(device.host_bytes for device in held),
        processes=sum(1 for device in held if device.counted_bytes),
    )


def has_live_processes(path: Path) -> bool:
    """Ask whether any process counts in a usage file; yes where this user may not look. Raises nothing."""
    try:
        file = _open_regular(path)
    except PermissionError:
        return True
    except OSError:
        return False
    if file is None:
        return False
    try:
        return _is_live(file, 0, abi.MAX_PROCESSES)
    except OSError:
        return True
    finally:
        os.close(file)


def read_regular(path: Path, most_bytes: int) -> bytes | None:
    """Return the beginning of a file that anybody may have put there, or None when it is none. Raises OSError."""
    file = _open_regular(path)
    if file is None:
        return None
    try:
        return os.pread(file, most_bytes, 0)
    finally:
        os.close(file)


def _open_regular(path: Path) -> int | None:
    """Open for reading if it is a regular file. O_PATH has no effect on what is there, were it a device or a pipe."""
    place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            return None
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(place)


def _is_live(file: int, slot: int, count: int = 1) -> bool:
    """Ask the kernel whether a process holds the lock of this slot, or of one of so many from there."""
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, abi.SLOT_LOCK_OFFSET + slot, count, 0)
    lock_type = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, question))[0]
    return bool(lock_type != fcntl.F_UNLCK)
