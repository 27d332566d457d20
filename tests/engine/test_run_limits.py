"""The limits hold in a container, for every process of it, and the host sees what they hold back."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli
from escapes import GRANT, by_nix_loader
from support import assert_measured
from support.programs import text_of
from vgpurun import abi
from vgpurun.storage import tenants

GIB = 1 << 30
MIB = 1 << 20
OUT_OF_MEMORY = 2


def program(vgpurun: Cli, image: str, *arguments: str, limits: tuple[str, ...]) -> dict:
    return vgpurun.run(*limits, *WITH_PROGRAMS, image, *GPU_PROGRAM, *arguments).json()


GPU_INFO = (*GPU_PROGRAM, "info")
HIGHER = ("CUDA_DEVICE_MEMORY_LIMIT=8g", "CUDA_DEVICE_MEMORY_LIMIT_0=8g")


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ((), ("env", "-i", "/usr/bin/python3", *GPU_INFO[1:])),
        ((), ("env", *HIGHER, "python3", *GPU_INFO[1:])),
        ((), by_nix_loader("/usr/bin/python3", *GPU_INFO[1:])),
        (("-e", "LD_PRELOAD=libm.so.6"), ("sh", "-c", 'test "$LD_PRELOAD" = libm.so.6 && exec "$@"', "sh", *GPU_INFO)),
        *((("-u", user), GPU_INFO) for user in ("1000", "nobody", "1234:5678")),
    ],
    ids=[
        "an empty environment", "variables of the container", "Nix's loader", "a preload of the user's own",
        "a number", "a name", "a group",
    ],
)  # fmt: skip
def test_a_program_is_limited_however_it_is_started(
    vgpurun: Cli, debian: str, options: tuple[str, ...], command: Sequence[str]
) -> None:
    seen = vgpurun.run("--mem", "1g", *options, *WITH_PROGRAMS, debian, *command).json()
    assert seen["devices"][0]["total"] == GIB
    assert (seen["uid"] == 0) == ("-u" not in options)


def test_without_a_limit_it_has_the_whole_gpu(vgpurun: Cli, debian: str) -> None:
    assert program(vgpurun, debian, "info", limits=())["devices"][0]["total"] == 8 * GIB


def test_the_limit_is_the_size_of_the_card(vgpurun: Cli, debian: str) -> None:
    device = program(vgpurun, debian, "info", limits=("--mem", "2g"))["devices"][0]
    assert device["total"] == 2 * GIB
    assert device["nvml_total"] == 2 * GIB
    assert 0 < device["free"] <= 2 * GIB


def test_memory_is_refused_past_the_limit_and_given_again_after_freeing(vgpurun: Cli, debian: str) -> None:
    seen = program(vgpurun, debian, "fill", str(20 * MIB), limits=("--mem", "1g"))
    assert seen["result"] == OUT_OF_MEMORY
    assert GIB // 4 < seen["granted_bytes"] <= GIB


def test_a_variable_in_the_container_is_a_limit_within_its_own(vgpurun: Cli, debian: str) -> None:
    """A shell or exec starts a program with it."""
    held = vgpurun.run("-d", "--mem", "2g", *WITH_PROGRAMS, debian, "sleep", "60").stdout.strip()
    set_inside = ("exec", "-e", "CUDA_DEVICE_MEMORY_LIMIT=1g", held)
    by_shell = ("exec", held, "env", "CUDA_DEVICE_MEMORY_LIMIT=600m")
    for command, total in ((set_inside, GIB), (by_shell, 600 * MIB), (("exec", held), 2 * GIB)):
        assert vgpurun(*command, *GPU_PROGRAM, "info").json()["devices"][0]["total"] == total
    filled = vgpurun(*set_inside, *GPU_PROGRAM, "fill", str(20 * MIB)).json()
    assert filled["result"] == OUT_OF_MEMORY and GIB // 4 < filled["granted_bytes"] <= GIB
    vgpurun("rm", "-f", held)


def test_the_library_and_the_limits_cannot_be_written_in_the_container(vgpurun: Cli, debian: str) -> None:
    files = "/.vgpurun/libvgpu.so /.vgpurun/etc/limits /etc/ld.so.preload"
    script = f"for file in {files}; do (echo x >> $file) 2>/dev/null; echo $?; done"
    assert "0" not in vgpurun.run("--mem", "1g", debian, "bash", "-c", script).stdout.split()


def test_what_other_containers_say_of_their_turns_cannot_be_written(vgpurun: Cli, debian: str) -> None:
    """By root in the container; nor can it lock, replace or add any. Its own it can write."""
    vgpurun.run("-d", "--name", "other", "--sm", "20", debian, "sleep", "60")
    (name,) = vgpurun.states()
    folder = tenants.folder_of(vgpurun.state_dir / "containers" / name)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {"limits", "of", "presence1"}
    script = f"""
