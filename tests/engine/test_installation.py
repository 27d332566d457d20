"""From `make dist` to a container under limits, as README says it, on systems with Docker and without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import CHECKOUT, unavailable
from support.debian_packages import UnavailableError, tool

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]  # the first test makes the packages and a Debian

IN_ROOT = CHECKOUT / "tests" / "support" / "in_root"
NEWCOMER = Path(__file__).parent / "programs" / "newcomer.sh"
# Debian 13 has docker's command line in a package of its own.
PACKAGES = {"bookworm": "python3,python3-venv,docker.io", "trixie": "python3,python3-venv,docker.io,docker-cli"}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("dpkg-deb") is None:
        unavailable("no dpkg-deb here, which makes the .deb")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        ["make", "-s", "dist", f"DIST={folder}"], cwd=CHECKOUT, check=True, env={**os.environ, "MAKEFLAGS": ""}
    )
    return folder


@pytest.fixture(scope="module", params=PACKAGES)
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if os.geteuid():
        unavailable("only root can make root file systems")
    folder = tmp_path_factory.mktemp("root")
    try:
        mmdebstrap = tool("mmdebstrap", "mmdebstrap")
        make = [
            mmdebstrap,
            "--quiet",
            "--variant=minbase",
            f"--include={PACKAGES[request.param]}",
            request.param,
            folder,
        ]
        subprocess.run(make, check=True, capture_output=True, text=True)
    except (UnavailableError, subprocess.CalledProcessError) as error:
        unavailable(f"no Debian can be made: {error}")
    folder.chmod(0o755)
    yield folder
    subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)


@pytest.mark.parametrize("way", ["deb", "pip"])
def test_a_newcomer(dist: Path, root: Path, way: str) -> None:
    shutil.copytree(dist, root / "dist", dirs_exist_ok=True)
    shutil.copy(NEWCOMER, root)
    done = subprocess.run([IN_ROOT, root, "bash", "/newcomer.sh", way], capture_output=True, text=True, timeout=900)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    said = [line for line in done.stdout.splitlines() if line.startswith("newcomer: ")]
    assert "a container under limits after" in said[1]
