"""Files that are read again only after they have changed."""

from __future__ import annotations

import os
import time
from pathlib import Path

from vgpurun.storage.unchanged import Unchanged


def test_read_again_after_each_change_and_not_otherwise(tmp_path: Path) -> None:
    """A file that was changed just now is read until its time tells later changes from that."""
    reads: list[str] = []

    def read(folder: Path) -> str:
        reads.append((folder / "file").read_text())
        return reads[-1]

    known = Unchanged("file", read, "none")
    file = tmp_path / "file"
    assert known(tmp_path) == "none"
    for number in range(200):  # within a tick of the file system's clock, and of one size
        file.write_text(f"{number:03}")
        assert known(tmp_path) == f"{number:03}"
    end_s = time.monotonic() + 20
    while True:
        before = len(reads)
        assert known(tmp_path) == "199" and time.monotonic() < end_s
        if len(reads) == before:
            break
        time.sleep(0.05)
    os.utime(file, (0, 0))
    file.write_text("new")
    assert known(tmp_path) == "new"
    other = tmp_path / "other"
    other.write_text("old")
    other.replace(file)
    assert known(tmp_path) == "old"
    file.unlink()
    assert known(tmp_path) == "none"
