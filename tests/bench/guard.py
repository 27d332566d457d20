"""Measures what `vgpurun guard` costs: its CPU time and memory, by the kernel's count. As root.

    python tests/bench/guard.py idle IMAGE [CONTAINERS] [SECONDS]
    python tests/bench/guard.py held [PROGRAMS] [SECONDS]

idle: beside real containers of IMAGE, which the engine has and which has python3, on eight simulated GPUs; each holds
memory and has a compute limit. The goal for 50: under 0.5 % of a core, and 40 MiB.
held: with --compute unheld, while programs of `vgpurun local` that work past the library are held on as many simulated
GPUs; what the guard takes, and its keeper. The goal for 8: under 6 % of a core in all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GPUS = 8
PROGRAM = Path(__file__).resolve().parents[1] / "engine" / "programs" / "gpu.py"


def config(folder: Path) -> Path:
    """Write what the simulated driver reads: eight GPUs of nobody else's."""
    uuids = (f"GPU-{os.urandom(4).hex()}-0000-0000-0000-000000000000" for _ in range(GPUS))
    path = folder / "sim.yaml"
    path.write_text("devices:\n" + "".join(f"  - uuid: {uuid}\n    memory_mib: 81920\n" for uuid in uuids))
    return path


def cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def measure(vgpurun: list[str], environment: dict[str, str], duration_s: float, *options: str) -> None:
    with subprocess.Popen([*vgpurun, "guard", *options], env=environment) as guard:
        time.sleep(15)  # by then the guard has looked everybody up, and holds whom it has to
        pids = [guard.pid, *children_of(guard.pid)]
        before_s, began_s = [cpu_s(pid) for pid in pids], time.monotonic()
        time.sleep(duration_s)
        elapsed_s = time.monotonic() - began_s
        used = [100 * (cpu_s(pid) - used_s) / elapsed_s for pid, used_s in zip(pids, before_s, strict=True)]
        shown = " + ".join(f"{percent:.2f}" for percent in used)
        print(f"{shown} % of a core over {elapsed_s:.0f} s, {resident_mib(guard.pid):.0f} MiB")
        guard.terminate()


def idle(vgpurun: list[str], environment: dict[str, str], image: str, count: int = 50, duration_s: float = 60) -> None:
    names = [f"guard-bench-{number}" for number in range(count)]
    try:
        for name in names:
            words = ["-d", "-i", "--name", name, "--mem", "2g", "--sm", "2", "-v", f"{PROGRAM}:/gpu.py:ro", image]
            command = [*vgpurun, "run", *words, "python3", "/gpu.py", "hold", str(100 << 20)]
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        print(f"{count} containers, {GPUS} GPUs")
        measure(vgpurun, environment, duration_s)
    finally:
        subprocess.run([*vgpurun, "rm", "-f", *names], env=environment, stdout=subprocess.DEVNULL)


def held(vgpurun: list[str], environment: dict[str, str], count: int = GPUS, duration_s: float = 60) -> None:
    spin = ["env", "-u", "LD_PRELOAD", sys.executable, str(PROGRAM.with_name("escape.py")), "copy", "spin"]
    launches = [
        subprocess.Popen(
            [*vgpurun, "local", "--gpus", f"device={number % GPUS}", "--sm", "20", "--overcommit", "--", *spin,
             "spin_1s", "100000"], env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
        for number in range(count)
    ]  # fmt: skip
    try:
        print(f"{count} programs, {GPUS} GPUs")
        measure(vgpurun, environment, duration_s, "--compute", "unheld")
    finally:
        for each in launches:
            os.killpg(each.pid, signal.SIGKILL)
            each.wait()


def main() -> None:
    kind, *words = sys.argv[1:]
    numbers = [float(each) if "." in each else int(each) for each in words[kind == "idle" :]]
    vgpurun = [sys.executable, "-m", "vgpurun"]
    with tempfile.TemporaryDirectory() as folder:
        sim = {"VGPURUN_DRIVER": "sim", "VGPUSIM_CONFIG": str(config(Path(folder)))}
        environment = {**os.environ, "VGPURUN_STATE_DIR": folder, **sim}
        if kind == "idle":
            idle(vgpurun, environment, words[0], *numbers)
        else:
            held(vgpurun, environment, *numbers)


if __name__ == "__main__":
    main()
