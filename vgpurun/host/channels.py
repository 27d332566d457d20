"""Switches a process's work on the GPUs off and on from outside, whatever the process has loaded.

Its channels are objects of the driver's resource manager, and obey the process's open /dev/nvidiactl, which root gets
by pidfd_getfd. Requests need object numbers. The client's number is searched for in the process's own memory, since
for a wrong one the driver may write a line to the kernel's log; the client itself tells the numbers of its objects.
Requests and numbers are those of NVIDIA's open kernel modules (src/common/sdk/nvidia/inc, nvos.h and ctrl/).
"""

import ctypes
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import NamedTuple

from vgpurun.errors import ChannelError
from vgpurun.host.client_numbers import client_numbers
from vgpurun.util.process_identity import ProcessIdentity

_DEVICE = os.makedev(195, 255)  # /dev/nvidiactl
_NAME = "nvidiactl"
_NO_FOLDER = -100  # AT_FDCWD
_MOST_FILES = 64  # descriptors of a process
_F_GET_SEALS = 1034
_KCMP, _KCMP_FILE = {"x86_64": 312, "aarch64": 272}, 0

_NO_REQUEST = 0x4600  # _IO('F', 0)
_CONTROL = 0xC020462A  # _IOWR('F', 0x2a, the 32 bytes of _CALL)
_CALL = struct.Struct("=4IQ2I")  # client, object, command, flags, parameters, their size, status
_MAKE = 0xC030462B
_MAKING = struct.Struct("=4I2Q3I4x")  # client, parent, object, class, parameters, rights, size, flags, status
_MAP = 0xC038464E
_MAPPING = struct.Struct("=3I4x3Q2Ii4x")  # client, device, memory, offset, length, address, status, flags, file
_READ_ONLY = 1
_OK, _INVALID_CLIENT, _NOT_FOUND, _NOT_CALLED = 0, 0x23, 0x57, -1

_GET_HANDLE_INFO = 0xD02  # NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO
_HANDLE_INFO = struct.Struct("=2IQ")  # handle, index, result
_PARENT, _CLASS = 1, 2
_ROOT_CLIENT, _SUBDEVICE = 0x41, 0x2080
_FIRST_OBJECT = 0x5C000000  # libcuda numbers its objects upwards from there
_MOST_OBJECTS = 1 << 16
_MOST_UNUSED = 512  # numbers in a row; there are no objects behind them
_FEW_UNUSED = 64  # behind which there hardly are any

_DISABLE_CHANNELS = 0x2080110B  # NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS
_CHANNELS_OF_CALL = 64
_SWITCH = struct.Struct(f"=B3xI8xQ{_CHANNELS_OF_CALL}I{_CHANNELS_OF_CALL}I")  # off, count, event, clients, channels

_GROUP = 0xA06C
_SET_TIMESLICE, _GET_TIMESLICE = 0xA06C0103, 0xA06C0104
DEFAULT_SLICE_US, _COPY_SLICE_US = 2048, 1024  # the driver's, of the compute engine and of copy engines

_FIRST_CLIENT, _LAST_CLIENT = 0xC1D00000, 0xC1DFFFFF  # their upper halves end in 0xc1
_MOST_WRONG = 8  # numbers that no file of a process knows as a client: the driver may write a line for each


