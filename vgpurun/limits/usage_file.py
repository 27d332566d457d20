"""The usage file of a container, which the host reads.

The container writes it, so it is untrusted: it may be missing, short, a link, a pipe, or full of nonsense. Reading it
never fails, never blocks and never follows a link; impossible values are cut to possible ones.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from ctypes import sizeof
from dataclasses import dataclass, field, replace
from pathlib import Path

from vgpurun import abi
from vgpurun.limits.utilization import Utilization, read_seconds
from vgpurun.storage.shared_file import is_live, is_locked, open_regular, read_regular

# The bits of not_enforced, by the limit that could not be held.
NOT_ENFORCED = {
    "memory": abi.NOT_ENFORCED_MEMORY,
    "sm": abi.NOT_ENFORCED_SM,
}

# Names of the abi.LIMITER_* that hold a container's compute limit, ordered: the last promises least.
LIMITERS = {abi.LIMITER_SCHEDULER: "scheduler", abi.LIMITER_LAUNCHES: "launches"}


class BrokenUsageError(Exception):
    """A usage file that holds something else than usage; the message says what is wrong with it."""


@dataclass(frozen=True)
class DeviceReading:
    """A container's use of one device at one moment. Times are nanoseconds since its first process began.

    `context_bytes` is a part of `overhead_bytes`; `host_bytes` lies in host memory and counts against no device limit.
    `not_enforced` names what could not be held to its limit at some time: keys of NOT_ENFORCED. `limiter` is of
    LIMITERS; None where nobody has one.
    """

    uuid: str
    allocated_bytes: int = 0
    overhead_bytes: int = 0
    context_bytes: int = 0
    host_bytes: int = 0
    not_enforced: tuple[str, ...] = ()
    limiter: str | None = None
    processes: int = 0
    busy_ns: int = 0
    throttled_ns: int = 0
    launches: int = 0
    refusals: int = 0
    last_launch_ns: int = 0  # CLOCK_MONOTONIC; 0: none yet
    utilization: Utilization = field(default_factory=Utilization)

    @property
    def memory_used_bytes(self) -> int:
        """The bytes that count against the memory limit."""
        return self.allocated_bytes + self.overhead_bytes

    @property
    def other_bytes(self) -> int:
        """The overhead without contexts: loaded modules, and what else the driver keeps."""
        return self.overhead_bytes - self.context_bytes


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
    file = open_regular(path)
    if file is None:
        raise BrokenUsageError("it is not a regular file")
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


def read_counted(path: Path) -> frozenset[tuple[int, int]]:
    """Return the processes that count in a usage file: PID namespace, and PID there. Raises OSError, BrokenUsageError.

    A process is in it before it holds any memory of a GPU.
    """
    file = open_regular(path)
    if file is None:
        raise BrokenUsageError("it is not a regular file")
    try:
        size = sizeof(abi.UsageHead)
        if os.fstat(file).st_size < size:
            raise BrokenUsageError("it is too short")
        head = abi.UsageHead.from_buffer(bytearray(os.pread(file, size, 0)).ljust(size, b"\0"))
        slots = _live_slots(file, min(head.slots_used, abi.MAX_PROCESSES))
        return frozenset((slot.pid_namespace, slot.pid) for slot in slots if slot.pid)  # 0: taken just now
    finally:
        os.close(file)


def shares_memory(path: Path) -> bool:
    """Return whether a living process that counts in a usage file shares memory with others. Raises nothing."""
    with suppress(OSError):
        file = open_regular(path)
        if file is not None:
            try:
                return any(slot.shares_memory for slot in _live_slots(file, abi.MAX_PROCESSES))
            finally:
                os.close(file)
    return False


def is_starting(path: Path) -> bool:
    """Return whether a process that counts in a usage file is within its first call of CUDA. Raises OSError."""
    file = open_regular(path)
    if file is None:
        return False
    try:
        return is_locked(file, abi.START_LOCK_OFFSET)
    finally:
        os.close(file)


def read_asked_ns(path: Path) -> int:
    """Return when a program last waited for GPUs that were taken from it, by CLOCK_MONOTONIC; 0 for never.

    Raises nothing: a program that spoils the file asks for nothing.
    """
    with suppress(OSError):
        content = read_regular(path, sizeof(abi.UsageHead)) or b""
        if len(content) == sizeof(abi.UsageHead):
            asked_ns: int = abi.UsageHead.from_buffer_copy(content).asked_ns
            return asked_ns
    return 0


def _live_slots(file: int, count: int) -> list[abi.ProcessUsage]:
    size = sizeof(abi.ProcessUsage)
    content = bytearray(os.pread(file, count * size, abi.Usage.processes.offset)).ljust(count * size, b"\0")
    return [abi.ProcessUsage.from_buffer(content, slot * size) for slot in range(count) if is_live(file, slot)]


def _read_device(
    usage: abi.UsageHead, slots: Sequence[abi.ProcessUsage], number: int, uuid: str, age_s: float
) -> DeviceReading:
    shared = usage.devices[number]
    return replace(
        _read_memory(slots, number, uuid),
        not_enforced=tuple(name for name, bit in NOT_ENFORCED.items() if shared.not_enforced & bit),
        busy_ns=shared.busy_ns,
        throttled_ns=shared.throttled_ns,
        launches=shared.launches,
        refusals=shared.refusals,
        last_launch_ns=shared.last_launch_ns,
        utilization=read_seconds(shared.seconds, time.monotonic_ns(), age_s),
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
        limiter=LIMITERS.get(max((device.limiter for device in held if device.limiter in LIMITERS), default=0)),
    )
