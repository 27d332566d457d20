"""A process's channels, found and switched by another one that it has told nothing (vgpurun/host/channels.py)."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from simulated import Machine, driver

from support.programs import Program
from vgpurun.errors import ChannelError
from vgpurun.host.channels import Driver, ProcessChannels, _Client
from vgpurun.util.process_identity import ProcessIdentity, identify

SWITCH = """
import sys
from vgpurun.host.channels import Driver, ProcessChannels
from vgpurun.util.process_identity import identify
them = [ProcessChannels(identify(int(pid)), Driver()) for pid in sys.argv[1:]]
for line in sys.stdin:
    print(*(each.find() and each.switch(line == "off\\n") for each in them), flush=True)
"""


class Switch:
    """Another process, which switches some."""

    def __init__(self, machine: Machine, *targets: subprocess.Popen[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SWITCH, *(str(each.pid) for each in targets)],
            env=machine.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        machine.started.append(self.process)

    def __call__(self, word: str) -> list[int]:
        return [int(each) for each in said(self.process, word).split()]


def said(process: subprocess.Popen[str], line: str = "") -> str:
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def begun(machine: Machine, program: Program) -> subprocess.Popen[str]:
    process = machine.start_python(program)
    assert process.stdout.readline() == "ready\n"
    return process


def work() -> None:
    """At each line, run a short kernel and tell whether it ended."""
    kernel = driver.kernel("spin_1ms")
    print("ready")
    for _ in sys.stdin:
        driver.launch(kernel)
        time.sleep(0.05)
        print(driver.stream_is_done())


def test_off_and_on(machine: Machine) -> None:
    target, bystander = begun(machine, work), begun(machine, work)
    switch = Switch(machine, target)
    assert said(target) == "True"
    assert switch("off") == [9], "of the compute engine, and of its copies"
    assert said(target) == "False" and said(bystander) == "True"
    assert switch("on") == [9]
    assert said(target) == "True"
    assert log(machine) == "", "the driver was asked for no wrong client"


def log(machine: Machine) -> str:
    path = Path(f"{machine.environment['VGPUSIM_STATE']}.log")
    return path.read_text() if path.exists() else ""


def test_contexts_come_and_go(machine: Machine) -> None:
    def program() -> None:
        kernel, contexts = driver.kernel("spin_1ms"), []
        print("ready")
        for line in sys.stdin:
            if line == "more\n":
                contexts.append(driver.context_create())
                kernel = driver.kernel("spin_1ms")
            elif line == "fewer\n":
                driver.context_destroy(contexts.pop())
                driver.primary_context()
                kernel = driver.kernel("spin_1ms")
            driver.launch(kernel)
            time.sleep(0.05)
            print(driver.stream_is_done())

    target = begun(machine, program)
    switch = Switch(machine, target)
    assert switch("off") == [9]
    assert said(target, "more") == "True", "a new context is on"
    assert switch("off") == [18]
    assert said(target) == "False"
    assert switch("on") == [18]
    assert said(target) == "True"
    assert said(target, "fewer") == "True"
    assert switch("off") == [9], "a list with channels that are freed was refused, and made anew"
    assert said(target) == "False"
    assert log(machine) == ""


def test_those_behind_many_that_are_freed_are_not_lost(machine: Machine) -> None:
    """No channel is found behind more than 512 numbers of freed objects, but these were found before."""

    def program() -> None:
        contexts, kernel = [driver.context_create()], driver.kernel("spin_1ms")
        print("ready")
        for line in sys.stdin:
            if line == "next\n":
                contexts.append(driver.context_create())
                kernel = driver.kernel("spin_1ms")
            if line == "fewer\n" or len(contexts) > 2:
                driver.context_destroy(contexts.pop(0))
            if line == "\n":
                driver.launch(kernel)
                time.sleep(0.05)
            print(driver.stream_is_done())

    target = begun(machine, program)
    switch = Switch(machine, target)
    for _ in range(6):
        for _ in range(10):
            assert said(target, "next") == "True"
        assert switch("on") == [27]
    assert switch("off") == [27]
    assert said(target, "fewer") == "True"
    assert switch("on") == [18]
    assert said(target) == "True"


def test_several_gpus(machine: Machine) -> None:
    def program() -> None:
        here, one = driver.primary_context(), driver.kernel("spin_1ms")
        there = driver.context_create(1)
        other = driver.kernel("spin_1ms")
        print("ready")
        for _ in sys.stdin:
            for context, kernel in ((here, one), (there, other)):
                driver.set_current(context)
                driver.launch(kernel)
            time.sleep(0.05)
            print(driver.stream_is_done(), driver.set_current(here) or driver.stream_is_done())

    target = begun(machine, program)
    switch = Switch(machine, target)
    assert said(target) == "True True"
    assert switch("off") == [18]
    assert said(target) == "False False"
    assert switch("on") == [18]
    assert said(target) == "True True"


def test_numbers_like_those_of_clients(machine: Machine) -> None:
    """The driver is not asked for a program's own numbers (-26.00002 is one): those of libcuda come before them."""

    def program() -> None:
        kept = [struct.pack("=8I", *range(0xC1D00500 + each, 0xC1D00508 + each)) for each in range(0, 5000, 8)]
        work()
        print(len(kept))

    target = begun(machine, program)
    switch = Switch(machine, target)
    assert switch("off") == [9]
    assert said(target) == "False"
    assert log(machine) == ""


