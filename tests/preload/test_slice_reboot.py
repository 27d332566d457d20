"""A slice outlives a reboot, and what is in it is shared by processes of `vgpurun local` too."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox import MACHINE, UUID

from cuda_driver import Driver
from support import CHECKOUT, LIBRARY, remove_tenants, unavailable
from support.programs import text_of
from vgpurun.limits import limits_file

pytestmark = pytest.mark.slow

MIB, GIB = 1 << 20, 1 << 30
# All that a reboot empties is empty here, but for the checkout and Python, wherever they are.
AFTER_REBOOT = """
set -e
keep=$HOME/keep
mkdir -p "$keep"
mount --bind / "$keep"
for folder in /tmp /run; do
  mount --bind $folder "$keep$folder"
  mount -t tmpfs none $folder
done
for folder in $KEPT; do mkdir -p "$folder"; mount --bind "$keep$folder" "$folder"; done
exec "$@"
"""


def show_memory() -> None:
    d = Driver.started()
    print(json.dumps(d.mem_get_info()))


SEEN = (sys.executable, "-c", text_of(show_memory))


@pytest.fixture
def host(built_library: Path) -> Iterator[dict[str, str]]:
    """The environment of a host whose state lies where a reboot leaves it."""
    folder = Path(tempfile.mkdtemp(prefix="vgpurun-test-", dir="/var/tmp"))
    (folder / "sim.yaml").write_text(MACHINE)
    yield {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "VGPURUN_STATE_DIR": str(folder / "state"),
        "VGPURUN_LIBRARY": str(LIBRARY),
        "VGPURUN_DRIVER": "sim",
        "VGPUSIM_CONFIG": str(folder / "sim.yaml"),
        "DOCKER_HOST": f"unix://{folder}/none.sock",
        "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'tests'}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    shutil.rmtree(folder, ignore_errors=True)
    remove_tenants(folder)


def vgpurun(host: dict[str, str], *arguments: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-m", "vgpurun", *arguments]
    return subprocess.run(command, env=host, capture_output=True, text=True, timeout=60, check=False)


def output(host: dict[str, str], *arguments: str, before: tuple[str, ...] = ()) -> str:
    done = vgpurun(host, *arguments, before=before)
    assert done.returncode == 0, done
    return done.stdout


def after_reboot(host: dict[str, str]) -> tuple[str, ...]:
    """Return a script that runs a command with an empty /tmp and /run."""
    kept = {str(CHECKOUT), sys.prefix, sys.base_prefix}
    host["KEPT"] = " ".join(path for path in sorted(kept) if path.startswith(("/tmp/", "/run/")))
    before = ("unshare", "--mount", "bash", "-c", AFTER_REBOOT, "bash")
    if subprocess.run([*before, "true"], env=host, capture_output=True).returncode:
        unavailable("mount namespaces cannot be made: not root")
    return before


def test_it_is_there_after_a_reboot_with_its_limits_and_its_place(host: dict[str, str]) -> None:
    before = after_reboot(host)
    output(host, "slice", "create", "kept", "--mem", "6g", "--sm", "60")
    output(host, "slice", "update", "kept", "--mem", "5g")
    in_it = ("local", "--slice", "kept", "--", *SEEN)
    assert json.loads(output(host, *in_it))[1] == 5 * GIB
    assert output(host, "slice", "ls", "-q", before=before) == "kept\n"
    assert json.loads(output(host, *in_it, before=before))[1] == 5 * GIB
    both = vgpurun(host, "slice", "create", "much", "--mem", "4g", "--gpus", f"device={UUID}", before=before)
    assert both.returncode == 125 and "slice kept" in both.stderr, both
    output(host, "slice", "rm", "kept", before=before)


def test_processes_share_it(host: dict[str, str]) -> None:
    output(host, "slice", "create", "both", "--mem", "3g", "--gpus", f"device={UUID}")

    def hold() -> None:
        d = Driver.started()
        d.mem_alloc(1 << 30)
        print(1)
        input()

    program = [sys.executable, "-u", "-c", text_of(hold)]
    command = [sys.executable, "-m", "vgpurun", "local", "--slice", "both", "--", *program]
    with subprocess.Popen(command, env=host, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout and holder.stdin and holder.stdout.readline() == "1\n"
        free, total = json.loads(output(host, "local", "--slice", "both", "--", *SEEN))
        assert (total, free) == (3 * GIB, (3072 - 1024 - 2 * 518) * MIB)
        refused = vgpurun(host, "slice", "rm", "both")
        assert refused.returncode == 125 and f"in use by process {holder.pid}" in refused.stderr, refused
        holder.stdin.close()
    assert json.loads(output(host, "slice", "inspect", "both"))[0]["members"] == []
    output(host, "slice", "rm", "both")


def test_limits_of_another_version_are_written_anew(host: dict[str, str]) -> None:
    """An update of vgpurun may change the layout: else the library would grant nothing."""
    output(host, "slice", "create", "old", "--mem", "3g", "--gpus", f"device={UUID}")
    limits = Path(host["VGPURUN_STATE_DIR"]) / "slices" / "old" / "etc" / "limits"
    content = bytearray(limits.read_bytes())
    content[8] += 1  # the version
    limits.write_bytes(content)
    assert limits_file.read_limits(limits) is None
    assert json.loads(output(host, "local", "--slice", "old", "--", *SEEN))[1] == 3 * GIB


def test_a_slice_that_version_0_1_0_made_holds_programs_of_this_version(host: dict[str, str]) -> None:
    """Its files are those that the library of 0.1.0 wrote: see tests/unit/test_upgrade.py."""
    with tarfile.open(CHECKOUT / "tests" / "unit" / "recorded" / "first-version.tar.xz") as recorded:
        recorded.extractall(host["VGPURUN_STATE_DIR"])
    config = Path(host["VGPUSIM_CONFIG"])
    config.write_text(config.read_text().replace(UUID, "GPU-51a00000-0000-4000-8000-000000000000"))
    free, total = json.loads(output(host, "local", "--slice", "team", "--", *SEEN))
    assert (total, free) == (GIB, (1024 - 518) * MIB)
    output(host, "slice", "update", "team", "--mem", "2g")
    assert json.loads(output(host, "local", "--slice", "team", "--", *SEEN))[1] == 2 * GIB
    output(host, "slice", "rm", "team")
