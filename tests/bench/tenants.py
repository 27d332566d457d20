"""Several limited programs on one GPU at the same time: what each gets of what one does alone, and all together.

tenants.py [SECONDS]    prints a Markdown table; a row for each set of limits
"""

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from support import python_with_torch

LOOP = Path(__file__).parent / "programs" / "loop.py"
PROGRAMS = ("fp32", "graph")
LIMITS = ((50, 50), (30, 70), (20, 40), (25, 25, 25, 25))


def start(python: str, program: str, seconds: float, sm: int | None) -> subprocess.Popen[str]:
    limited = [] if sm is None else [sys.executable, "-m", "vgpurun", "local", "--sm", str(sm), "--"]
    command = [*limited, python, str(LOOP), program, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, float]:
    output, _ = process.communicate()
    measured: dict[str, float] = json.loads(output.splitlines()[-1])
    return measured


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    python = python_with_torch()
    if python is None:
        sys.exit("tenants.py: PyTorch is not installed; GPU_PYTHON may name a Python that has it")
    print("| program | limits | share of each | sum | longest stall of each, ms |\n|---|---|---|---|---|")
    for program in PROGRAMS:
        alone = finish(start(python, program, seconds, None))["per_second"]
        for limits in LIMITS:
            measured = [finish(each) for each in [start(python, program, seconds, sm) for sm in limits]]
            shares = [100 * each["per_second"] / alone for each in measured]
            cells = [
                program,
                " / ".join(map(str, limits)),
                " / ".join(f"{share:.1f}" for share in shares),
                f"{sum(shares):.1f}",
                " / ".join(f"{each['longest_stall_ms']:.0f}" for each in measured),
            ]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
