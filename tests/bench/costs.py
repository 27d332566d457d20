"""Costs of the library: driver calls through it, with limits, with a profile and without, against none.

costs.py [ROUNDS] [--launches] [--setting NAME]...    prints a Markdown table
costs.py --shares                                     calls in a share within a share, against those in one share
"""

from __future__ import annotations

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
from typing import NamedTuple

from support.shares import write_share
from vgpurun.host.gpus import survey
from vgpurun.limits.nested import own_share
from vgpurun.limits.quota import Quota

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "lib" / "build" / "libvgpu.so"
# A profile of 4 MiB has reached its size after the first launches; one of 64 MiB grows for two million calls.
SETTINGS: dict[str, dict[str, str]] = {
    "no limits": {},
    "--mem 8g": {"CUDA_DEVICE_MEMORY_LIMIT": "8g"},
    "--sm 99": {"CUDA_DEVICE_SM_LIMIT": "99"},
    "--mem 8g --sm 99": {"CUDA_DEVICE_MEMORY_LIMIT": "8g", "CUDA_DEVICE_SM_LIMIT": "99"},
    "--profile": {"PFLOG": "profile"},
    "--profile-size 4m": {"PFLOG": "profile", "VGPURUN_PROFILE_SIZE": "4m"},
}
STARTS = 200
SHARES = ("a share", "a share in a share")


class Cost(NamedTuple):
    """A call, or a pair: its native time, how much more with the library, and the ratio of the two."""

    native_ns: float
    more_ns: float
    ratio: float


def compile_program(source: str, folder: Path) -> Path:
    """Return a program of the folder `programs`, made in another folder."""
    make = ["make", "-s", "-C", str(ROOT / "lib"), f"PYTHON={sys.executable}", "print-includes"]
    includes = subprocess.run(make, capture_output=True, text=True, check=True).stdout.split()
    program = folder / Path(source).stem
    path = Path(__file__).parent / "programs" / source
    subprocess.run(["gcc", "-O2", *includes, str(path), "-ldl", "-o", str(program)], check=True)
    return program


def start_ns(environment: dict[str, str]) -> float:
    """Return the time of a start of /bin/true, in nanoseconds."""
    began = time.perf_counter_ns()
    os.waitpid(os.posix_spawn("/bin/true", ["true"], environment), 0)
    return time.perf_counter_ns() - began


def start_cost(environment: dict[str, str]) -> Cost:
    """Time a program that does nothing, with the preload and without in turns."""
    preloaded = {**environment, "LD_PRELOAD": str(LIBRARY)}
    pairs = [(start_ns(dict(os.environ)), start_ns(preloaded)) for _ in range(STARTS)]
    return Cost(
        statistics.median(native_ns for native_ns, _ in pairs),
        statistics.median(preloaded_ns - native_ns for native_ns, preloaded_ns in pairs),
        statistics.median(preloaded_ns / native_ns for native_ns, preloaded_ns in pairs),
    )


def measure(program: Path, folder: Path, variables: dict[str, str], only_launches: bool) -> dict[str, Cost]:
    """Time each call, in a process of its own that makes each with the library and without, in turns."""
    profile = folder / "profile"
    profile.mkdir(exist_ok=True)
    environment = {**os.environ, "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(folder / "usage"), **variables}
    command = [str(program), str(LIBRARY), *(["launch"] if only_launches else [])]
    # The name of the profile's folder is relative to this one.
    result = subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    for file in profile.iterdir():
        file.unlink()
    costs = {call: Cost(**figures) for call, figures in json.loads(result.stdout).items()}
    if not only_launches:
        costs["/bin/true"] = start_cost(environment)
    return costs


def enter_shares(folder: Path, levels: int) -> dict[str, str]:
    """Make shares within each other, and return the variables that enter the innermost."""
    quotas = [(gpu.uuid, Quota(8 << 30, 99)) for gpu in survey().gpus]
    variables: dict[str, str] = {}
    for level in range(levels):
        parent = own_share(variables)
        variables = write_share(folder / f"share-{levels}-{level}", quotas, parent)
    return variables


def shares_table(rounds: list[dict[str, dict[str, Cost]]]) -> str:
    """A row for each call: what it takes in one share, and by how much longer it takes in two, in turns."""
    lines = ["| call | one share, ns | two shares to one |", "|---|---|---|"]
    for call in rounds[0][SHARES[0]]:
        took = [[each[name][call].native_ns + each[name][call].more_ns for name in SHARES] for each in rounds]
        ratios = [two_ns / one_ns for one_ns, two_ns in took]
        one_ns = statistics.median(one_ns for one_ns, _ in took)
        lines.append(
            f"| {call} | {one_ns:.0f} | {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) |"
        )
    return "\n".join(lines)


def table(rounds: list[dict[str, dict[str, Cost]]]) -> str:
    """A row for each call, a column for each setting: the median of the processes, and the least and the most."""
    settings = list(rounds[0])
    lines = ["| call | native, ns | " + " | ".join(settings) + " |", "|---" * (len(settings) + 2) + "|"]
    for call in rounds[0][settings[0]]:
        native_ns = statistics.median(costs[call].native_ns for each in rounds for costs in each.values())
        cells = [f"{native_ns:.0f}"]
        for setting in settings:
            found = [each[setting][call] for each in rounds]
            ratios = [cost.ratio for cost in found]
            more_ns = statistics.median(cost.more_ns for cost in found)
            cells.append(f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), {more_ns:+.0f} ns")
        lines.append(f"| {call} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", nargs="?", type=int, default=7, help="processes of each setting, in changing order")
    parser.add_argument("--launches", action="store_true", help="nothing else")
    parser.add_argument("--setting", choices=SETTINGS, action="append", help="by default all")
    parser.add_argument("--shares", action="store_true", help="one share, and one within another")
    options = parser.parse_args()
    settings = {name: SETTINGS[name] for name in options.setting or SETTINGS}
    rounds: list[dict[str, dict[str, Cost]]] = []
    with tempfile.TemporaryDirectory() as folder:
        program = compile_program("calls.c", Path(folder))
        if options.shares:
            settings = {name: enter_shares(Path(folder), levels) for levels, name in enumerate(SHARES, 1)}
        for _ in range(options.rounds):
            order = random.sample(list(settings), len(settings))
            costs = {name: measure(program, Path(folder), settings[name], options.launches) for name in order}
            rounds.append({name: costs[name] for name in settings})
    if options.shares:
        print(shares_table(rounds))
        return
    print("Each of its native time: the median of the processes, their least and most, and nanoseconds more.\n")
    print(table(rounds))


if __name__ == "__main__":
    main()
