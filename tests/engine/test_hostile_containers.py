"""Containers that mean no good to the command line on their host: it neither waits for them nor obeys them."""

from __future__ import annotations

import array
import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from cli import Cli
from support.programs import text_of

STEER = "\x1b[2J"
LOOKS = (
    ("ps", "-a"), ("ps", "-a", "--no-trunc"), ("ps", "-a", "--format", "{{.Command}} {{.Labels}} {{.Mounts}}"),
    ("smi", "--driver", "sim"), ("free", "--driver", "sim"), ("queue",), ("slice", "ls"), ("doctor", "--driver", "sim"),
    ("inspect", "--driver", "sim", "tenant"), ("stats", "--no-stream"), ("prune",),
)  # fmt: skip


def shown(cli: Cli, *also: tuple[str, ...]) -> str:
    """Return what all verbs that look say, each within its minute."""
    return "".join(result.stdout + result.stderr for result in (cli(*words) for words in (*LOOKS, *also)))


def test_no_name_and_no_command_steers_a_terminal(own_gpu: Cli, debian: str, tmp_path: Path) -> None:
    """Neither ours, nor that of one which somebody has made to look like ours, in a slice with such a name."""
    command = ("python3", "-c", f"import ctypes; ctypes.CDLL(None).prctl(15, b'a{STEER}'); input() # {STEER}")
    made = own_gpu.run("-d", "-i", "--name", "tenant", "--mem", "1g", "-e", f"A={STEER}", debian, *command)
    assert made.exit_code == 0, made
    (own,) = (own_gpu.state_dir / "containers").iterdir()
    forged = tmp_path / "slices" / f"s{STEER}"
    for name in ("etc/limits", "run/usage"):
        (forged / name).parent.mkdir(parents=True)
        (forged / name).write_bytes((own / name).read_bytes())
    own_gpu.engine.containers.run(
        debian, ["sleep", STEER, "60"], name="forged", detach=True, network_mode="none",
        labels={"vgpurun.state": f"{own_gpu.state_dir}/x", "vgpurun.user": f"a{STEER}", "other": STEER},
        volumes=[f"{forged}/etc:/.vgpurun/etc:ro", f"{forged}/run/usage:/.vgpurun/run/usage"],
    )  # fmt: skip
    updated = own_gpu("update", "--driver", "sim", "--mem", "2g", "forged")
    assert "is in slice s" in updated.stderr
    seen = shown(own_gpu, ("inspect", "--driver", "sim", "forged"), ("stop", f"none{STEER}")) + updated.stderr
    assert "forged" in seen and not {letter for letter in seen if not letter.isprintable()} - {"\n", "\t"}


PIPES = """
mv /.vgpurun /away; mkdir -p /.vgpurun/etc /.vgpurun/run
for file in etc/limits etc/sim.yaml run/usage run/presence; do mkfifo /.vgpurun/$file; done
ln -s /.vgpurun/run/usage /.vgpurun/parent
exec sleep 600
"""


def test_pipes_in_the_place_of_our_files_hold_nobody_up(own_gpu: Cli, debian: str) -> None:
    assert own_gpu.run("-d", "--name", "tenant", "--mem", "1g", "--movable", debian, "sh", "-c", PIPES).exit_code == 0
    ways = (
        ("suspend", "tenant"),
        ("resume", "tenant"),
        ("move", "--gpus", "0", "tenant"),
        ("update", "--mem", "2g", "tenant"),
    )
    seen = shown(own_gpu, *((verb, *own_gpu.driver, *rest) for verb, *rest in ways))
    assert "2 GiB" in own_gpu("ps").stdout, seen
    assert own_gpu("rm", "-f", "tenant").exit_code == 0
    own_gpu.assert_nothing_left()


def set_flag() -> None:
    """Make a file, the first argument, immutable (0x10) or append only (0x20), or neither (0): the second."""
    with open(sys.argv[1], "rb") as file:
        flags = array.array("l", [0])
        fcntl.ioctl(file, 0x80086601, flags)  # FS_IOC_GETFLAGS
        flags[0] = flags[0] & ~0x30 | int(sys.argv[2])
        fcntl.ioctl(file, 0x40086602, flags)  # FS_IOC_SETFLAGS
    print("done", flush=True)


SET_FLAG = text_of(set_flag)


@pytest.mark.parametrize("flag", [0x10, 0x20], ids=["immutable", "append only"])
def test_a_file_that_cannot_be_removed_reserves_nothing(own_gpu: Cli, debian: str, flag: int) -> None:
    """Root in a container with LINUX_IMMUTABLE can make its usage file such a one."""
    program = ("python3", "-c", SET_FLAG, "/.vgpurun/run/usage", str(flag))
    limits = ("--mem", "10g", "--cap-add", "LINUX_IMMUTABLE")
    assert own_gpu.run("-d", "--name", "tenant", *limits, debian, *program).exit_code == 0
    (folder,) = (own_gpu.state_dir / "containers").iterdir()
    try:
        own_gpu.wait_for_output("tenant", b"done")
        assert own_gpu("rm", "-f", "tenant").exit_code == 0
        assert own_gpu.run("--mem", "10g", debian, "true").exit_code == 0, "its room is free"
        assert own_gpu("prune").exit_code == 0 and folder.exists()
    finally:
        subprocess.run([sys.executable, "-c", SET_FLAG, folder / "run" / "usage", "0"], check=True)
    assert own_gpu("prune").exit_code == 0
    own_gpu.assert_nothing_left()
