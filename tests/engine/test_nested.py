"""A container with limits of its own in a slice, and processes with limits of their own in a container."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli
from support.shares import write_share
from vgpurun import abi
from vgpurun.limits import limits_file
from vgpurun.limits.nested import Share
from vgpurun.limits.quota import Quota

MIB, GIB = 1 << 20, 1 << 30
SIM = ("--driver", "sim")
SLEEP = ("sleep", "300")


@pytest.fixture
def cli(own_gpu: Cli) -> Cli:
    return own_gpu


def total_bytes(cli: Cli, *options: str) -> int:
    return int(cli.run(*options).json()["devices"][0]["total"])


def member(cli: Cli, name: str) -> dict[str, object]:
    (found,) = json.loads(cli("slice", "inspect", *SIM, "job").stdout)[0]["members"]
    assert found["name"] == name
    return dict(found)


def test_a_container_has_a_part_of_a_slice(cli: Cli, debian: str) -> None:
    """A part counts in the slice, and takes no room beside it."""
    assert cli("slice", "create", *SIM, "--mem", "12g", "--sm", "50", "job").exit_code == 0
    part = ("--slice", "job", "--mem", "50%", "--sm", "50", *WITH_PROGRAMS)
    assert total_bytes(cli, *part, debian, *GPU_PROGRAM, "info") == 6 * GIB
    filled = cli.run(
        "--slice", "job", "--mem", "2g", *WITH_PROGRAMS, debian, *GPU_PROGRAM, "fill", str(20 * MIB)
    ).json()
    assert 2 * GIB - 518 * MIB - 20 * MIB < filled["granted_bytes"] <= 2 * GIB - 518 * MIB
    assert cli.run("-d", "--name", "work", *part, debian, *SLEEP).exit_code == 0
    assert cli.run("--mem", "4g", "--sm", "50", debian, "true").exit_code == 0
    shown = member(cli, "work")["limits"]
    assert [(each["memory_limit_bytes"], each["sm_limit_percent"]) for each in shown] == [(6 * GIB, 25)]
    for verb in ("smi", "ps"):
        assert " work " in (listed := cli(verb, *SIM).stdout) and "> work" not in listed, "a name that verbs take"
    assert cli("slice", "ls", *SIM).stdout.splitlines()[1].split()[:2] == ["job", "0"]
    cli("slice", "rm", *SIM, "job").assert_refused("in use by work")


def test_limits_of_a_part_can_be_changed_within_the_slice(cli: Cli, debian: str) -> None:
    assert cli("slice", "create", *SIM, "--mem", "4g", "--sm", "50", "job").exit_code == 0
    part = ("--slice", "job", "--mem", "2g", *WITH_PROGRAMS)
    assert cli.run("-d", "--name", "work", *part, debian, *SLEEP).exit_code == 0

    def seen() -> int:
        asked = cli("exec", "work", *GPU_PROGRAM, "info")
        return int(asked.json()["devices"][0]["total"])

    assert "2 GiB, 100 % -> 3 GiB, 20 %" in cli("update", *SIM, "--mem", "3g", "--sm", "40", "work").stdout
    assert seen() == 3 * GIB
    cli("update", *SIM, "--mem", "5g", "work").assert_refused("--mem 5g is more than GPU 0 has", "4 GiB")
    assert cli("slice", "update", *SIM, "--mem", "1g", "job").exit_code == 0
    assert seen() == GIB
    assert cli("stop", "-t", "0", "work").exit_code == 0 and cli("start", *SIM, "work").exit_code == 0
    assert seen() == GIB


def test_what_a_slice_does_not_have_is_refused(cli: Cli, debian: str) -> None:
    assert cli("slice", "create", *SIM, "--mem", "4g", "--sm", "50", "job").exit_code == 0
    cli.run("--slice", "job", "--mem", "5g", debian, "true").assert_refused("--mem 5g is more than GPU 0 has", "4 GiB")
    cli.run("--slice", "job", "--mem", "max", debian, "true").assert_refused("memory limit 'max'")
    cli.assert_nothing_left()


def child_of_container(folder: Path, uuid: str, quota: Quota, has_parent: bool = True) -> tuple[str, ...]:
    """A share as `vgpurun local` makes it in a container, and the options that enter it there."""
    container = Share(Path(abi.CONTAINER_DIR), ((uuid, Quota()),)) if has_parent else None
    variables = write_share(folder, [(uuid, quota)], container)
    options = ["-eHOME=/tmp", f"-v{folder}:{folder}"]
    return (*options, *(f"-e{name}={value}" for name, value in variables.items()))


def test_a_process_in_a_container_has_a_part_of_it(cli: Cli, debian: str, tmp_path: Path) -> None:
    """Whatever it is told of its limits, those of the container hold."""
    assert cli("slice", "create", *SIM, "--mem", "4g", "job").exit_code == 0
    (uuid,) = [uuid for uuid, _ in limits_file.read_limits(cli.state_dir / "slices/job/etc/limits") or ()]
    for number, (quota, has_parent, total) in enumerate(
        ((Quota(GIB), True, GIB), (Quota(8 * GIB), False, 2 * GIB), (Quota(), True, 2 * GIB), (Quota(), False, 2 * GIB))
    ):
        child = child_of_container(tmp_path / f"child-{number}", uuid, quota, has_parent)
        options = ("--slice", "job", "--mem", "2g", *child, *WITH_PROGRAMS)
        assert total_bytes(cli, *options, debian, *GPU_PROGRAM, "info") == total
        filled = cli.run(*options, debian, *GPU_PROGRAM, "fill", str(20 * MIB)).json()
        assert total - 518 * MIB - 20 * MIB < filled["granted_bytes"] <= total - 518 * MIB


def test_a_local_process_in_a_slice_and_a_container_within_it(cli: Cli, debian: str) -> None:
    """`vgpurun run` and `local` in a share make parts of it, three levels deep."""
    assert cli("slice", "create", *SIM, "--mem", "8g", "--sm", "80", "job").exit_code == 0
    inner = (*cli.command, "run", *SIM, "--rm", "--mem", "50%", *WITH_PROGRAMS, debian, *GPU_PROGRAM, "info")
    outer = ("local", *SIM, "--slice", "job", "--mem", "4g", "--", *inner)
    assert cli(*outer).json()["devices"][0]["total"] == 2 * GIB
    inner = (*cli.command, "run", *SIM, "--rm", "--mem", "5g", debian, "true")
    cli("local", *SIM, "--slice", "job", "--mem", "4g", "--", *inner).assert_refused("more than GPU 0 has")
    cli.assert_nothing_left()
