"""--profile and --profile-size: what they come to, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpurun import abi
from vgpurun.errors import ProfileError
from vgpurun.launch.profiling import Profiling


def test_without_the_option_nothing_is_recorded() -> None:
    assert Profiling.read(None, None) is None


def test_the_library_is_told(tmp_path: Path) -> None:
    profiling = Profiling.read(str(tmp_path / "new"), "8m")
    assert profiling.variables("/seen") == {abi.ENV_PROFILE: "/seen", abi.ENV_PROFILE_SIZE: str(8 << 20)}
    assert not profiling.folder.exists()


def test_a_name_is_relative_to_where_vgpurun_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    profiling = Profiling.read("profile", None)
    assert profiling.variables(str(profiling.folder)) == {abi.ENV_PROFILE: str(tmp_path / "profile")}


def test_a_folder_is_made_for_whatever_user_the_container_has(tmp_path: Path) -> None:
    profiling = Profiling(tmp_path / "a" / "b")
    assert profiling.make_folder()
    assert profiling.folder.stat().st_mode & 0o7777 == 0o1777
    assert not profiling.make_folder()


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    assert not Profiling(tmp_path).make_folder()
    assert tmp_path.stat().st_mode & 0o7777 == 0o750


@pytest.mark.parametrize(
    ("folder", "size", "words"),
    [
        (None, "8m", "without --profile"),
        ("", None, "no name"),
        ("/etc/passwd", None, "is not a folder"),
        ("/tmp", "much", "is not a size"),
        ("/tmp", "50%", "is not a size"),
        ("/tmp", "1m", "needs 4m"),
    ],
)
def test_what_cannot_be(folder: str | None, size: str | None, words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        Profiling.read(folder, size)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProfileError, match="cannot be made"):
        Profiling(tmp_path / "file" / "folder").make_folder()
