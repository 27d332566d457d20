"""The use of holders about which another user asks, who may not read their usage files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import GIB, make_gpus

from support.second_user import attacked_by, needs_two_users, public_folder
from vgpurun.admission.capacity import capacities
from vgpurun.host.gpus import GpuUse
from vgpurun.inventory import programs
from vgpurun.inventory.held import held_by_each
from vgpurun.inventory.reservations import Holder
from vgpurun.limits.quota import Quota
from vgpurun.storage import state
from vgpurun.storage.state import StateFolder

GPUS = make_gpus(1)
UUID = GPUS[0].uuid

pytestmark = needs_two_users


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with public_folder() as root:
        monkeypatch.setenv("VGPURUN_STATE_DIR", str(root))
        made = StateFolder.make(state.new_folder_path(), {}, {"engine": None})
        yield made.path
        made.close()


def holder(folder: Path, id_: str) -> Holder:
    return Holder("process", id_, "", "", "root", folder, ((UUID, Quota(4 * GIB)),))


def test_the_driver_tells_what_roots_programs_hold(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So what runs outside of them counts, and is not taken for a part of their reservation."""

    def look() -> None:
        monkeypatch.setattr(programs, "read_processes", lambda _: {os.getpid(): GIB})
        mine, unlisted = holder(folder, str(os.getpid())), holder(folder, "2")
        assert mine.held_bytes() is None, "it is root's"
        assert held_by_each([mine, unlisted], GPUS) == [{UUID: GIB}, None]
        (capacity,) = capacities(GPUS, [GpuUse(4 * GIB, None)], [mine])
        assert capacity.outside_bytes == 3 * GIB
        (capacity,) = capacities(GPUS, [GpuUse(4 * GIB, None)], [unlisted])
        assert capacity.outside_bytes == 0, "all of it may be the holder's own"

    with attacked_by(look):
        pass
    assert held_by_each([holder(folder, "2")], GPUS) == [{UUID: 0}]