class Driver:
    """The driver's control calls, which each go to another process's descriptor."""

    def __init__(self, libcuda: str = "libcuda.so.1") -> None:
        """Raises ChannelError. `libcuda`: its ioctl, or that of what it is linked with, is used."""
        try:
            library = ctypes.CDLL(libcuda, use_errno=True)
            self._ioctl, self._open = library.ioctl, library.openat
        except OSError as error:
            raise ChannelError(f"the driver cannot be loaded: {error}") from None
        self._ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
        self._call, self._parameters = bytearray(_CALL.size), bytearray(_SWITCH.size)  # once: there are many calls
        self._call_at = ctypes.addressof(ctypes.c_char.from_buffer(self._call))
        self._status = ctypes.c_uint32.from_buffer(self._call, _CALL.size - 4)
        self._parameters_at = ctypes.addressof(ctypes.c_char.from_buffer(self._parameters))

    def control(self, file: int, client: int, target: int, command: int, parameters: bytes) -> tuple[int, bytes]:
        """Return the driver's status, and what it has made of the parameters: 536 bytes at most."""
        size = len(parameters)
        self._parameters[:size] = parameters
        at = self._parameters_at if size else 0  # the driver refuses a place for nothing
        _CALL.pack_into(self._call, 0, client, target, command, 0, at, size, 0)
        if self._ioctl(file, _CONTROL, self._call_at):
            return _NOT_CALLED, parameters
        return _CALL.unpack_from(self._call)[-1], bytes(self._parameters[:size])

    def open_control(self) -> int:
        """Open the control device: a client of its own may be made by it. Raises ChannelError."""
        file = self._open(_NO_FOLDER, b"/dev/nvidiactl", os.O_RDWR | os.O_CLOEXEC)
        if file < 0:
            raise ChannelError(f"the driver's control device cannot be opened: {os.strerror(ctypes.get_errno())}")
        return int(file)

    def make(self, file: int, client: int, parent: int, handle: int, class_: int, parameters: bytes) -> int:
        """Make an object; return its handle, which the driver chooses for 0. Raises ChannelError."""
        size = len(parameters)
        given = ctypes.create_string_buffer(parameters, size)
        call = bytearray(_MAKING.pack(client, parent, handle, class_, ctypes.addressof(given), 0, size, 0, 0))
        refused = self._ioctl(file, _MAKE, ctypes.addressof(ctypes.c_char.from_buffer(call)))
        *_, made, _, _, _, _, _, status = _MAKING.unpack(call)
        if refused or status:
            raise ChannelError(f"the driver makes no object of class {class_:#x}: {status:#x}")
        return int(made)

    def map_memory(self, file: int, client: int, memory: int, size: int, into: int) -> None:
        """Let an open file of the control device be mapped as a memory object. Raises ChannelError."""
        call = bytearray(_MAPPING.pack(client, client, memory, 0, size, 0, 0, _READ_ONLY, into))
        refused = self._ioctl(file, _MAP, ctypes.addressof(ctypes.c_char.from_buffer(call)))
        *_, status, _, _ = _MAPPING.unpack(call)
        if refused or status:
            raise ChannelError(f"the driver does not map memory: {status:#x}")

    def look_up(self, file: int, client: int, handle: int, index: int) -> int | None:
        """Return the parent or the class of an object, or None where there is none. Raises ChannelError."""
        asked = _HANDLE_INFO.pack(handle, index, 0)
        status, found = self.control(file, client, client, _GET_HANDLE_INFO, asked)
        if status == _NOT_CALLED:
            raise ChannelError("the driver cannot be asked for channels")
        return int(_HANDLE_INFO.unpack(found)[2]) & 0xFFFFFFFF if status == _OK else None

    def first_object(self, file: int, client: int, handles: Sequence[int]) -> int | None:
        """Return the first of these numbers that is an object's, or None. Raises ChannelError.

        Nearly none is, and there are hundreds each second, so the call is laid out once for all of them.
        """
        _CALL.pack_into(self._call, 0, client, client, _GET_HANDLE_INFO, 0, self._parameters_at, _HANDLE_INFO.size, 0)
        ask, at, asked, lay_out = self._ioctl, self._call_at, self._parameters, _HANDLE_INFO.pack_into
        for handle in handles:
            lay_out(asked, 0, handle, _CLASS, 0)
            if ask(file, _CONTROL, at):
                raise ChannelError("the driver cannot be asked for channels")
            if self._status.value == _OK:
                return handle
        return None

    def answers(self, file: int) -> bool:
        """Whether the driver, and not the kernel, answers on a memory file: the simulated one does on its own."""
        return self._ioctl(file, _NO_REQUEST, None) != 0 and ctypes.get_errno() == errno.EINVAL

    def make_client(self, file: int) -> int:
        """Make a client, which ends with its file; return its number. Raises ChannelError."""
        return self.make(file, 0, 0, 0, _ROOT_CLIENT, bytes(4))

    def newest_client(self) -> int:
        """Return the number of a client that is made now. Raises ChannelError."""
        file = self.open_control()
        try:
            return self.make_client(file)
        finally:
            os.close(file)

    def knows(self, file: int, client: int) -> bool:
        """Whether a client is one of the descriptor's."""
        asked = _HANDLE_INFO.pack(client, _CLASS, 0)
        return self.control(file, client, client, _GET_HANDLE_INFO, asked)[0] not in (_INVALID_CLIENT, _NOT_CALLED)


