"""A folder that one process at a time works in: nobody waits for it without end, and a dead holder is none."""

from __future__ import annotations

import os
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from support.lock_holder import held_by_process
from vgpurun.errors import StateError
from vgpurun.util.locking import alone_in, holder_of, show_holder


def alone(folder: Path, patience_s: float = 30, name: str = ".lock") -> AbstractContextManager[None]:
    return alone_in(folder, patience_s, StateError, lambda path: path.mkdir(exist_ok=True), name)


@pytest.mark.parametrize("name", [".lock", "another"])
def test_who_holds_it_is_named_when_the_wait_is_over(tmp_path: Path, name: str) -> None:
    with alone(tmp_path / "folder", name=name):
        pass  # both are made
    assert (tmp_path / "folder" / name).stat().st_mode & 0o777 == 0o600, "nobody else can open it, and so lock it"
    with held_by_process(tmp_path / "folder" / name) as holder:
        began = time.monotonic()
        with pytest.raises(StateError) as refused, alone(tmp_path / "folder", 0.4, name):
            pass
        assert 0.4 <= time.monotonic() - began < 20
    (line,) = str(refused.value).splitlines()
    assert line.startswith(
        f"{tmp_path / 'folder' / name} has not been free for 0 s, and is held by process {holder.pid}"
    )
    assert line.endswith("; end that, or try again when it has ended")
    with alone(tmp_path / "folder", 0, name):
        pass  # the holder is dead


def test_it_is_had_when_the_holder_dies_while_others_wait(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch(0o600)
    with held_by_process(tmp_path / ".lock") as holder:
        threading.Timer(0.3, holder.kill).start()
        with alone(tmp_path):
            assert holder.wait(20) < 0


def test_threads_keep_each_other_out(tmp_path: Path) -> None:
    inside, most = 0, []

    def work() -> None:
        nonlocal inside
        for _ in range(3):
            with alone(tmp_path):
                inside += 1
                most.append(inside)
                time.sleep(0.01)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 12


def test_after_an_error_it_is_free(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="of the work"), alone(tmp_path):
        raise FileNotFoundError("of the work")  # stays what it is
    with alone(tmp_path, 0):
        pass


def test_what_cannot_be_made_or_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, name, path, words in (
        (tmp_path / "no" / "folder", "", tmp_path / "no" / "folder" / ".lock", "No such file or directory"),
        (tmp_path / "file", "", tmp_path / "file" / ".lock", "File exists"),
        (tmp_path, "link", tmp_path / "link", "Too many levels of symbolic links"),
    ):
        if name:
            path.symlink_to("file")
        with pytest.raises(StateError, match=f"^cannot use {path}: {words}$"), alone(folder, 0, name or ".lock"):
            pass


def test_a_lock_file_that_others_could_open_is_closed_to_them(tmp_path: Path) -> None:
    """An older version made such a file."""
    (tmp_path / ".lock").touch(0o644)
    with alone(tmp_path):
        assert (tmp_path / ".lock").stat().st_mode & 0o777 == 0o600


def test_a_holder_that_the_kernel_does_not_tell(tmp_path: Path) -> None:
    nobody = os.open(tmp_path, os.O_RDONLY)
    assert holder_of(nobody) == ""
    os.close(nobody)
    for unseen in ("", "0", "99999999"):
        assert show_holder(unseen) == "a process that cannot be seen from here"
    assert show_holder(str(os.getpid())).startswith(f"process {os.getpid()} of user ")
