"""How the simulated driver is built: sanitizers, the glibc that it needs, and programs that link with it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from simulated import Machine

from support import CHECKOUT, one_at_a_time

PROGRAMS = Path(__file__).parent / "programs"
LIB = CHECKOUT / "lib"


def compile_program(source: str, driver: Path, output: Path, includes: list[str], *flags: str) -> Path:
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *flags, *includes]
    link = [f"-L{driver}", "-lcuda", "-lpthread", "-o", str(output)]
    subprocess.run([*command, str(PROGRAMS / source), *link], check=True)
    return output


# Half a minute. The simulated driver serves the tests alone, and what goes wrong in it mostly fails another of them.
@pytest.mark.exhaustive
@pytest.mark.parametrize(("sanitizer", "calls"), [("address,undefined", 1500), ("thread", 200)])
def test_random_calls_under_sanitizers(
    machine: Machine, cuda_includes: list[str], tmp_path: Path, sanitizer: str, calls: int
) -> None:
    flags = f"-O1 -fsanitize={sanitizer} -fno-sanitize-recover=all"
    with one_at_a_time(LIB / "build" / f"sanitized-sim-{sanitizer}") as folder:
        make = ["make", "-s", "-j2", "-f", "sim/sim.mk", f"BUILD={folder}", f"CUDA_INCLUDE={' '.join(cuda_includes)}"]
        make += [f"CFLAGS={flags}", f"{folder}/sim/libcuda.so"]
        subprocess.run(make, cwd=LIB, check=True, env={**os.environ, "MAKEFLAGS": ""})
    program = compile_program("random_calls.c", folder / "sim", tmp_path / "program", cuda_includes, *flags.split())
    options = {
        "LD_LIBRARY_PATH": str(folder / "sim"),
        "ASAN_OPTIONS": "detect_leaks=0",  # memory that lives as long as the process is not freed
        "TSAN_OPTIONS": "halt_on_error=1",
    }
    for seed in range(3):
        result = machine.run(program, str(seed), str(calls), **options)
        assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


@pytest.mark.real_time
def test_a_linked_program_and_what_a_launch_costs(
    machine: Machine, simulated_driver: Path, cuda_includes: list[str], tmp_path: Path
) -> None:
    program = compile_program("launch_cost.c", simulated_driver, tmp_path / "program", cuda_includes)
    result = machine.run(program)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 2000


@pytest.mark.parametrize("library", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_the_libraries_need_little(simulated_driver: Path, library: str) -> None:
    dump = subprocess.run(
        ["objdump", "-p", "-T", simulated_driver / library], capture_output=True, text=True, check=True
    ).stdout
    assert re.search(rf"SONAME\s+{re.escape(library)}\n", dump)
    needed = re.findall(r"NEEDED\s+(\S+)", dump)
    assert all(re.match(r"(libc|libpthread|ld-linux)[-.]", name) for name in needed), needed
    versions = {tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([\d.]+)", dump)}
    assert max(versions) <= (2, 17)
    defined = re.findall(r" (?:\.text|\.data|\.bss)\s+\S+\s+(?:Base\s+)?(?:\.protected\s+)?(\w+)$", dump, re.MULTILINE)
    assert defined
    cuda = library == "libcuda.so.1"
    kernel_calls = ("ioctl", "openat")
    assert all(name.startswith("cu") or name in kernel_calls if cuda else name.startswith("nvml") for name in defined)
