"""A group's time slice: by its limit, its priority, and who else is at work, as the library has it of other tenants."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from support import CHECKOUT
from vgpurun import abi
from vgpurun.host.channels import DEFAULT_SLICE_US
from vgpurun.limits import limits_file
from vgpurun.limits.policies import Priority
from vgpurun.limits.quota import Quota
from vgpurun.storage import tenants
from vgpurun.together import slices

GPU, OTHER_GPU = "GPU-1", "GPU-2"
HIGH, LOW = Quota(None, 50), Quota(None, 30, priority=Priority.LOW)
UNLIMITED = Quota()


@pytest.mark.parametrize(
    ("own", "others", "slice_us"),
    [
        (UNLIMITED, [], 2048),
        (UNLIMITED, [HIGH], 20000),
        (HIGH, [], 10000),
        (HIGH, [LOW, HIGH], 10000),
        (Quota(None, 1), [], 4000),
        (LOW, [LOW], 6000),
        (LOW, [HIGH], 100),
        (LOW, [HIGH, LOW], 1000),
    ],
)
def test_it_is_by_limits_and_priorities(own: Quota, others: list[Quota], slice_us: int) -> None:
    assert slices.slice_us(own, others) == slice_us


def test_numbers_are_the_library_s() -> None:
    sources = CHECKOUT / "lib" / "src"
    defined = dict(
        re.findall(r"#define (\w+) (\d+)", "".join(
            (sources / each).read_text()
            for each in ("scheduler/switch.c", "scheduler/governor_parts.h", "tenants/presence.h")
        ))
    )  # fmt: skip
    assert int(defined["SLICE_AT_ALL_US"]) == slices._AT_ALL_US
    assert int(defined["GOVERNOR_LEAST_SLICE_US"]) == slices._LEAST_US
    assert int(defined["GOVERNOR_DEFAULT_SLICE_US"]) == DEFAULT_SLICE_US
    assert int(defined["SLICE_BESIDE_HIGHER_US"]) == slices._BESIDE_HIGHER_US
    assert int(defined["SLICE_OF_SEVERAL_US"]) == slices._BESIDE_HIGHER_OF_SEVERAL_US
    assert int(defined["PRESENCE_LASTS_NS"]) == slices._LASTS_S * 1e9
    assert int(defined["PRESENCE_SLOTS"]) * slices._TIME_BYTES == slices._DEVICE_BYTES


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(abi, "LOCK_DIR", str(tmp_path))
    return tmp_path


def tenant(folder: Path, limits: list[tuple[str, Quota]], device: int, slot: int, seen_s: float) -> None:
    """Make a tenant's folder, of which a process was at work at that time."""
    folder.mkdir()
    (folder / tenants.LIMITS).write_bytes(limits_file.limits_bytes(limits))
    times = bytearray(abi.PRESENCE_BYTES)
    at = device * slices._DEVICE_BYTES + slot * slices._TIME_BYTES
    times[at : at + slices._TIME_BYTES] = int(seen_s * 1e9).to_bytes(slices._TIME_BYTES, "little", signed=True)
    (folder / abi.PRESENCE_NAME).write_bytes(times)


def test_others_are_those_at_work_on_the_same_gpus(place: Path) -> None:
    own, now_s = place / "team", time.monotonic()
    both = [(OTHER_GPU, LOW), (GPU, HIGH)]
    tenant(tenants.folder_of(own), both, 1, 0, now_s)
    tenant(place / "elsewhere", both, 0, 0, now_s)
    assert slices.at_work(own, [GPU]) == ([], [])
    assert slices.at_work(own, [OTHER_GPU]) == ([], [LOW])
    tenant(place / "here", both, 1, 255, now_s)
    assert slices.at_work(own, [GPU]) == ([], [HIGH])
    tenant(place / "long-ago", both, 1, 0, now_s - 1)
    tenant(place / "nonsense", both, 1, 0, now_s + 1e6)
    os.utime(place / "here" / abi.PRESENCE_NAME, (0, 0))
    assert slices.at_work(own, [GPU]) == ([], [])


@pytest.mark.parametrize(
    ("of", "owner", "is_member"),
    [("/state/containers/a", None, True), ("/state/slices/a", None, False), ("/state/containers/a", 12345, False)],
)
def test_without_a_slice_members_are_this_user_s_that_work_at_the_same_time(
    place: Path, of: str, owner: int | None, is_member: bool
) -> None:
    together = replace(LOW, together=True, sm_percent=None)
    tenant(place / "one", [(GPU, together)], 0, 0, time.monotonic())
    tenant(place / "alone", [(GPU, HIGH)], 0, 0, time.monotonic())
    for each in ("one", "alone"):
        (place / each / "of").write_text(of)
    if owner is not None:
        os.chown(place / "one", owner, -1) if os.geteuid() == 0 else pytest.skip("takes root")
    members, others = slices.at_work(None, [GPU])
    assert members == [together] * is_member and len(others) == 2 - is_member


def test_a_group_has_the_least_limit_and_the_highest_priority_of_its_members() -> None:
    assert slices.whole_of([LOW, HIGH]) == Quota(sm_percent=30, priority=Priority.HIGH)
    assert slices.whole_of([replace(LOW, sm_percent=None)]) == Quota(priority=Priority.LOW)
    assert slices.whole_of([]) == Quota()


def test_whatever_stands_there_is_no_tenant(place: Path) -> None:
    now_s = time.monotonic()
    tenant(place / "cut", [(GPU, HIGH)], 0, 0, now_s)
    (place / "cut" / tenants.LIMITS).write_bytes(b"cut off")
    for name, file in (("pipe", tenants.LIMITS), ("waits", abi.PRESENCE_NAME)):
        tenant(place / name, [(GPU, HIGH)], 0, 0, now_s)
        (place / name / file).unlink()
        os.mkfifo(place / name / file)
    (place / "file").write_text("none")
    (place / "empty").mkdir()
    (place / "link").symlink_to(place / "cut")
    assert slices.at_work(place / "team", [GPU]) == ([], [])