def test_files_of_any_name_are_mapped(machine: Machine) -> None:
    """Names of no text, and of what divides lines elsewhere."""
    folder = str(machine.folder)

    def program() -> None:
        kept = []
        for name in (b"\xff", b"a\x0cb", b"a\x1c b"):
            with (Path(folder) / os.fsdecode(name)).open("wb+") as file:
                file.truncate(mmap.PAGESIZE)
                kept.append(mmap.mmap(file.fileno(), mmap.PAGESIZE))
        work()
        print(len(kept))

    target = begun(machine, program)
    switch = Switch(machine, target)
    assert switch("off") == [9]
    assert said(target) == "False"


CLIENT, DEVICE, OF_DEVICE, FIRST = 0xC1D00500, 0x80, 0x2080, 0x5C000001


class Table(Driver):
    """Knows the parents and classes of objects, and how often channels were taken off; `is_there`: it can be asked."""

    def __init__(self, *objects: tuple[int, int]) -> None:
        self.objects = {FIRST + place: each for place, each in enumerate(objects)}
        self.times_off = Counter[int]()
        self.is_there = True

    @property
    def off(self) -> set[int]:
        return set(+self.times_off)

    def first_object(self, file: int, client: int, handles: Sequence[int]) -> int | None:
        del file, client
        return next((each for each in handles if each in self.objects), None)

    def control(self, file: int, client: int, target: int, command: int, parameters: bytes) -> tuple[int, bytes]:
        del file, client
        if not self.is_there:
            return -1, parameters
        if command == 0xD02:  # an object's parent or class
            handle, index, _ = struct.unpack("=2IQ", parameters)
            found = self.objects.get(handle)
            return (0, struct.pack("=2IQ", handle, index, found[index - 1])) if found else (0x57, parameters)
        is_off, count, *rest = struct.unpack("=B3xI8xQ64I64I", parameters)
        channels = set(rest[65 : 65 + count])
        if self.objects.get(target, (0, 0))[1] != OF_DEVICE or not channels <= self.objects.keys():
            return 0x57, parameters
        for each in channels:
            self.times_off[each] = self.times_off[each] + 1 if is_off else max(self.times_off[each] - 1, 0)
        return 0, parameters


def test_channels_below_a_device_and_below_a_group() -> None:
    table = Table((CLIENT, DEVICE), (FIRST, OF_DEVICE), (FIRST, 0xC86F), (FIRST, 0xA06C), (FIRST + 3, 0xC86F))
    client = _Client(table, 0, CLIENT)
    assert client.look() and client.count() == 2
    assert client.switch(True) == 0 and table.off == {FIRST + 2, FIRST + 4}


def test_what_is_lost_is_not_taken_for_what_is_on() -> None:
    table = Table((CLIENT, DEVICE), (FIRST, OF_DEVICE), (FIRST, 0xA06C), (FIRST + 2, 0xC86F))
    client = _Client(table, 0, CLIENT)
    client.look()
    assert client.switch(True) == 0
    subdevice = table.objects.pop(FIRST + 1)
    assert client.switch(False) != 0
    client.forget_freed()
    assert client.switch(False) != 0 and table.off
    table.is_there = False
    with pytest.raises(ChannelError, match="cannot be asked"):
        client.forget_freed()
    table.is_there = True
    table.objects[FIRST + 4] = subdevice
    client.look()
    assert client.switch(False) == 0 and not table.off


class Asked(Driver):
    """Tells how often it was asked for a client."""

    times = 0

    def knows(self, file: int, client: int) -> bool:
        self.times += 1
        return super().knows(file, client)


class Files(Table):
    """A driver whose files have the number of their client in them. `asked` are the numbers that it was asked for."""

    def __init__(self, *objects: tuple[int, int], newest: int = CLIENT + 255) -> None:
        super().__init__(*objects)
        self.asked: set[int] = set()
        self.newest = newest
        self.without_channels = 0

    def first_object(self, file: int, client: int, handles: Sequence[int]) -> int | None:
        return None if client == self.without_channels else super().first_object(file, client, handles)

    def newest_client(self) -> int:
        return self.newest

    def answers(self, file: int) -> bool:
        return bool(os.pread(file, 4, 0))

    def knows(self, file: int, client: int) -> bool:
        self.asked.add(client)
        return os.pread(file, 4, 0) == client.to_bytes(4, "little")


