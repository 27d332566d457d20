"""The share of its unlimited work that a program does under --sm, each native run right before its limited ones.

shares.py [SECONDS]    prints a Markdown table; a row for each program, a column for each limit
"""

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from support import python_with_torch

LOOP = Path(__file__).parent / "programs" / "loop.py"
PROGRAMS = ("fp32", "bf16", "graph")
LIMITS = (20, 50, 80)


def run(python: str, program: str, seconds: float, sm: int | None) -> dict[str, float]:
    """One run, alone on the GPU; `sm` None is without the library."""
    limited = [] if sm is None else [sys.executable, "-m", "vgpurun", "local", "--sm", str(sm), "--"]
    command = [*limited, python, str(LOOP), program, str(seconds)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    measured: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return measured


def main() -> None:
    python = python_with_torch()
    if python is None:
        sys.exit("shares.py: PyTorch is not installed; GPU_PYTHON may name a Python that has it")
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    print("| program | unlimited, steps/s | " + " | ".join(f"--sm {sm}" for sm in LIMITS) + " | longest stall, ms |")
    print("|---" * (len(LIMITS) + 3) + "|")
    for program in PROGRAMS:
        native = run(python, program, seconds, None)["per_second"]
        limited = [run(python, program, seconds, sm) for sm in LIMITS]
        shares = " | ".join(f"{100 * each['per_second'] / native:.1f} %" for each in limited)
        stalls = " / ".join(f"{each['longest_stall_ms']:.0f}" for each in limited)
        print(f"| {program} | {native:.0f} | {shares} | {stalls} |", flush=True)


if __name__ == "__main__":
    main()
