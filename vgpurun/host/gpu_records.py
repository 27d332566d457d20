"""Which process a GPU worked for, and how long, as the GPU itself has recorded it: the driver's context switch records.

Root may have those of all users, others those of their own: from an event buffer of the driver's resource manager, in
memory that is mapped here. Requests and numbers are those of NVIDIA's open kernel modules (src/common/sdk/nvidia/inc,
nvos.h, class/ and ctrl/). A context that nobody else drives away stays on the GPU when it has nothing to do, and has no
records then.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import NamedTuple

from vgpurun.errors import ChannelError
from vgpurun.host.channels import Driver
from vgpurun.host.gpus import held_open
from vgpurun.util.process_identity import pid_namespace

_DEVICE, _SUBDEVICE, _MEMORY, _EVENT_BUFFER = 0x80, 0x2080, 0x90CE, 0x90CD
_GET_ATTACHED_IDS, _GET_ID_INFO, _MOST_IDS, _NO_ID = 0x201, 0x205, 32, 0xFFFFFFFF
_GET_GID_INFO, _GET_TIME, _BIND, _ENABLE, _FLUSH = 0x2080014A, 0x20800403, 0x20801238, 0x90CD0101, 0x90CD0104
_ID_INFO = struct.Struct("=7Ii")  # id, flags, number of the device, and others
_GID_INFO = struct.Struct("=3I256s")  # index, flags, length, text
_DEVICE_PARAMETERS = struct.Struct("=I4I4xQQQI4x")  # number of the device; none of the rest is needed
_MEMORY_PARAMETERS = struct.Struct("=5Ii6I7Q4IiI")
_WRITE_BACK, _USER_READ_ONLY = 5 << 29, 1 << 22
_BUFFER = struct.Struct("=2Q2IQ2IQ6I")
_BINDING = struct.Struct("=4IB3xI")  # buffer, bytes of a record, detail, filter, of all users, reason of a refusal
_SIMPLE, _KEEP_NEWEST = 1, 2
_ENABLING = struct.Struct("=B3xI")

_HEADER = struct.Struct("=2I3Q")  # get, put, count, dropped, data dropped
_RECORD = struct.Struct("=2HI2BH2I4xQ8x")  # type, subtype, data, tag, vm, number, context, pid, time in ns
_RECORDS, _HEADER_BYTES = 4096, 4096
_BEGINS, _ENDS = 6, 7
_FIRST_HANDLE = 0x7670C000  # our handles; the driver does not use them itself
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # the kernel's own number of it
_NUMBERS = 1 << 16


class Record(NamedTuple):
    """A process's context goes onto the GPU, or leaves it, by the GPU's own clock. `number` has 16 bits."""

    begins: bool
    pid: int
    context: int
    number: int
    time_ns: int


def lacking(is_simulated: bool) -> str:
    """Return why this process may not have the records of others, empty where it may."""
    if os.geteuid() != 0:
        return "it takes root"
    if not is_simulated and pid_namespace() != _FIRST_PID_NAMESPACE:
        return "it takes the host's PIDs"
    return ""


@contextmanager
def opened(libcuda: str) -> Iterator["GpuRecords"]:
    """Yield the records from now on. Raises ChannelError, GpuError and OSError."""
    with ExitStack() as stack:
        stack.enter_context(held_open())  # which has the driver know its GPUs
        yield stack.enter_context(closing(GpuRecords(Driver(libcuda))))


class GpuRecords:
    """The records of all GPUs of this host, from now on. Root alone may have those of other users with their PIDs."""

    def __init__(self, driver: Driver) -> None:
        """Raises ChannelError, and OSError."""
        self._driver = driver
        self._next_handle = _FIRST_HANDLE
        with ExitStack() as stack:
            self._file = driver.open_control()
            stack.callback(os.close, self._file)
            self._client = driver.make_client(self._file)
            self._gpus = [self._make_gpu(number) for number in self._numbers()]
            stack.pop_all()

    def _numbers(self) -> list[int]:
        """Return the numbers by which the driver knows its devices."""
        answer = self._ask(self._client, _GET_ATTACHED_IDS, bytes(4 * _MOST_IDS))
        ids = [each for each in struct.unpack(f"={_MOST_IDS}I", answer) if each != _NO_ID]
        infos = (self._ask(self._client, _GET_ID_INFO, _ID_INFO.pack(each, *[0] * 7)) for each in ids)
        return [_ID_INFO.unpack(each)[2] for each in infos]

    def _make_gpu(self, number: int) -> "_Gpu":
        device = self._make(self._client, _DEVICE, _DEVICE_PARAMETERS.pack(number, *[0] * 8))
        subdevice = self._make(device, _SUBDEVICE, bytes(4))
        header, header_memory = self._make_memory(_HEADER_BYTES)
        ring, ring_memory = self._make_memory(_RECORDS * _RECORD.size)
        parameters = _BUFFER.pack(0, 0, _RECORD.size, _RECORDS, 0, 0, 1, 0, 0, subdevice, 0, header, ring, 0)
        buffer = self._make(self._client, _EVENT_BUFFER, parameters)
        self._ask(subdevice, _BIND, _BINDING.pack(buffer, _RECORD.size - 8, _SIMPLE, 0, os.geteuid() == 0, 0))
        self._ask(buffer, _ENABLE, _ENABLING.pack(True, _KEEP_NEWEST))
        *_, uuid = _GID_INFO.unpack(self._ask(subdevice, _GET_GID_INFO, bytes(_GID_INFO.size)))
        next_ = _HEADER.unpack_from(header_memory)[1]
        return _Gpu(uuid.partition(b"\0")[0].decode(), subdevice, buffer, header_memory, ring_memory, next_)

    def _make_memory(self, size: int) -> tuple[int, mmap.mmap]:
        parameters = _MEMORY_PARAMETERS.pack(
            *[0] * 6, _WRITE_BACK, _USER_READ_ONLY, *[0] * 4, 0, 0, size, *[0] * 4, *[0] * 4, -1, 0
        )
        handle = self._make(self._client, _MEMORY, parameters)
        file = self._driver.open_control()  # each mapping takes one of its own
        try:
            self._driver.map_memory(self._file, self._client, handle, size, file)
            return handle, mmap.mmap(file, size, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(file)

    def _make(self, parent: int, class_: int, parameters: bytes) -> int:
        self._next_handle += 1
        return self._driver.make(self._file, self._client, parent, self._next_handle, class_, parameters)

    def _ask(self, target: int, command: int, parameters: bytes) -> bytes:
        status, answer = self._driver.control(self._file, self._client, target, command, parameters)
        if status:
            raise ChannelError(f"the driver refuses {command:#x}: {status:#x}")
        return answer

    @property
    def uuids(self) -> list[str]:
        """Return the UUIDs of all GPUs."""
        return [each.uuid for each in self._gpus]

    def now_ns(self, uuid: str) -> int:
        """Return the time by the GPU's clock. Raises ChannelError."""
        gpu = self._find(uuid)
        return int.from_bytes(self._ask(gpu.subdevice, _GET_TIME, bytes(8)), "little")

    def read(self, uuid: str) -> Iterator[Record]:
        """Yield what a GPU has recorded since the last time. Raises ChannelError."""
        gpu = self._find(uuid)
        self._ask(gpu.buffer, _FLUSH, b"")
        put = _HEADER.unpack_from(gpu.header)[1]
        while gpu.next != put:
            *_, tag, _, number, context, pid, time_ns = _RECORD.unpack_from(gpu.ring, gpu.next * _RECORD.size)
            gpu.next = (gpu.next + 1) % _RECORDS
            if tag in (_BEGINS, _ENDS):
                yield Record(tag == _BEGINS, pid, context, number, time_ns)

    def _find(self, uuid: str) -> "_Gpu":
        return next(each for each in self._gpus if each.uuid == uuid)

    def close(self) -> None:
        """Have the driver free it all."""
        for each in self._gpus:
            each.header.close()
            each.ring.close()
        os.close(self._file)


