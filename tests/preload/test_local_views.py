"""Processes of `vgpurun local` as the views show them, on a host without an engine."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from cuda_driver import Driver, byref, c_uint64
from support.programs import text_of
from support.suspension import PATTERNS, Host, Program

SIM = ("--driver", "sim")
MIB = 1 << 20
CONTEXT_MIB = 100  # on the simulated GPUs of such a host


def smi(host: Host) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.vgpurun("smi", *SIM, "--format", "json").stdout)
    return found


def outlive(program: Program) -> int:
    """End `vgpurun local` alone, and return the program that goes on."""
    child = program.child()
    program.process.send_signal(signal.SIGKILL)
    program.process.wait()
    return child


def test_ps_lists_them_without_an_engine(host: Host, start: Callable[..., Program]) -> None:
    program = start("--mem", "1g", "--sm", "30")
    listed = host.vgpurun("ps", *SIM)
    assert listed.returncode == 0 and "warning: containers are not shown" in listed.stderr
    (row,) = listed.stdout.splitlines()[1:]
    assert f"process {program.pid}" in row and "/ 1 GiB" in row and "/ 30 %" in row
    (described,) = map(json.loads, host.vgpurun("ps", *SIM, "--format", "json").stdout.splitlines())
    assert described["Devices"][0]["memory_used_bytes"] > CONTEXT_MIB * MIB
    only_ids = host.vgpurun("ps", *SIM, "-q")
    assert only_ids.returncode != 0 and only_ids.stdout == "", "a process has no container's id"
    program.end()
    alone = host.vgpurun("ps", *SIM)
    assert alone.returncode != 0 and alone.stdout == "", "there is nothing to be shown"


def test_one_line_says_that_others_have_reserved_all_of_the_time(host: Host, start: Callable[..., Program]) -> None:
    for percent in ("70", "30"):
        start("--mem", "200m", "--sm", percent, "--gpus", "device=0")
    launched = host.vgpurun("local", *SIM, "--mem", "600m", "--gpus", "device=0", "--", "true")
    words = "100 % of the time of GPU 0 is reserved: without --sm this gets 1 % while the others use theirs"
    assert (launched.returncode, launched.stderr) == (0, f"vgpurun: warning: {words}\n")
    for given in (("--gpus", "device=1"), ("--sm-policy", "off", "--gpus", "device=0")):
        assert host.vgpurun("local", *SIM, "--mem", "600m", *given, "--", "true").stderr == ""


def test_a_look_at_the_gpus_of_others_is_no_error(host: Host) -> None:
    """NVML shows them to a process of the host; what says that they were not granted is for CUDA."""
    listed = host.vgpurun("local", *SIM, "--mem", "600m", "--gpus", "device=1", "--", "nvidia-smi", "-L")
    assert (listed.returncode, listed.stderr, len(listed.stdout.splitlines())) == (0, "", 2)
    forced = (
        "local",
        *SIM,
        "--mem",
        "600m",
        "--gpus",
        "device=1",
        "--",
        "env",
        f"CUDA_VISIBLE_DEVICES={host.uuids[0]}",
    )
    refused = host.vgpurun(*forced, sys.executable, str(PATTERNS))
    assert refused.returncode != 0
    assert refused.stderr.count(f"GPU {host.uuids[0]} was not granted to this program") == 1, refused.stderr


def show_gpus() -> None:
    d = Driver()
    if d.result("cuInit", 0) == "CUDA_SUCCESS":
        print([(d.device_uuid(ordinal), d.device_total_mem(ordinal) >> 20) for ordinal in range(d.device_count())])


def test_a_program_counts_the_gpus_that_it_was_granted(host: Host) -> None:
    """An index is the host's, or the share's where the host's is none of the share's; past the last there is none."""

    def seen(gpus: str, *inside: str) -> str:
        shown = host.vgpurun("local", *SIM, "--mem", "1g", "--gpus", gpus, "--", *inside, sys.executable, *program)
        assert shown.stderr == ""
        return shown.stdout.strip()

    program = ("-c", text_of(show_gpus))
    first, second = ((uuid, 1024) for uuid in host.uuids)
    for index in ("0", "1"):
        assert seen("device=1", "env", f"CUDA_VISIBLE_DEVICES={index}") == str([second])
        assert seen("all", "env", f"CUDA_VISIBLE_DEVICES={index}") == str([(first, second)[int(index)]])
    assert seen("device=1", "env", "CUDA_VISIBLE_DEVICES=2") == seen("device=1", "env", "CUDA_VISIBLE_DEVICES=") == ""
    assert seen("device=1", "env", "-u", "CUDA_VISIBLE_DEVICES") == str([second])


@pytest.mark.parametrize("step_bytes", [100 * MIB, 4096, 3 * MIB + 7])
def test_the_line_about_a_refusal_adds_up(host: Host, start: Callable[..., Program], step_bytes: int) -> None:
    """The bytes asked for and in use that it names are more than the limit, whatever was rounded."""
    host.vgpurun("slice", "create", "team", *SIM, "--mem", "1023m", "--gpus", "device=0")
    assert start("--slice", "team").asks("alloc 300") == "held"

    def fill() -> None:
        driver = Driver.started()
        for _ in range(6):
            driver.mem_alloc(64 << 20)
        while driver.result("cuMemAlloc_v2", byref(c_uint64()), int(sys.argv[1])) == "CUDA_SUCCESS":
            pass

    filled = host.vgpurun("local", *SIM, "--slice", "team", "--", sys.executable, "-c", text_of(fill), str(step_bytes))
    line = next(line for line in filled.stderr.splitlines() if "out of GPU memory" in line)
    asked, own, others, overhead, limit = (int(each) for each in re.findall(r"([0-9]+) MiB", line))
    assert (limit, others >= 300, overhead) == (1023, True, 2 * CONTEXT_MIB), line
    assert asked + own + others + overhead > limit, line


def test_a_program_that_its_launch_did_not_outlive_is_no_stranger(host: Host, start: Callable[..., Program]) -> None:
    program = start("--mem", "1g")
    child = outlive(program)
    try:
        (gpu,) = [each for each in smi(host)["gpus"] if each["memory_used_bytes"]]
        assert gpu["outside"] == [] and gpu["memory_outside_bytes"] == 0
        assert "outside vgpurun" not in host.vgpurun("smi", *SIM).stdout
        (process,) = smi(host)["processes"]
        assert process["id"] == program.pid and process["devices"][0]["memory_used_bytes"] > CONTEXT_MIB * MIB
        assert f"process {program.pid}" in host.vgpurun("ps", *SIM).stdout
    finally:
        ended = os.pidfd_open(child)
        os.kill(child, signal.SIGKILL)
        select.select([ended], [], [], 20)
        os.close(ended)


def test_what_is_held_past_the_library_is_shown_everywhere(host: Host, start: Callable[..., Program]) -> None:
    """The driver counts it, and the guard goes by that: 100 MiB of its limit used would be no reason to freeze it."""
    program = start("--mem", "300m", "--gpus", "device=0", "--", "env", "-u", "LD_PRELOAD")
    assert program.asks("alloc 1000") == "held"
    (process,) = smi(host)["processes"]
    (device,) = process["devices"]
    assert device["memory_used_bytes"] > 1000 * MIB > device["memory_allocated_bytes"]
    assert smi(host)["gpus"][0]["memory_outside_bytes"] == 0, "it is the tenant's, and nobody else's"
    for verb in ("ps", "smi", "top --once"):
        assert "1.09 GiB / 300 MiB" in host.vgpurun(*verb.split(), *SIM).stdout


def test_a_member_of_a_slice_has_its_own_part_of_what_is_used(host: Host, start: Callable[..., Program]) -> None:
    """Its slots do not tell it from others of its PID namespace; the driver does."""
    host.vgpurun("slice", "create", "team", *SIM, "--mem", "1500m", "--gpus", "device=0")
    small, large = start("--slice", "team"), start("--slice", "team")
    assert large.asks("alloc 200") == "held"
    used = {each["id"]: each["devices"][0]["memory_used_bytes"] for each in smi(host)["processes"]}
    assert used[large.pid] - used[small.pid] == 200 * MIB and used[small.pid] > CONTEXT_MIB * MIB
    for verb in ("smi", "ps"):
        shown = host.vgpurun(verb, *SIM).stdout
        assert "? /" not in shown and "  ? " not in shown, shown


def test_what_a_slice_holds_above_a_lowered_limit_is_its_own(host: Host, start: Callable[..., Program]) -> None:
    host.vgpurun("slice", "create", "team", *SIM, "--mem", "1g", "--gpus", "device=0")
    assert start("--slice", "team").asks("alloc 600") == "held"
    start("--mem", "1g", "--gpus", "device=0")
    for size in ("256m", "1g"):
        assert host.vgpurun("slice", "update", *SIM, "--mem", size, "team").returncode == 0
    refused = host.vgpurun("slice", "update", *SIM, "--mem", "1200m", "team")
    assert refused.returncode == 125 and "no room for --mem 1200m" in refused.stderr