cd /.vgpurun/tenants
for file in {folder.name}/limits {folder.name}/presence1; do (echo x >> $file) 2>/dev/null; echo $?; done
mv {folder.name} mine 2>/dev/null; echo $?
rm -rf {folder.name} 2>/dev/null; echo $?
mkdir mine 2>/dev/null; echo $?
mount -o remount,rw /.vgpurun/tenants 2>/dev/null; echo $?
(echo x > /.vgpurun/run/presence) && rm /.vgpurun/run/presence 2>/dev/null; echo $?
cat {folder.name}/presence1 | wc -c
"""
    *refused, size = vgpurun.run("--sm", "20", debian, "bash", "-c", script).stdout.split()
    assert len(refused) == 7 and "0" not in refused
    assert int(size) == abi.PRESENCE_BYTES
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    vgpurun.remove_containers()
    vgpurun.run("--sm", "20", debian, "true")
    assert not folder.exists()


@pytest.mark.exhaustive  # tests/preload/test_presence.py has it without containers
@pytest.mark.real_time
def test_a_container_that_lies_about_its_turn_harms_itself(own_gpu: Cli, debian: str) -> None:
    def lie() -> None:
        file = os.open("/.vgpurun/run/presence", os.O_WRONLY)
        while True:
            now = time.monotonic_ns()
            ends = now + 250_000_000
            os.pwrite(file, struct.pack("<qqqq", ends, ends, now - 500_000_000, now) * 256, 0)
            time.sleep(0.001)

    def share() -> float:
        alone = program(own_gpu, debian, "spin", "spin_1ms", "2", limits=("--sm", "50"))
        own_gpu.run("-d", "--name", "liar", "--sm", "30", *WITH_PROGRAMS, debian, "python3", "-c", text_of(lie))
        beside = program(own_gpu, debian, "spin", "spin_1ms", "4", limits=("--sm", "50"))
        own_gpu.remove_containers()
        return float(beside["launches"] / beside["seconds"] / (alone["launches"] / alone["seconds"]))

    assert_measured(share, lambda share: share > 0.5)


def test_all_processes_of_a_container_share_the_limit(vgpurun: Cli, debian: str) -> None:
    holder = f"sleep 30 | python3 /programs/gpu.py hold {600 * MIB} >/tmp/held &"
    script = f"{holder} until test -s /tmp/held; do sleep 0.05; done; python3 /programs/gpu.py fill {20 * MIB}"
    result = vgpurun.run("--mem", "2g", *WITH_PROGRAMS, debian, "sh", "-c", script)
    assert 0 < result.json()["granted_bytes"] <= 2 * GIB - 600 * MIB


def test_half_of_the_gpu_does_no_more_than_half_of_the_work(own_gpu: Cli, debian: str) -> None:
    """And how near it gets, tests/preload measures, where nothing runs beside it."""
    half = program(own_gpu, debian, "spin", "spin_1ms", "1", limits=("--sm", "50"))
    assert 0 < half["launches"] * 0.001 / half["seconds"] < 0.6


def test_two_containers_have_limits_of_their_own(vgpurun: Cli, debian: str) -> None:
    def hold(limit: str) -> tuple[str, ...]:
        command = (debian, *GPU_PROGRAM, "hold", str(100 * MIB))
        return ("run", "--rm", *vgpurun.driver, "-i", "--mem", limit, *WITH_PROGRAMS, *command)

    with vgpurun.started(*hold("1g"), stdin=subprocess.PIPE) as first:
        with vgpurun.started(*hold("2g"), stdin=subprocess.PIPE) as second:
            for process in (first, second):
                assert json.loads(process.stdout.readline()) == {"holding": 100 * MIB}
            limits = sorted(c["devices"][0]["memory_limit_bytes"] for c in smi(vgpurun)["containers"])
            assert limits == [GIB, 2 * GIB]
            second.communicate("")
            assert second.returncode == 0
        first.communicate("")
        assert first.returncode == 0
    vgpurun.assert_nothing_left()


def smi(vgpurun: Cli) -> dict:
    return vgpurun("smi", *vgpurun.driver, "--format", "json").json()


def test_the_host_sees_what_a_container_holds(vgpurun: Cli, debian: str) -> None:
    options = ("-d", "-i", "--name", "held", "--mem", "1g", "--sm", "40", *WITH_PROGRAMS)
    assert vgpurun.run(*options, debian, *GPU_PROGRAM, "hold", str(200 * MIB)).exit_code == 0
    vgpurun.wait_for_output("held", b"holding")
    seen = next(c for c in smi(vgpurun)["containers"] if c["name"] == "held")
    device = seen["devices"][0]
    assert 200 * MIB <= device["memory_used_bytes"] <= GIB
    assert device["memory_limit_bytes"] == GIB
    assert device["sm_limit_percent"] == 40


def test_nvidia_smi_in_a_container(vgpurun: Cli, debian: str) -> None:
    assert vgpurun.run("-d", "--name", "watched", "--mem", "1g", debian, "sleep", "60").exit_code == 0
    result = vgpurun("smi", "watched")
    assert result.exit_code == 0
    assert "1024MiB" in result.stdout
    missing = vgpurun("smi", "no-such-container")
    assert (missing.exit_code, missing.stderr) == (1, "vgpurun: No such container: no-such-container\n")


def test_nvidia_smi_as_a_container_would_see_it(vgpurun: Cli) -> None:
    result = vgpurun("smi", *vgpurun.driver, "--mem", "1g", "--sm", "50")
    assert result.exit_code == 0
    assert "1024MiB" in result.stdout


TWO_GPUS = """
devices:
  - name: Simulated A
    uuid: GPU-aaaaaaaa-0000-0000-0000-000000000000
    memory_mib: 8192
  - name: Simulated B
    uuid: GPU-bbbbbbbb-0000-0000-0000-000000000000
    memory_mib: 16384