class _Gpu:
    def __init__(self, uuid: str, subdevice: int, buffer: int, header: mmap.mmap, ring: mmap.mmap, next_: int) -> None:
        self.uuid = uuid
        self.subdevice = subdevice
        self.buffer = buffer
        self.header = header
        self.ring = ring
        self.next = next_


class GpuTimes:
    """For how long each process had a GPU, by the records. Time between records of which some are lost is nobody's."""

    def __init__(self, records: GpuRecords) -> None:
        self.uuids = records.uuids
        self._records = records
        self._there: dict[str, tuple[int, int]] = {}  # each GPU's current process, 0 for nobody known, and since when
        self._numbers: dict[str, int] = {}  # the last record's

    def read(self, uuid: str) -> Iterator[tuple[int, int]]:
        """Yield PIDs, and the nanoseconds of each since the last time. Raises ChannelError."""
        for each in self._records.read(uuid):
            is_next = each.number == (self._numbers.get(uuid, each.number - 1) + 1) % _NUMBERS
            self._numbers[uuid] = each.number
            if is_next:
                yield from self._until(uuid, each.time_ns)
            self._there[uuid] = (each.pid if each.begins else 0, each.time_ns)
        yield from self._until(uuid, self._records.now_ns(uuid))

    def _until(self, uuid: str, until_ns: int) -> Iterator[tuple[int, int]]:
        pid, since_ns = self._there.get(uuid, (0, until_ns))
        if pid and until_ns > since_ns:
            yield pid, until_ns - since_ns
        self._there[uuid] = pid, max(since_ns, until_ns)
