"""Starts of processes that stay on the simulated GPU, each with a context and memory, beside native ones.

starts.py [COUNT]...    prints a Markdown table: the time until the last of COUNT processes has its memory
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from costs import LIBRARY, compile_program

COUNTS = (100, 300, 1000)
ROUNDS = 3
# More than 1000 contexts take.
MACHINE = "devices:\n  - name: Simulated\n    memory_mib: 1048576\n"


def until_the_last_s(program: Path, count: int, environment: dict[str, str]) -> float:
    """Start so many at once; return the seconds until each has its memory."""
    output, input_ = os.pipe(), os.pipe()
    streams = {"stdout": output[1], "stdin": input_[0]}
    began_s = time.monotonic()
    started = [subprocess.Popen([program], env=environment, **streams) for _ in range(count)]
    os.close(output[1])
    said = 0
    while said < count and (bytes_ := os.read(output[0], count)):
        said += len(bytes_)
    took_s = time.monotonic() - began_s
    os.close(input_[1])
    codes = [each.wait() for each in started]
    for each in (output[0], input_[0]):
        os.close(each)
    if any(codes):
        raise RuntimeError(f"{len(codes) - codes.count(0)} of {count} processes failed")
    return took_s


def measure(program: Path, count: int, is_limited: bool) -> float:
    """Measure on a machine and with a usage file of its own."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sim.yaml").write_text(MACHINE)
        environment = {
            "LD_LIBRARY_PATH": str(LIBRARY.parent / "sim"),
            "VGPUSIM_CONFIG": f"{folder}/sim.yaml",
            "VGPUSIM_STATE": f"{folder}/state",
        }
        limits = {
            "LD_PRELOAD": str(LIBRARY),
            "CUDA_DEVICE_MEMORY_LIMIT": "1000g",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{folder}/usage",
        }
        return until_the_last_s(program, count, environment | (limits if is_limited else {}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts", nargs="*", type=int, default=COUNTS)
    with tempfile.TemporaryDirectory() as folder:
        program = compile_program("stays.c", Path(folder))
        print("| processes | native, s | limited, s | ratio |\n|---|---|---|---|")
        for count in parser.parse_args().counts:
            pairs = [(measure(program, count, False), measure(program, count, True)) for _ in range(ROUNDS)]
            native_s, limited_s = (min(each) for each in zip(*pairs, strict=True))
            print(f"| {count} | {native_s:.2f} | {limited_s:.2f} | {limited_s / native_s:.2f} |", flush=True)


if __name__ == "__main__":
    main()
