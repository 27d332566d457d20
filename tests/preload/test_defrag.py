"""Programs make room for a launch by going to other GPUs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

from support.suspension import Host, Program


def defrag(host: Host, *options: str) -> subprocess.CompletedProcess[str]:
    return host.vgpurun("defrag", "--driver", "sim", *options)


def fits(host: Host, *options: str) -> bool:
    done = host.vgpurun("local", "--driver", "sim", *options, "--", "true")
    assert done.returncode in (0, 125), done.stderr
    return done.returncode == 0


def test_a_request_fits_that_did_not(host: Host, start: Callable[..., Program]) -> None:
    small = start("--mem", "500m", "--gpus", "device=0")
    large = start("--mem", "700m", "--gpus", "device=1")
    assert large.asks("take 400") == "taken"
    assert not fits(host, "--mem", "1800m")
    planned = defrag(host, "--mem", "1800m", "--dry-run")
    assert (planned.returncode, planned.stdout) == (0, f"process {small.pid}: GPU 0 -> GPU 1, 112 MiB\n"), planned
    assert planned.stderr == "vgpurun: --mem 1800m would fit on GPU 0\n"
    assert host.used_mib() == [112, 512]
    shown = json.loads(defrag(host, "--mem", "1800m", "--dry-run", "--format", "json").stdout)
    assert [(each["from_gpu"], each["to_uuid"]) for each in shown["moves"]] == [("0", host.uuids[1])]
    assert shown["memory_bytes"] == 112 << 20

    done = defrag(host, "--mem", "1800m")
    assert (done.returncode, done.stderr) == (0, "vgpurun: --mem 1800m fits on GPU 0\n"), done
    assert done.stdout == f"process {small.pid}: GPU 0 -> GPU 1, 112 MiB moved\n"
    assert host.used_mib() == [0, 112 + 512]
    assert small.asks("check") == large.asks("check").replace("5", "4") == "right 4"
    assert fits(host, "--mem", "1800m")
    again = defrag(host, "--mem", "1800m")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "vgpurun: --mem 1800m fits on GPU 0 as it is\n")


def test_compute_makes_room_too(host: Host, start: Callable[..., Program]) -> None:
    for gpu in ("0", "1"):
        start("--mem", "300m", "--sm", "40", "--gpus", f"device={gpu}")
    assert not fits(host, "--mem", "100m", "--sm", "70")
    assert defrag(host, "--sm", "70").returncode == 0
    assert fits(host, "--mem", "100m", "--sm", "70")


def test_nothing_helps(host: Host, start: Callable[..., Program]) -> None:
    held = [start("--mem", "1200m", "--gpus", f"device={gpu}") for gpu in (0, 1)]
    refused = defrag(host, "--mem", "1g")
    assert refused.returncode == 125 and "no moves make room for --mem 1g" in refused.stderr
    held[0].end()
    whole = host.vgpurun("slice", "create", "stays", "--driver", "sim", "--mem", "500m", "--gpus", "device=0")
    assert whole.returncode == 0
    refused = defrag(host, "--mem", "2g", "--gpus", "device=0")
    assert refused.returncode == 125 and "slice stays has the nodes of its own GPUs alone" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    for options, message in (
        ((), "give the limits of the launch that should fit"),
        (("--mem", "max"), "give a size"),
        (("--mem", "9g"), "is more"),
    ):
        wrong = defrag(host, *options)
        assert (wrong.returncode, message in wrong.stderr) == (125, True), wrong.stderr
