"""Which containers are vgpurun's, and what is known of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import GIB, make_gpus

from vgpurun.engine.labels import Record, holds_label, read_record, state_label
from vgpurun.limits.model import DeviceQuota, quotas_to_json
from vgpurun.limits.quota import Quota
from vgpurun.storage import state

GPU, OTHER = make_gpus(2)
GIVEN = (DeviceQuota(GPU, Quota(2 * GIB, 30)), DeviceQuota(OTHER, Quota()))
KNOWN = ((GPU.uuid, Quota(2 * GIB, 30)), (OTHER.uuid, Quota()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state folder as a launch leaves it, of the container "mine"."""
    found = tmp_path / "containers" / "x"
    found.mkdir(parents=True)
    owner = {"engine": "e", "version": "9", "user": "ann", "quota": quotas_to_json(GIVEN), "container": "mine"}
    (found / "owner").write_text(json.dumps(owner))
    return found


def mounts(limits: Path | str) -> list[dict[str, str]]:
    return [
        {"Type": "bind", "Source": "/data", "Destination": "/data"},
        {"Type": "bind", "Source": f"{limits}/etc", "Destination": "/.vgpurun/etc"},
    ]


def test_what_was_said_at_the_launch_is_in_the_owner_file(folder: Path) -> None:
    found = read_record("mine", {"vgpurun.state": str(folder)}, mounts(folder))
    assert found == Record(str(folder), "", KNOWN, "ann", "9")


def test_a_label_names_no_path_where_a_mount_says_it(folder: Path) -> None:
    """A label is also on an image that is committed."""
    sources = [mount["Source"] for mount in mounts(folder)]
    assert state_label(folder, sources) == "x"
    assert state_label(folder, ["/data", f"{folder.parent}/y/etc"]) == str(folder)
    own = [{"Source": f"{folder}/etc/ld.so.preload", "Destination": "/etc/ld.so.preload"}]
    for listed in (mounts(folder), [*mounts("/var/lib/vgpurun/slices/alice"), *own]):
        found = read_record("mine", {"vgpurun.state": "x"}, listed)
        assert found and (found.state_folder, found.quotas) == (str(folder), KNOWN)
    users = [{"Source": f"{folder}/etc", "Destination": "/data"}, *mounts("/elsewhere/containers/z")]
    assert read_record("mine", {"vgpurun.state": "x"}, users) is None


def test_labels_alone_make_no_container_ours(folder: Path) -> None:
    """An image that was committed of a container carries its labels on."""
    labels = {"vgpurun.state": str(folder), "vgpurun.version": "0.1.0", "vgpurun.quota": quotas_to_json(GIVEN)}
    assert read_record("of-the-image", labels, []) is None
    assert read_record("of-the-image", labels, mounts(folder)) is None, "with --volumes-from, mounts too"


def test_a_folder_that_cannot_be_makes_no_container_ours(folder: Path) -> None:
    assert read_record("mine", {"vgpurun.state": f"{folder}\0"}, mounts(folder)) is None


def test_mounts_alone_make_no_container_ours(folder: Path) -> None:
    assert read_record("mine", {}, mounts(folder)) is None


@pytest.mark.parametrize("value", ["1", [1], {}, 1.5, float("inf"), float("nan"), -1, 2**64, 10**400, True])
@pytest.mark.parametrize("key", ["memory_bytes", "sm_percent", "virtual_bytes"])
def test_a_quota_that_cannot_be_is_none(folder: Path, key: str, value: object) -> None:
    """The file may be another user's, and sums are made of what is in it."""
    quotas = json.loads(quotas_to_json(GIVEN))
    quotas[0][key] = value
    (folder / "owner").write_text(json.dumps({"quota": json.dumps(quotas)}))
    found = read_record("mine", {"vgpurun.state": str(folder)}, mounts(folder))
    assert found and found.quotas == ()


@pytest.mark.parametrize("held", ["-1:", ":-1", f"{10**400}:", ":101", "x:", "", "1", f"{'9' * 5000}:"])
def test_a_label_that_cannot_be_holds_nothing(held: str) -> None:
    labels = {"vgpurun.state": "/home/ann/x", "vgpurun.holds": f"ann;GPU-x:{held}"}
    found = read_record("c", labels, mounts("/home/ann/x"))
    assert found and found.quotas == ()


def test_names_steer_no_terminal(folder: Path) -> None:
    (folder / "owner").write_text(json.dumps({"user": "a\x1b[31m\n", "version": "\x07", "quota": "[]"}))
    found = read_record("mine", {"vgpurun.state": str(folder)}, mounts(folder))
    assert found and (found.user, found.version) == ("a\ufffd[31m\ufffd", "\ufffd")
    labels = {"vgpurun.state": "/home/ann/x", "vgpurun.holds": "a\x1b;GPU-\x1b:1:"}
    found = read_record("c", labels, mounts("/home/ann/x"))
    assert found and (found.user, found.quotas[0][0]) == ("a\ufffd", "GPU-\ufffd")


def test_a_container_is_ours_before_its_id_is_written_down(folder: Path) -> None:
    (folder / "owner").write_text(json.dumps({"engine": "e", "quota": quotas_to_json(GIVEN), "user": "ann"}))
    found = read_record("new", {"vgpurun.state": str(folder)}, mounts(folder))
    assert found and found.quotas == KNOWN


def test_a_container_of_the_version_before_has_all_on_its_labels(folder: Path) -> None:
    (folder / "owner").write_text(json.dumps({"engine": "e"}))
    labels = {
        "vgpurun.state": str(folder), "vgpurun.version": "0.1.0", "vgpurun.user": "bob",
        "vgpurun.quota": quotas_to_json(GIVEN), "vgpurun.slice": "/var/lib/vgpurun/slices/alice",
    }  # fmt: skip
    joined = mounts("/var/lib/vgpurun/slices/alice")
    found = read_record("old", labels, joined)
    assert found == Record(str(folder), "/var/lib/vgpurun/slices/alice", KNOWN, "bob", "0.1.0")


def test_labels_that_an_image_carries_say_nothing_of_a_new_container(folder: Path) -> None:
    stale = quotas_to_json([DeviceQuota(GPU, Quota(7 * GIB, 99))])
    labels = {
        "vgpurun.state": str(folder),
        "vgpurun.quota": stale,
        "vgpurun.user": "eve",
        "vgpurun.slice": "/s/slices/x",
    }
    assert read_record("mine", labels, mounts(folder)) == Record(str(folder), "", KNOWN, "ann", "9")


def test_what_others_cannot_read_is_one_word_on_a_label() -> None:
    label = holds_label("ann", GIVEN)
    assert not set(label) & set(', {}"')
    labels = {"vgpurun.state": "/home/ann/x", "vgpurun.holds": label, "vgpurun.quota": quotas_to_json(GIVEN[:1])}
    assert read_record("c", labels, mounts("/home/ann/x")) == Record("/home/ann/x", "", KNOWN, "ann")


def test_whether_all_can_read_a_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    below = tmp_path / "state" / "containers" / "x"
    open_to_all = state.is_readable_by_all(below)
    tmp_path.chmod(0o700)
    assert not state.is_readable_by_all(below)
    assert open_to_all == all(each.stat().st_mode & 1 for each in tmp_path.parents)
