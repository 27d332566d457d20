"""A release: from which checkout one is made, and the files beside its packages."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vgpurun
from support import CHECKOUT

VERSION = vgpurun.__version__
CHANGES = f"""# Changelog

## [Unreleased]

- Later.

## [{VERSION}] - 2026-12-01

### Added

- A thing.

## [0.0.1] - 2026-01-01

- Old.
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small one, tagged and committed."""
    for name in ("vgpurun/__init__.py", "lib/packaging/release.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(CHECKOUT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    (tmp_path / ".gitignore").write_text("dist\n")
    (tmp_path / "dist").mkdir()
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "--quiet", "--message=First")
    git(tmp_path, "tag", f"v{VERSION}")
    return tmp_path


def git(checkout: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=checkout, check=True)


def release(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "lib/packaging/release.py", *options, "dist"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True)


def test_a_release_has_the_sums_of_its_packages_and_the_notes_of_its_version(checkout: Path) -> None:
    for name in ("vgpurun.whl", "vgpurun.deb", "else.txt"):
        (checkout / "dist" / name).write_text(name)
    assert release(checkout).returncode == 0
    assert (checkout / "dist" / "NOTES.md").read_text() == "### Added\n\n- A thing.\n"
    checked = subprocess.run(
        ["sha256sum", "--check", "SHA256SUMS"], cwd=checkout / "dist", capture_output=True, text=True
    )
    assert checked.stdout == "vgpurun.deb: OK\nvgpurun.whl: OK\n"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("git tag --delete v{}", "no tag v{} here"),
        ("echo >> CHANGELOG.md", "not committed: CHANGELOG.md"),
        (
            "sed -i 's/- 2026-12-01/- unreleased/' CHANGELOG.md && git -c user.name=A -c user.email=a@example.com"
            " commit --quiet --all --message=Second && git tag --force v{}",
            "CHANGELOG.md has no section [{}] with a date",
        ),
    ],
)
def test_what_does_not_agree_is_not_released(checkout: Path, spoil: str, said: str) -> None:
    subprocess.run(spoil.format(VERSION), cwd=checkout, shell=True, check=True, capture_output=True)
    done = release(checkout, "--check")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"release: {said.format(VERSION)}") and done.stderr.count("\n") == 1