def with_files(machine: Machine, files: int) -> ProcessIdentity:
    """Start a process with files like the driver's, whose clients are the first of many numbers in its memory."""

    def program() -> None:
        for each in reversed(range(files)):
            file = os.memfd_create("nvidiactl", os.MFD_ALLOW_SEALING)
            os.write(file, (CLIENT + each).to_bytes(4, "little"))
            fcntl.fcntl(file, 1033, 15)
        kept = struct.pack("=256I", *range(CLIENT, CLIENT + 256))
        print("ready")
        print(sys.stdin.readline(), len(kept))

    process = machine.start_python(program, start=False)
    assert process.stdout.readline() == "ready\n"
    identity = identify(process.pid)
    assert identity
    return identity


def test_each_of_many_files_has_its_client(machine: Machine) -> None:
    """Each file is asked for the clients that another one does not know."""
    table = Files((CLIENT, DEVICE), (FIRST, OF_DEVICE), (FIRST, 0xC86F))
    channels = ProcessChannels(with_files(machine, 12), table)
    assert channels.find() == 12
    channels.close()


def test_what_is_off_already_is_taken_off_once(machine: Machine) -> None:
    """The driver counts; a new channel is off with the others."""
    table = Files((CLIENT, DEVICE), (FIRST, OF_DEVICE), (FIRST, 0xC86F))
    channels = ProcessChannels(with_files(machine, 1), table)
    channels.switch(True)
    table.objects[FIRST + 3] = (FIRST, 0xC86F)
    channels.find()
    assert channels.switch(True) == 2 and table.off == {FIRST + 2, FIRST + 3}
    channels.switch(False)
    assert not table.off
    channels.close()


def test_the_driver_is_asked_for_a_few_wrong_clients_at_most(machine: Machine) -> None:
    """Its clients have no channels, and there are numbers like theirs."""
    table = Files()
    channels = ProcessChannels(with_files(machine, 2), table)
    for _ in range(3):
        with pytest.raises(ChannelError, match="has no channels that can be found"):
            channels.switch(True)
    assert len(table.asked - {CLIENT, CLIENT + 1}) == 8


def test_the_driver_is_asked_for_no_client_that_it_cannot_have_made_yet(machine: Machine) -> None:
    """The second file has such a number, as random ones in a program's memory are."""
    table = Files((CLIENT, DEVICE), (FIRST, OF_DEVICE), (FIRST, 0xC86F), newest=CLIENT)
    channels = ProcessChannels(with_files(machine, 2), table)
    assert channels.find() == 1 and table.asked == {CLIENT}
    channels.close()


def test_a_client_from_before_the_driver_began_to_count_anew(machine: Machine) -> None:
    table = Files((CLIENT, DEVICE), (FIRST, OF_DEVICE), (FIRST, 0xC86F), newest=CLIENT - 1)
    channels = ProcessChannels(with_files(machine, 1), table)
    assert channels.find() == 1
    channels.close()


def test_nobody_looks_on_when_each_file_has_its_client(machine: Machine) -> None:
    """NVML's has no channels."""
    table = Files((CLIENT, DEVICE), (FIRST, OF_DEVICE), (FIRST, 0xC86F))
    table.without_channels = CLIENT + 1
    channels = ProcessChannels(with_files(machine, 2), table)
    assert channels.find() == 1 and table.asked == {CLIENT, CLIENT + 1}
    channels.close()


def test_a_file_that_only_looks_like_the_driver_s_is_none(machine: Machine) -> None:
    """Any program may make one."""
    asked = Asked(f"{machine.environment['LD_LIBRARY_PATH']}/libcuda.so.1")
    with pytest.raises(ChannelError, match="has no channels that can be found"):
        ProcessChannels(with_files(machine, 1), asked).find()
    assert asked.times == 0


def test_who_cannot_be_switched(machine: Machine) -> None:
    def program() -> None:
        print("ready")
        sys.stdin.readline()

    libcuda = Driver(f"{machine.environment['LD_LIBRARY_PATH']}/libcuda.so.1")
    process = machine.start_python(program, start=False)
    without = identify(process.pid)
    assert without
    with pytest.raises(ChannelError, match=f"process {process.pid} has no channels that can be found"):
        ProcessChannels(without, libcuda).switch(True)
    another = without._replace(started_ticks=without.started_ticks - 1)
    with pytest.raises(ChannelError, match=f"process {process.pid} has ended"):
        ProcessChannels(another, libcuda).switch(True)
    with pytest.raises(ChannelError, match=r"the driver cannot be loaded: .*no-such-library"):
        Driver("no-such-library.so.1")
