"""Parts of shares: what --mem and --sm come to there, how a launch gets one, and what of it the host finds again."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import GIB, given, make_gpus

from support.shares import write_share
from vgpurun import abi
from vgpurun.admission import nesting
from vgpurun.admission.nesting import Nesting, placed_share, share_on_host
from vgpurun.admission.placement import Placement
from vgpurun.admission.wanted import OF_NO_PART, Wanted, WantedPart
from vgpurun.engine.labels import read_record
from vgpurun.errors import GpuError, LibraryError, LimitError, OptionError, SliceError
from vgpurun.host import library
from vgpurun.host.drivers import DriverPlan
from vgpurun.launch.plan import HostFacts, ImageFacts, plan_launch, plan_process
from vgpurun.limits import limits_file
from vgpurun.limits.device_quotas import quotas_of, shared_files
from vgpurun.limits.model import Limits, Part
from vgpurun.limits.nested import Share, folders_above, own_share, quotas_within, share_of
from vgpurun.limits.policies import Priority, SmPolicy
from vgpurun.limits.quota import Quota
from vgpurun.options import ContainerOptions
from vgpurun.slices import store

GPUS = make_gpus(2)
UUIDS = [gpu.uuid for gpu in GPUS]
HALF = Share(Path("/half"), ((UUIDS[0], Quota(4 * GIB, 50)), (UUIDS[1], Quota())))


@pytest.mark.parametrize(
    ("memory", "sm", "first", "second"),
    [
        ("50%", "50", Quota(2 * GIB, 25), Quota(4 * GIB, 50)),
        ("1g", None, Quota(GIB), Quota(GIB)),
        (None, "1", Quota(None, 1), Quota(None, 1)),
        ("100%", "100", Quota(4 * GIB), Quota(8 * GIB)),
        ("0=4g,1=8g", "0=33", Quota(4 * GIB, 17), Quota(8 * GIB)),
        (None, None, Quota(), Quota()),
    ],
)
def test_percentages_are_of_the_share(memory: str | None, sm: str | None, first: Quota, second: Quota) -> None:
    assert [each.quota for each in quotas_within(HALF, GPUS, Limits.read(memory, sm))] == [first, second]


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"memory": "5g"}, "--mem 5g is more than GPU 0 has"),
        ({"memory": "max"}, "'max'"),
        ({"memory": "101%"}, "more than the whole GPU"),
        ({"sm_policy": "burst"}, "--sm-policy can only be set on the outer share"),
        ({"priority": "low"}, "--priority can only be set on the outer share"),
        ({"memory": "1g:2g"}, "a guaranteed size can only be set on the outer share"),
        ({"memory": "1g", "oversubscribe": "2g"}, "--oversubscribe can only be set on the outer share"),
    ],
)
def test_what_a_part_cannot_have(written: dict[str, str], words: str) -> None:
    with pytest.raises(LimitError, match=words):
        quotas_within(HALF, GPUS, Limits.read(**written))


def test_a_part_of_what_is_oversubscribed_may_have_what_is_seen() -> None:
    share = Share(Path("/share"), ((UUIDS[0], Quota(4 * GIB, virtual_bytes=6 * GIB)),))
    (found,) = quotas_within(share, GPUS[:1], Limits.read("50%"))
    assert found.quota == Quota(3 * GIB)


def test_shares_are_found_from_inside(tmp_path: Path) -> None:
    assert own_share({}) is None
    outer = write_share(tmp_path / "outer", HALF.quotas, None)
    inner = write_share(tmp_path / "inner", [(UUIDS[0], Quota(GIB))], own_share(outer))
    assert own_share(inner) == Share(tmp_path / "inner", ((UUIDS[0], Quota(GIB)),), 2)
    assert folders_above(tmp_path / "inner") == [tmp_path / "outer"] and folders_above(tmp_path / "outer") == []
    (tmp_path / "inner" / "etc" / "limits").write_bytes(b"nothing")
    with pytest.raises(LimitError, match="is not a limits file of this version"):
        own_share(inner)
    (tmp_path / "inner" / "etc" / "limits").unlink()
    with pytest.raises(LimitError, match=r"cannot be read: .*No such file"):
        own_share(inner)


def test_new_limits_leave_a_part_a_part(tmp_path: Path) -> None:
    write_share(tmp_path / "outer", HALF.quotas, None)
    write_share(tmp_path / "inner", [(UUIDS[0], Quota(GIB))], share_of(tmp_path / "outer"))
    limits_file.write_limits(tmp_path / "inner/etc/limits", [(UUIDS[0], Quota(2 * GIB))])
    assert share_of(tmp_path / "inner").levels == 2


def test_a_launch_in_a_share_becomes_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VGPURUN_MEM", "6g")  # a default of the configuration, which is for whole GPUs
    assert Wanted.take(given(sm="50"), share=HALF) == WantedPart(HALF, Limits.read(None, "50"))
    assert Wanted.take(given(slice_name="alice", mem="1g")) == WantedPart("alice", Limits.read("1g"))
    for option in OF_NO_PART:
        with pytest.raises(OptionError, match=f"--{option.replace('_', '-')} can only be set on the outer share"):
            Wanted.take(given(**{option: "1"}), share=HALF)


@pytest.mark.parametrize(
    ("limits", "chosen", "indexes"),
    [
        (Limits.read("1g"), None, [0, 1]),
        (Limits.read("1=1g"), None, [1]),
        (Limits(), UUIDS[1], [1]),
        (Limits(), "1", [0]),
    ],
)
def test_the_gpus_are_those_of_the_share(limits: Limits, chosen: str | None, indexes: list[int]) -> None:
    assert [gpu.index for gpu in Nesting(HALF, limits, GPUS, chosen).look().gpus] == indexes
    with pytest.raises(GpuError, match="none of the GPUs visible here"):
        Nesting(Share(Path("/none"), (("GPU-other", Quota()),)), limits, GPUS, chosen).look()


def test_a_container_gets_the_files_of_all_levels() -> None:
    part = Part(quotas_within(HALF, GPUS, Limits.read("50%")), (Path("/slices/a"), Path("/outer")))
    placement, driver = Placement(tuple(GPUS), Limits(), part=part), DriverPlan("mount")
    launch = plan_launch(
        ContainerOptions("image"), placement, driver, Path("/lib.so"), Path("/state/own"), ImageFacts(), HostFacts()
    )
    mounts = {mount.target: (mount.source, mount.read_only) for mount in launch.mounts}
    for target, folder in (("", "/state/own"), ("/parent", "/slices/a"), ("/parent/parent", "/outer")):
        assert mounts[f"{abi.CONTAINER_DIR}{target}/etc"] == (f"{folder}/etc", True)
        assert mounts[f"{abi.CONTAINER_DIR}{target}/run/usage"] == (f"{folder}/run/usage", False)
    assert abi.Limits.from_buffer_copy(launch.state_files["etc/limits"]).has_parent == 1
    assert launch.state_links["parent"] == "/slices/a" and launch.slice_folder is None


def test_a_container_is_known_by_the_mounts_that_it_has(tmp_path: Path) -> None:
    def record(*folders: str) -> tuple[str, tuple[str, ...]]:
        mounts = [
            {"Destination": f"{abi.CONTAINER_DIR}{'/parent' * level}/etc", "Source": f"{folder}/etc"}
            for level, folder in enumerate(folders)
        ]
        found = read_record("id", {"vgpurun.state": str(tmp_path / "own")}, mounts)
        assert found
        return found.slice_folder, found.parents

    own, alice = str(tmp_path / "own"), str(tmp_path / "slices" / "alice")
    assert record(own) == ("", ())
    assert record(alice) == (alice, ())
    assert record(own, alice) == (alice, (alice,))
    assert record(own, "/local", alice) == (alice, ("/local", alice))


def test_a_process_gets_a_link_and_one_library() -> None:
    part = Part(quotas_within(HALF, GPUS[:1], Limits.read("50%", "50")), (Path("/half"),))
    placement = Placement(tuple(GPUS[:1]), Limits(), part=part)
    plan = plan_process(["true"], placement, True, "host", {}, Path("/lib.so"), Path("/s"), {})
    assert plan.environment[f"{abi.ENV_SM_LIMIT}_0"] == "25" and plan.parents == (Path("/half"),)
    assert abi.Limits.from_buffer_copy(plan.state_files["etc/limits"]).has_parent == 1


def test_the_library_that_a_share_has_is_used_again(tmp_path: Path) -> None:
    (tmp_path / "other.so").write_bytes(b"something else")
    for name, extra in (("new.so", b" levels=4"), ("old.so", b"")):
        (tmp_path / name).write_bytes(abi.MARKER_PREFIX.encode() + b"0.1.0 abi=3" + extra)
    assert library.preloaded({}) is None
    assert library.preloaded({"LD_PRELOAD": f"{tmp_path}/gone.so:{tmp_path}/other.so"}) is None
    assert library.preloaded({"LD_PRELOAD": f"{tmp_path}/other.so {tmp_path}/new.so"}) == tmp_path / "new.so"
    with pytest.raises(LibraryError, match="too old for nested shares"):
        library.preloaded({"LD_PRELOAD": f"{tmp_path}/old.so"})


def test_the_share_of_a_job_is_found_on_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A slice may be mounted where a container has its own share; that of a container has no place that can be seen."""
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path / "state"))
    quotas = quotas_of(GPUS[:1], Limits.read("2g", "50"))
    made = store.make("job", quotas, shared_files(quotas, DriverPlan("host")))
    inside = tmp_path / "inside"
    (inside / "run").mkdir(parents=True)
    monkeypatch.setattr(nesting, "own_share", lambda: Share(Path(abi.CONTAINER_DIR), HALF.quotas))
    monkeypatch.setattr(abi, "CONTAINER_USAGE", str(inside / "run" / "usage"))
    os.link(made.usage, inside / "run" / "usage")
    found = share_on_host()
    assert found and found.folder == made.folder and found.quotas == ((UUIDS[0], Quota(2 * GIB, 50)),)
    (inside / "run" / "usage").unlink()
    (inside / "run" / "usage").touch()
    assert placed_share() == Share(Path(abi.CONTAINER_DIR), HALF.quotas)
    with pytest.raises(SliceError, match="in a container with limits"):
        share_on_host()


def test_a_process_with_a_part_of_a_containers_share_starts_no_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    part = tmp_path / "part"
    write_share(part, HALF.quotas, replace(HALF, folder=Path(abi.CONTAINER_DIR)))
    monkeypatch.setattr(nesting, "own_share", lambda: Share(part, HALF.quotas, 2))
    assert placed_share() == Share(part, HALF.quotas, 2)
    with pytest.raises(SliceError, match="in a container with limits"):
        share_on_host()


def test_the_policy_of_a_part_is_not_written() -> None:
    """The outermost share has it, and the library takes it from there."""
    share = Share(Path("/s"), ((UUIDS[0], Quota(GIB, 50, SmPolicy.BURST, Priority.LOW)),))
    (found,) = quotas_within(share, GPUS[:1], Limits())
    assert found.quota == Quota()