class _Object(NamedTuple):
    parent: int
    class_: int

    @property
    def is_channel(self) -> bool:
        return self.class_ & 0xFF == 0x6F and 0xA000 < self.class_ < 0xE000


class _Switching(NamedTuple):
    """How a client's channels are switched: each call goes to a subdevice, and has parameters for on and for off.

    `are_all`: no channel is left out, as one would be that belongs to no subdevice.
    """

    channels: int
    are_all: bool
    calls: Sequence[tuple[int, tuple[bytes, bytes]]]


class _Client:
    """The objects that a client of the driver has allocated, as far as they are known. `file` is its descriptor."""

    def __init__(self, driver: Driver, file: int, handle: int) -> None:
        self._driver = driver
        self._file = file
        self._handle = handle
        self._objects: dict[int, _Object] = {}
        self._known: _Switching | None = None  # None: not worked out yet
        self._last = _FIRST_OBJECT  # the last object found

    def look(self, most_unused: int = _MOST_UNUSED) -> bool:
        """Find what has been allocated since the last time; return whether there are channels among it.

        Raises ChannelError.
        """
        handle = self._last
        are_new = False
        while (found := self._next(handle, most_unused)) is not None:
            handle = found
            class_ = self._driver.look_up(self._file, self._handle, handle, _CLASS)
            parent = self._driver.look_up(self._file, self._handle, handle, _PARENT) if class_ is not None else None
            if class_ is not None and parent is not None:
                self._objects[handle] = _Object(parent, class_)
                self._known = None
                are_new |= self._objects[handle].is_channel
                self._last = handle
        return are_new

    def _next(self, handle: int, most_unused: int) -> int | None:
        """Return the next number that is an object's, up to so many behind the last object."""
        end = min(self._last + most_unused, _FIRST_OBJECT + _MOST_OBJECTS)
        return self._driver.first_object(self._file, self._handle, range(handle + 1, end + 1))

    def forget_freed(self) -> None:
        """Forget what is there no more. Raises ChannelError."""
        for handle in list(self._objects):
            if self._driver.look_up(self._file, self._handle, handle, _CLASS) is None:
                del self._objects[handle]
                self._known = None

    def switch(self, off: bool) -> int:
        """Switch all channels, or none if one of them is freed by now; return the driver's status.

        A channel that belongs to no subdevice cannot be switched, and counts as refused.
        """
        switching = self._switching()
        for subdevice, parameters in switching.calls:
            status = self._driver.control(self._file, self._handle, subdevice, _DISABLE_CHANNELS, parameters[off])[0]
            if status != _OK:
                return status
        return _OK if switching.are_all else _NOT_FOUND

    def set_slice(self, slice_us: int) -> int:
        """Set for how long each group has the GPU at a time; return the driver's first status that is no success."""
        statuses = [self._set_slice(group, slice_us) for group in self._groups()]
        return next((each for each in statuses if each != _OK), _OK)

    def _set_slice(self, group: int, slice_us: int) -> int:
        asked = slice_us.to_bytes(8, "little")
        return self._driver.control(self._file, self._handle, group, _SET_TIMESLICE, asked)[0]

    def _groups(self) -> list[int]:
        """Return the groups of the compute engine; those of copy engines have the driver's own slice for these."""
        groups = [handle for handle, each in self._objects.items() if each.class_ == _GROUP]
        return [each for each in groups if self._slice_us(each) not in (None, _COPY_SLICE_US)]

    def _slice_us(self, group: int) -> int | None:
        status, found = self._driver.control(self._file, self._handle, group, _GET_TIMESLICE, bytes(8))
        return int.from_bytes(found, "little") if status == _OK else None

    def _switching(self) -> _Switching:
        """Work it out once for the same objects: a process that is held is switched twenty times a second."""
        if self._known is None:
            found = self._find_channels()
            count = sum(map(len, found.values()))
            are_all = count == sum(each.is_channel for each in self._objects.values())
            pieces = [
                (subdevice, channels[first : first + _CHANNELS_OF_CALL])
                for subdevice, channels in found.items() for first in range(0, len(channels), _CHANNELS_OF_CALL)
            ]  # fmt: skip
            self._known = _Switching(count, are_all, [(each, self._parameters(those)) for each, those in pieces])
        return self._known

    def _parameters(self, channels: Sequence[int]) -> tuple[bytes, bytes]:
        """Return those that switch channels on, and off."""
        rest = [0] * (_CHANNELS_OF_CALL - len(channels))
        clients = [self._handle] * len(channels)
        words = (len(channels), 0, *clients, *rest, *channels, *rest)
        return _SWITCH.pack(False, *words), _SWITCH.pack(True, *words)

    def _find_channels(self) -> dict[int, list[int]]:
        of_device = {each.parent: handle for handle, each in self._objects.items() if each.class_ == _SUBDEVICE}
        found: dict[int, list[int]] = {}
        for handle, each in self._objects.items():
            group = self._objects.get(each.parent)
            device = each.parent if each.parent in of_device or group is None else group.parent
            if each.is_channel and device in of_device:
                found.setdefault(of_device[device], []).append(handle)
        return found

    def count_groups(self) -> int:
        """Return how many groups there are whose time slice can be set."""
        return len(self._groups())

    def count(self) -> int:
        """Return how many channels there are."""
        return self._switching().channels


