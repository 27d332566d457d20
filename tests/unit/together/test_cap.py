"""A group's part of the time is held by the real times at which its work was on and off."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from typing import ClassVar

import pytest

from support import wait_until
from vgpurun.errors import ChannelError
from vgpurun.host.channels import DEFAULT_SLICE_US
from vgpurun.together import cap as module
from vgpurun.together.cap import Cap
from vgpurun.util.process_identity import ProcessIdentity, identify

ONE, OTHER = ProcessIdentity(1, 1, "boot"), ProcessIdentity(2, 1, "boot")


class Channels:
    """Channels of a process, which note when they were switched.

    `missing` has the processes that have none, and `freed` those that have none any more.
    """

    switched: ClassVar[list[tuple[int, bool, float]]] = []
    sliced: ClassVar[list[tuple[int, int]]] = []
    missing: ClassVar[set[int]] = set()
    freed: ClassVar[set[int]] = set()
    groups = 1
    call_s = 0.002

    def __init__(self, process: ProcessIdentity, _: object) -> None:
        self.process = process

    def find(self) -> int:
        if self.process.pid in self.missing:
            raise ChannelError("none")
        return 0 if self.process.pid in self.freed else 8

    def switch(self, off: bool) -> int:
        time.sleep(self.call_s)
        if self.process.pid in self.missing:
            raise ChannelError("gone")
        if self.process.pid in self.freed:
            return 0
        self.switched.append((self.process.pid, off, time.monotonic()))
        return 8

    def set_slice(self, slice_us: int) -> int:
        if self.process.pid in self.missing:
            raise ChannelError("gone")
        self.sliced.append((self.process.pid, slice_us))
        return self.groups

    def close(self) -> None:
        pass


@pytest.fixture
def channels(monkeypatch: pytest.MonkeyPatch) -> type[Channels]:
    monkeypatch.setattr(module, "ProcessChannels", Channels)
    monkeypatch.setattr(module, "Driver", lambda _: None)
    monkeypatch.setattr(Channels, "switched", [])
    monkeypatch.setattr(Channels, "sliced", [])
    monkeypatch.setattr(Channels, "missing", set())
    monkeypatch.setattr(Channels, "freed", set())
    return Channels


def on_ratio(switched: list[tuple[int, bool, float]]) -> float:
    spans = [(after[2] - before[2], before[1]) for before, after in pairwise(switched)]
    return sum(span for span, was_off in spans if not was_off) / sum(span for span, _ in spans)


@pytest.mark.real_time
def test_what_calls_take_is_made_up_for(channels: type[Channels]) -> None:
    cap = Cap("libcuda", lambda _: True)
    cap.clients, cap.percent = [ONE], 60
    time.sleep(2.5)
    cap.end()
    assert on_ratio(channels.switched[2:]) == pytest.approx(0.6, abs=0.02)
    assert channels.switched[-1][1] is False, "it goes on at the end"


class Others:
    """They have the GPU for a part of the time."""

    def __init__(self, part: float) -> None:
        self.part = part
        self.asked_s = time.monotonic()

    def had_s(self) -> float:
        passed_s = time.monotonic() - self.asked_s
        self.asked_s += passed_s
        return self.part * passed_s


def test_for_the_time_that_others_had_it_is_not_off(channels: type[Channels]) -> None:
    cap = Cap("libcuda", lambda _: True, Others(0.9).had_s)
    cap.clients, cap.percent = [ONE], 20
    time.sleep(1)
    cap.end()
    assert not any(off for _, off, _ in channels.switched) and cap.trouble == ""


@pytest.mark.real_time
def test_of_the_time_that_others_leave_it_has_its_part(channels: type[Channels]) -> None:
    cap = Cap("libcuda", lambda _: True, Others(0.5).had_s)
    cap.clients, cap.percent = [ONE], 20
    time.sleep(2.5)
    cap.end()
    assert on_ratio(channels.switched[2:]) == pytest.approx(0.4, abs=0.04)


def test_without_a_limit_nothing_is_switched(channels: type[Channels]) -> None:
    cap = Cap("libcuda", lambda _: True)
    cap.clients = [ONE]
    time.sleep(0.1)
    cap.end()
    assert channels.switched == []


def test_another_client_is_taken_where_one_has_ended_or_has_no_channels(channels: type[Channels]) -> None:
    cap = Cap("libcuda", lambda _: True)
    channels.missing.add(ONE.pid)
    cap.clients, cap.percent = [ONE, OTHER], 50
    wait_until(lambda: channels.switched)
    cap.end()
    assert {pid for pid, _, _ in channels.switched} == {OTHER.pid} and cap.trouble == ""


def test_on_several_gpus_the_channels_of_all_clients_are_switched(channels: type[Channels]) -> None:
    """Each may work on another GPU, and what it has there it may get later than the others."""
    cap = Cap("libcuda", lambda _: True, are_several=True)
    cap.clients, cap.percent = [ONE, OTHER], 50
    channels.missing.add(OTHER.pid)
    wait_until(lambda: channels.switched)
    channels.missing.clear()
    wait_until(lambda: {pid for pid, off, _ in channels.switched if off} == {ONE.pid, OTHER.pid})
    cap.clients = [OTHER]
    wait_until(lambda: {pid for pid, _, _ in channels.switched[-4:]} == {OTHER.pid})
    cap.end()
    for each in (ONE, OTHER):
        assert [off for pid, off, _ in channels.switched if pid == each.pid][-1] is False


def test_on_several_gpus_what_a_client_gets_later_is_looked_for(
    channels: type[Channels], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    monkeypatch.setattr(module, "_LOOK_S", 0.05)
    monkeypatch.setattr(channels, "find", lambda own, is_quick=False: looks.append((own.process.pid, is_quick)) or 8)
    cap = Cap("libcuda", lambda _: True, are_several=True)
    cap.clients, cap.percent = [ONE], 50
    wait_until(lambda: looks.count((ONE.pid, True)) > 2)
    cap.end()
    assert looks.count((ONE.pid, False)) == 1


def test_a_client_that_is_not_listed_any_more_is_not_left_off(channels: type[Channels]) -> None:
    """A daemon that answers late names none of its clients."""
    cap = Cap("libcuda", lambda _: True)
    cap.clients, cap.percent = [ONE], 10
    wait_until(lambda: len(channels.switched) >= 3)
    cap.clients = []
    time.sleep(0.2)
    assert channels.switched[-1][1] is False
    cap.end()


def test_what_the_driver_refuses_to_put_back_is_put_back_later(
    channels: type[Channels], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else would do it. The client is a process that lives."""
    client = identify(os.getpid())
    assert client is not None
    refused = [ChannelError("refused")] * 60  # more than a period tries
    switch = channels.switch

    def refuse(own: Channels, off: bool) -> int:
        if not off and refused:
            raise refused.pop()
        return switch(own, off)

    monkeypatch.setattr(channels, "call_s", 0.0)
    monkeypatch.setattr(channels, "switch", refuse)
    cap = Cap("libcuda", lambda _: True)
    cap.clients, cap.percent = [client], 10
    wait_until(lambda: channels.switched)
    cap.clients = []
    wait_until(lambda: channels.switched[-1][1] is False)
    assert not refused
    cap.end()