"""


@pytest.mark.parametrize("environment", [(), ("/usr/bin/env", "-i")], ids=["environment", "env -i"])
@pytest.mark.parametrize(
    ("limits", "seen"),
    [
        (("--mem", "0=1g,1=50%"), {"Simulated A": 1, "Simulated B": 8}),
        (("--gpus", "device=1", "--mem", "1g"), {"Simulated B": 1}),
        (("--gpus", "device=GPU-bbbb", "--mem", "1=3g"), {"Simulated B": 3}),
        (("--gpus", "1", "--mem", "GPU-aaaa=2g"), {"Simulated A": 2}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_limits_go_with_the_device(
    vgpurun: Cli,
    debian: str,
    tmp_path: Path,
    limits: tuple[str, ...],
    seen: dict[str, int],
    environment: tuple[str, ...],
) -> None:
    """On a machine with two GPUs. The container sees the chosen ones, each with its own limit."""
    (tmp_path / "sim.yaml").write_text(TWO_GPUS)
    vgpurun.environment["VGPUSIM_CONFIG"] = str(tmp_path / "sim.yaml")
    command = (*environment, "/usr/bin/python3", "/programs/gpu.py", "info")
    devices = vgpurun.run(*limits, *WITH_PROGRAMS, debian, *command).json()["devices"]
    assert {device["name"]: device["total"] for device in devices} == {name: gib * GIB for name, gib in seen.items()}
    assert [device["nvml_total"] for device in devices] == [device["total"] for device in devices]


def test_a_program_with_a_capability_of_its_file_is_held(vgpurun: Cli, debian: str) -> None:
    """The loader takes no LD_PRELOAD for such a one, nor any folder of LD_LIBRARY_PATH."""
    fill = f"/bin/p /programs/gpu.py fill {MIB}"
    script = f"cp -L /usr/bin/python3 /bin/p; {GRANT} /bin/p; su nobody -s /bin/sh -c '{fill}'"
    filled = vgpurun.run("--mem", "1g", *WITH_PROGRAMS, debian, "sh", "-c", script).json()
    assert filled["result"] == 2 and 0 < filled["granted_bytes"] < GIB


def test_a_device_can_be_chosen_and_limited_by_its_number(vgpurun: Cli, debian: str) -> None:
    seen = program(vgpurun, debian, "info", limits=("--gpus", "device=0", "--mem", "0=1g"))
    assert [device["total"] for device in seen["devices"]] == [GIB]


def test_many_containers_at_once(vgpurun: Cli, debian: str) -> None:
    """Eight launches at the same moment: none sweeps what another is making, and each one has its limit."""
    command = ("run", "--rm", *vgpurun.driver, "--mem", "600m", *WITH_PROGRAMS, debian, *GPU_PROGRAM, "info")
    with ExitStack() as stack:
        for process in [stack.enter_context(vgpurun.started(*command)) for _ in range(8)]:
            stdout, stderr = process.communicate(timeout=60)
            assert process.returncode == 0, stderr
            assert json.loads(stdout)["devices"][0]["total"] == 600 * MIB
    vgpurun.assert_nothing_left()
