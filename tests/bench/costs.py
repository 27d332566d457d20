"""What the library costs: driver calls with it preloaded, with limits, with a profile and without, against none.

costs.py [ROUNDS] [--launches] [--setting NAME]...    prints a Markdown table
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "lib" / "build" / "libvgpu.so"
PRELOADED = {"LD_PRELOAD": str(LIBRARY)}
NATIVE = "native"
# A profile of 4 MiB has reached its size after the first launches; one of 64 MiB grows for two million calls.
SETTINGS: dict[str, dict[str, str]] = {
    NATIVE: {},
    "no limits": PRELOADED,
    "--mem 8g": {**PRELOADED, "CUDA_DEVICE_MEMORY_LIMIT": "8g"},
    "--sm 99": {**PRELOADED, "CUDA_DEVICE_SM_LIMIT": "99"},
    "--mem 8g --sm 99": {**PRELOADED, "CUDA_DEVICE_MEMORY_LIMIT": "8g", "CUDA_DEVICE_SM_LIMIT": "99"},
    "--profile": {**PRELOADED, "PFLOG": "profile"},
    "--profile-size 4m": {**PRELOADED, "PFLOG": "profile", "VGPURUN_PROFILE_SIZE": "4m"},
}
STARTS = 200


def compile_calls(folder: Path) -> Path:
    make = ["make", "-s", "-C", str(ROOT / "lib"), f"PYTHON={sys.executable}", "print-includes"]
    includes = subprocess.run(make, capture_output=True, text=True, check=True).stdout.split()
    program = folder / "calls"
    source = Path(__file__).parent / "programs" / "calls.c"
    subprocess.run(["gcc", "-O2", *includes, str(source), "-ldl", "-o", str(program)], check=True)
    return program


def start_cost_us(environment: dict[str, str]) -> float:
    """One start of /bin/true, in microseconds."""
    began = time.perf_counter()
    for _ in range(STARTS):
        os.waitpid(os.posix_spawn("/bin/true", ["true"], environment), 0)
    return (time.perf_counter() - began) / STARTS * 1e6


def measure(program: Path, folder: Path, variables: dict[str, str], only_launches: bool) -> dict[str, float]:
    """What each call takes, in nanoseconds, in a process of its own."""
    profile = folder / "profile"
    profile.mkdir(exist_ok=True)
    environment = {**os.environ, **variables, "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(folder / "usage")}
    command = [str(program), *(["launch"] if only_launches else [])]
    # The name of the profile's folder is relative to this one.
    result = subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    for file in profile.iterdir():
        file.unlink()
    figures: dict[str, float] = json.loads(result.stdout)
    if not only_launches:
        figures["/bin/true"] = start_cost_us(environment) * 1000
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", nargs="?", type=int, default=7, help="of each setting, in changing order")
    parser.add_argument("--launches", action="store_true", help="nothing else")
    parser.add_argument("--setting", choices=SETTINGS, action="append", help="beside native; by default all")
    options = parser.parse_args()
    settings = {NATIVE: {}, **{name: SETTINGS[name] for name in options.setting or SETTINGS}}
    rounds: list[dict[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        program = compile_calls(Path(folder))
        for _ in range(options.rounds):
            order = random.sample(list(settings), len(settings))
            figures = {name: measure(program, Path(folder), settings[name], options.launches) for name in order}
            rounds.append(figures)
    others = [name for name in settings if name != NATIVE]
    print("Each of its native time, and nanoseconds more: the median of the rounds.\n")
    print("| call | native, ns | " + " | ".join(others) + " |")
    print("|---" * (len(others) + 2) + "|")
    for call in rounds[0][NATIVE]:
        cells = [f"{statistics.median(figures[NATIVE][call] for figures in rounds):.0f}"]
        for name in others:
            ratio = statistics.median(figures[name][call] / figures[NATIVE][call] for figures in rounds)
            more_ns = statistics.median(figures[name][call] - figures[NATIVE][call] for figures in rounds)
            cells.append(f"{ratio:.3f} ({more_ns:+.0f})")
        print(f"| {call} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
