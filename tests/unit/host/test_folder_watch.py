"""Folders that are watched for changes."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from vgpurun.host import folder_watch
from vgpurun.host.folder_watch import NOT_WATCHED, FolderWatch


def test_each_way_of_changing_a_file_is_told_once(tmp_path: Path) -> None:
    folder, other = tmp_path / "etc", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    file = folder / "limits"
    file.write_bytes(b"1")
    watch = FolderWatch()
    number, elsewhere = watch.add(folder), watch.add(str(other))
    assert watch.add(folder) == number != elsewhere
    assert watch.changed() == set()

    def write_in_place() -> None:
        with file.open("r+b") as opened:
            opened.write(b"2")

    changes = (
        write_in_place, lambda: os.truncate(file, 0), lambda: os.utime(file, (1, 1)), lambda: file.chmod(0o600),
        lambda: (other / "new").write_bytes(b"3"), lambda: (other / "new").replace(file), file.unlink, file.touch,
        lambda: folder.rename(tmp_path / "moved"), lambda: (tmp_path / "moved" / "limits").unlink(),
    )  # fmt: skip
    told = []
    for change in changes:
        change()
        told.append(watch.changed())
        assert watch.changed() == set()
    assert told == [{number}] * 4 + [{elsewhere}, {number, elsewhere}] + [{number}] * 4
    (tmp_path / "moved").rmdir()
    assert watch.changed() == {number}
    watch.close()


def test_one_that_changes_often_is_told_of_once(tmp_path: Path) -> None:
    watch = FolderWatch()
    for _ in range(2):
        number = watch.add(tmp_path, is_once=True)
        (tmp_path / "usage").write_bytes(b"1")
        assert watch.changed() == {number}
        (tmp_path / "usage").write_bytes(b"22")
        assert watch.changed() == set()
    watch.close()


@pytest.mark.slow
def test_all_have_changed_where_too_much_has_happened(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    watch = FolderWatch()
    numbers = {watch.add(folder) for folder in folders}
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(most // 2 + 1):  # the kernel tells of two equal changes in a row once
        os.utime(folders[0], (number, number))
        (folders[0] / "file").touch()
        (folders[0] / "file").unlink()
    assert watch.changed() >= numbers
    watch.close()


def test_what_cannot_be_watched(tmp_path: Path) -> None:
    watch = FolderWatch()
    assert watch.add(tmp_path / "none") == NOT_WATCHED
    assert watch.changed() == set()
    watch.close()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        without = FolderWatch()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert without.add(tmp_path) == NOT_WATCHED
    assert without.changed() == set()
    without.close()


def test_changes_without_end_hold_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = FolderWatch()
    number = watch.add(tmp_path)
    (tmp_path / "file").touch()
    read, reads = os.read, []

    def read_while_somebody_writes(file: int, count: int) -> bytes:
        events = read(file, count)
        reads.append(count)
        assert len(reads) < 100
        os.utime(tmp_path / "file", (len(reads), 1))
        return events

    monkeypatch.setattr(folder_watch, "os", SimpleNamespace(**{**vars(os), "read": read_while_somebody_writes}))
    assert watch.changed() == {number}
    assert watch.changed() == {number}, "which came in the meantime"
    watch.close()