class ProcessChannels:
    """The channels of one process. Root alone may have them of any process."""

    def __init__(self, process: ProcessIdentity, driver: Driver) -> None:
        self.process = process
        self._may_be_off = False
        self._driver = driver
        self._files: dict[int, int] = {}  # by the number that each has in the process
        self._clients: dict[int, _Client] = {}  # by the number of the file that each is a client of
        self._wrong: set[int] = set()  # numbers of no client of its files

    def find(self, is_quick: bool = False) -> int:
        """Look for all that is there; return how many channels there are now. Raises ChannelError.

        `is_quick`: a fifth of the questions, which miss what is behind many numbers of freed objects.
        """
        for each in self._clients.values():
            each.look(_FEW_UNUSED if is_quick else _MOST_UNUSED)
        if not self._count():
            self._find_clients()
        return self._count()

    def are_its_own(self) -> bool:
        """Whether the process still has the files that its channels were found by: exec() closes them, and it goes on.

        The driver frees what is left of them when these duplicates are closed, too.
        """
        return all(_is_same_file(self.process.pid, number, file) for number, file in self._files.items())

    def switch(self, off: bool) -> int:
        """Take its work off the GPUs, in the middle of a kernel, or put it back; return how many channels it has.

        Only channels that find() has found are switched. The driver counts how often each was taken off: what may be
        off by now is put back first, so that it is off once. Raises ChannelError, also if there are none to
        take off.
        """
        if off and not self._clients:
            self.find()
        if off and self._may_be_off:
            self._turn(False)
        self._may_be_off |= off
        self._turn(off)
        self._may_be_off = off
        return self._count()

    def _turn(self, off: bool) -> None:
        """Raises ChannelError. Of a list that is refused, some may have been switched."""
        for each in self._clients.values():
            if each.switch(off) != _OK:
                each.forget_freed()
                each.look()
                if off:
                    each.switch(False)
                if status := each.switch(off):
                    raise ChannelError(f"the driver refuses to switch process {self.process.pid}: {status:#x}")

    def set_slice(self, slice_us: int) -> int:
        """Set for how long it has a GPU at a time while others want it too, for all that is found so far.

        Returns for how many groups of channels that is. Raises ChannelError.
        """
        for each in self._clients.values():
            if each.set_slice(slice_us) != _OK:
                each.forget_freed()
                each.look()
                if status := each.set_slice(slice_us):
                    raise ChannelError(f"the driver refuses process {self.process.pid} a time slice: {status:#x}")
        return sum(each.count_groups() for each in self._clients.values())

    def _count(self) -> int:
        return sum(each.count() for each in self._clients.values())

    def close(self) -> None:
        """Let go of its descriptors; what is off stays off."""
        for each in self._files.values():
            os.close(each)
        self._files, self._clients = {}, {}

    def _find_clients(self) -> None:
        self.close()
        try:
            with self.process.opened() as process:
                if process is None:
                    raise ChannelError(f"process {self.process.pid} has ended")
                self._files = dict(_control_files(self.process.pid, process, self._driver))
                self._clients = dict(self._ask_for_clients())
        except OSError as error:
            raise ChannelError(f"process {self.process.pid} cannot be looked into: {error.strerror}") from None
        finally:
            for number in self._files.keys() - self._clients.keys():
                os.close(self._files.pop(number))
        if not self._clients:
            raise ChannelError(f"process {self.process.pid} has no channels that can be found")

    def _ask_for_clients(self) -> Iterator[tuple[int, _Client]]:
        """Yield each descriptor with channels, and its first client that has some.

        NVML's descriptors have clients without any, for which it is enough to be known. The driver counts clients
        upwards, and begins anew after a million: only then a greater number than a new client's may be one.
        """
        unknown, found = set(self._files), set[int]()
        if not unknown:
            return
        newest = self._driver.newest_client()
        likely = client_numbers(self.process.pid, _FIRST_CLIENT, newest)
        greater = client_numbers(self.process.pid, min(newest + 1, _LAST_CLIENT), _LAST_CLIENT)
        for number in chain(likely, takewhile(lambda _: not found, islice(greater, _MOST_WRONG))):
            if owner := self._owner_of(number, unknown, found):
                yield owner
            if found and not unknown:
                return

    def _owner_of(self, number: int, unknown: set[int], found: set[int]) -> tuple[int, _Client] | None:
        """Return the descriptor of a client, and the client, if it is the first one with channels."""
        if number in self._wrong or len(self._wrong) >= _MOST_WRONG:
            return None
        owner = next((name for name, file in self._files.items() if self._driver.knows(file, number)), None)
        if owner is None:
            self._wrong.add(number)
            return None
        unknown.discard(owner)
        client = _Client(self._driver, self._files[owner], number)
        if owner in found or not client.look():
            return None
        found.add(owner)
        return owner, client