def test_another_client_is_taken_where_one_has_freed_its_channels_and_lives(channels: type[Channels]) -> None:
    cap = Cap("libcuda", lambda _: True)
    cap.clients, cap.percent = [ONE, OTHER], 50
    wait_until(lambda: channels.switched)
    channels.freed.add(ONE.pid)
    wait_until(lambda: channels.switched[-1][0] == OTHER.pid)
    cap.end()


@pytest.mark.parametrize("error", [ChannelError("refused"), KeyError("a mistake")])
def test_work_that_cannot_be_switched_is_said(
    channels: type[Channels], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(_: Channels, off: bool) -> int:
        del off
        raise error

    monkeypatch.setattr(module, "_HELD_IN_S", 0.1)
    with monkeypatch.context() as refusing:
        refusing.setattr(channels, "switch", refuse)
        cap = Cap("libcuda", lambda _: True)
        cap.clients, cap.percent = [ONE], 50
        wait_until(lambda: cap.trouble)
    wait_until(lambda: not cap.trouble)
    cap.end()


def test_a_client_that_is_no_member_is_not_switched_and_that_is_said(
    channels: type[Channels], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as any process that a socket in the daemon's place names, or a program that has hidden its beginning."""
    monkeypatch.setattr(module, "_HELD_IN_S", 0.1)
    cap = Cap("libcuda", lambda client: client == OTHER)
    cap.clients, cap.percent = [ONE], 50
    wait_until(lambda: cap.trouble)
    cap.clients = [ONE, OTHER]
    wait_until(lambda: channels.switched)
    cap.end()
    assert {pid for pid, _, _ in channels.switched} == {OTHER.pid}


@pytest.mark.parametrize("percent", [None, 50])
def test_a_time_slice_is_set_again_and_again_until_it_is_the_driver_s_own(
    channels: type[Channels], monkeypatch: pytest.MonkeyPatch, percent: int | None
) -> None:
    monkeypatch.setattr(module, "_IDLE_S", 0.01)
    monkeypatch.setattr(module, "_SLICE_AGAIN_S", 0.05)
    cap = Cap("libcuda", lambda _: True)
    cap.clients, cap.percent, cap.slice_us = [ONE], percent, 4000
    wait_until(lambda: channels.sliced[1:] == [(ONE.pid, 4000)] * len(channels.sliced[1:]) and channels.sliced[1:])
    cap.slice_us = DEFAULT_SLICE_US
    wait_until(lambda: channels.sliced[-1] == (ONE.pid, DEFAULT_SLICE_US))
    time.sleep(0.2)
    cap.end()
    assert [slice_us for _, slice_us in channels.sliced].count(DEFAULT_SLICE_US) == 1
    assert any(off for _, off, _ in channels.switched) == (percent is not None) and cap.slice_trouble == ""


def test_a_time_slice_that_cannot_be_set_is_said(channels: type[Channels], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE_S", 0.01)
    monkeypatch.setattr(module, "_SLICE_AGAIN_S", 0.05)
    monkeypatch.setattr(module, "_HELD_IN_S", 0.1)
    cap = Cap("libcuda", lambda _: True)
    with monkeypatch.context() as without_groups:
        without_groups.setattr(channels, "groups", 0)
        cap.clients, cap.slice_us = [ONE], 4000
        wait_until(lambda: cap.slice_trouble)
    wait_until(lambda: not cap.slice_trouble)
    channels.missing.add(ONE.pid)
    wait_until(lambda: cap.slice_trouble)
    cap.clients = [ONE, OTHER]
    wait_until(lambda: not cap.slice_trouble)
    cap.end()
    assert channels.sliced[-1] == (OTHER.pid, 4000) and cap.trouble == ""
