"""Time slices for programs outside vgpurun: for whom the administrator asks, and for nobody else."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from fakes import MIB
from guard_world import Fake, World

from vgpurun.guard.outside_slices import Slices
from vgpurun.host.freezer import paths_of


def test_by_user(world: Callable[..., World]) -> None:
    made = world(slices=Slices({"bob": 150}, {}))
    his = made.put("", MIB, user="bob")
    others = [
        made.put("", MIB, user="ann"),
        made.put("", MIB, user="bob", foreign="f" * 64),
        made.put("", MIB, user="bob", is_counted=True),
        made.put(None, MIB, user="bob"),
        made.put(made.add(), MIB, user="bob"),
    ]
    made.run(1)
    assert made.switches.slices_us == {his.pid: 150}, others
    later = made.put("", MIB, user="bob")
    made.run(1)
    assert made.switches.slices_us == {his.pid: 150, later.pid: 150}
    later.container = made.add("b")
    made.run(1)
    assert made.switches.slices_us == {his.pid: 150, later.pid: 0}
    made.switches.close()
    assert made.switches.slices_us[his.pid] == 0


def test_nobody_is_touched_unless_it_is_asked_for(world: Callable[..., World]) -> None:
    made = world()
    made.put("", MIB, user="bob")
    made.run(10)
    assert made.switches.slices_us == {}


@pytest.mark.parametrize(("foreign", "is_in", "wanted"), [("", True, 200), ("f" * 64, True, 200), ("", False, 4000)])
def test_by_cgroup(world: Callable[..., World], foreign: str, is_in: bool, wanted: int) -> None:
    """The slice holds for all processes in or below the cgroup, whichever engine made it; the shortest one wins."""
    path = paths_of(os.getpid()).popitem()[1].rstrip("/")
    made = world(slices=Slices({"ann": 4000}, {(path or "/") if is_in else f"{path}/x": 200}))
    made.programs[os.getpid()] = Fake(os.getpid(), "", MIB, foreign=foreign)
    made.run(1)
    assert made.switches.slices_us == {os.getpid(): wanted}