def _control_files(pid: int, process: int, driver: Driver) -> Iterator[tuple[int, int]]:
    """Yield the control descriptors of a process, and a duplicate of each, by its pidfd. Raises OSError."""
    count = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if _NAME not in str(each.readlink()):
                continue
            file = _pidfd_getfd(process, int(each.name))
            if not (_is_control(file, driver) and _is_same_file(pid, int(each.name), file)):
                os.close(file)
                continue
            yield int(each.name), file
            count += 1
        if count == _MOST_FILES:
            return


def _is_control(file: int, driver: Driver) -> bool:
    """Whether it is the driver's, or a memory file of the simulated one; another file may have any name."""
    found = os.fstat(file)
    if stat.S_ISCHR(found.st_mode):
        return found.st_rdev == _DEVICE
    try:
        return bool(fcntl.fcntl(file, _F_GET_SEALS)) and driver.answers(file)
    except OSError:
        return False


def _is_same_file(pid: int, number: int, file: int) -> bool:
    """Whether a process's descriptor and ours share one open file description (kcmp)."""
    libc = ctypes.CDLL(None)
    return bool(libc.syscall(_KCMP[os.uname().machine], pid, os.getpid(), _KCMP_FILE, number, file) == 0)


def _pidfd_getfd(process: int, number: int) -> int:
    """Duplicate a descriptor of another process. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    file = int(libc.syscall(438, process, number, 0))
    if file < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return file
