"""What the library costs: driver calls with it preloaded, with limits and without, against none. /bin/true likewise.

costs.py [ROUNDS]    prints a Markdown table; ratios are of the fastest of the rounds, in changing order
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "lib" / "build" / "libvgpu.so"
PRELOADED = {"LD_PRELOAD": str(LIBRARY)}
SETTINGS: dict[str, dict[str, str]] = {
    "native": {},
    "no limits": PRELOADED,
    "--mem 8g": {**PRELOADED, "CUDA_DEVICE_MEMORY_LIMIT": "8g"},
    "--profile": PRELOADED,
    "--mem 8g --sm 99": {**PRELOADED, "CUDA_DEVICE_MEMORY_LIMIT": "8g", "CUDA_DEVICE_SM_LIMIT": "99"},
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


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    measured: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = compile_calls(Path(folder))
        for _ in range(rounds):
            for setting, variables in random.sample(list(SETTINGS.items()), len(SETTINGS)):
                environment = {**os.environ, **variables, "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{folder}/usage"}
                if setting == "--profile":
                    environment["PFLOG"] = folder
                output = subprocess.run([program], env=environment, capture_output=True, text=True, check=True).stdout
                figures = {**json.loads(output), "/bin/true": start_cost_us(environment) * 1000}
                for call, cost_ns in figures.items():
                    measured.setdefault(call, {}).setdefault(setting, []).append(cost_ns)
    print("| call | native, ns | " + " | ".join(list(SETTINGS)[1:]) + " |")
    print("|---" * (len(SETTINGS) + 1) + "|")
    for call, by_setting in measured.items():
        least = {setting: min(values) for setting, values in by_setting.items()}
        ratios = " | ".join(f"{least[setting] / least['native']:.3f}" for setting in list(SETTINGS)[1:])
        print(f"| {call} | {least['native']:.0f} | {ratios} |")


if __name__ == "__main__":
    main()
