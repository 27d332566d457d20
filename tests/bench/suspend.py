"""How long a suspend and a resume take, and what of the GPU NVML shows meanwhile, by the memory that a program holds.

    python tests/bench/suspend.py [--gib 1,10,40] [--times 5] [--python PYTHON] [--gpu 0]

Needs a GPU, nobody else on it, root, and a Python with PyTorch. A row is one size: the longest and the median of each
in seconds, and the most memory that was shown in between. The goal: 40 GiB out and back within 4 s each, at most 50
MiB.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from vgpurun.host import gpus

HOLD = """
import sys, torch
held = [torch.full((1 << 28,), index, dtype=torch.uint8, device="cuda") for index in range(int(sys.argv[1]) * 4)]
torch.cuda.synchronize(); print("ready", flush=True)
for line in sys.stdin:
    print(all(bool((each == index % 256).all()) for index, each in enumerate(held)), flush=True)
"""


def timed(*words: str) -> float:
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-m", "vgpurun", *words], check=True, capture_output=True)
    return time.monotonic() - began_s


def measure(python: str, gib: int, times: int, gpu: int) -> str:
    measured = gpus.list_gpus()[gpu : gpu + 1]
    (idle,) = gpus.read_use(measured)
    command = [sys.executable, "-m", "vgpurun", "local", "--mem", f"{gib + 2}g", "--gpus", f"device={gpu}", "--"]
    out_s, back_s, shown = [], [], 0
    command += [python, "-c", HOLD, str(gib)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None and program.stdout is not None
        program.stdout.readline()
        for _ in range(times):
            out_s.append(timed("suspend", "--hold", "--process", str(program.pid)))
            (use,) = gpus.read_use(measured)
            shown = max(shown, use.memory_used_bytes - idle.memory_used_bytes)
            back_s.append(timed("resume", "--process", str(program.pid)))
            program.stdin.write("\n")
            program.stdin.flush()
            if program.stdout.readline() != "True\n":
                raise SystemExit("the program's memory has changed")
        program.stdin.close()
    figures = [max(out_s), statistics.median(out_s), max(back_s), statistics.median(back_s)]
    return f"{gib} GiB\t" + "\t".join(f"{each:.2f}" for each in figures) + f"\t{shown / 2**20:.0f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", default="1,10,40")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--gpu", type=int, default=0, help="its index in nvidia-smi")
    options = parser.parse_args()
    print("held\tout, longest\tmedian\tback, longest\tmedian\tshown meanwhile")
    for gib in map(int, options.gib.split(",")):
        print(measure(options.python, gib, options.times, options.gpu), flush=True)


if __name__ == "__main__":
    main()
