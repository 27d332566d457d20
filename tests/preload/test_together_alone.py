"""Programs of a user with --together and no slice: on each GPU they are a group of their own."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from governed import await_slice
from members import BESIDE, SIM, Member, await_end, host_in_a_short_folder, one_group, telling

from support import wait_until
from support.suspension import Host
from vgpurun.together import server

ALONE = ("local", *SIM, "--gpus", "device=0", "--together")


@pytest.fixture
def host(built_library: Path) -> Iterator[Host]:
    with host_in_a_short_folder() as made:
        yield made


def test_a_user_s_programs_on_a_gpu_are_a_group(host: Host) -> None:
    one, other = Member(host, *ALONE, "--mem", "500m"), Member(host, *ALONE, "--mem", "300m", "--sm", "25")
    group, pipes = one_group(host)
    assert (one.said, other.said) == ([1, 132], [1, 33])
    assert [one.ask(300), one.ask(150)] == ["ok", "CUDA_ERROR_OUT_OF_MEMORY"]
    assert one.ask() == other.ask() == "ok"
    assert len(server.processes(pipes)) == 2, "a daemon and a server"
    smi = host.vgpurun("smi", *SIM).stdout
    assert "25 % of the SMs" in smi
    os.kill(wait_until(lambda: record(group)["server"], "server"), signal.SIGKILL)
    assert "the MPS server has ended" in one.end()[1]
    other.end()
    await_end(group, pipes)


def record(group: Path) -> dict[str, Any]:
    """Return the keeper's record."""
    found: dict[str, Any] = json.loads((group / "keeper").read_text())
    return found


def test_a_group_has_the_time_slice_of_its_priority(host: Host) -> None:
    low = (*ALONE, "--mem", "200m", "--priority", "low")
    with telling(host, *low) as one, telling(host, *low), telling(host, *BESIDE, "--sm", "20", "--priority", "low"):
        await_slice(one, 20000)
        with telling(host, *BESIDE, "--sm", "20"):
            await_slice(one, 1000)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--movable",), "--movable beside --together"),
        (("--mem", "1g", "--swap"), "--swap beside --together"),
        (("--mem", "1g", "--oversubscribe", "2g"), "--oversubscribe beside --together"),
        (("--sm-policy", "burst"), "--sm-policy beside --together"),
        (("--slice", "team"), "--together beside --slice: a slice has its own"),
    ],
)
def test_options_that_cannot_be_are_refused(host: Host, options: tuple[str, ...], words: str) -> None:
    refused = host.vgpurun("local", *SIM, "--together", *options, "--", "true")
    assert refused.returncode == 125 and words in refused.stderr
    assert not (host.folder / "state" / "together").exists()


def test_a_part_of_a_share_has_no_group_of_its_own(host: Host) -> None:
    inner = (sys.executable, "-m", "vgpurun", "local", *SIM, "--together", "--", "true")
    refused = host.vgpurun("local", *SIM, "--mem", "1g", "--", *inner)
    assert refused.returncode == 125 and "--together can only be set on the outer share" in refused.stderr
