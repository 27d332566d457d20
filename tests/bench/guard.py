"""Measures what `vgpurun guard` costs beside many containers: its CPU time and memory, by the kernel's count.

    python tests/bench/guard.py IMAGE [CONTAINERS] [SECONDS]

IMAGE is one that the engine has, with python3. The containers are real ones on eight simulated GPUs; each holds memory
and has a compute limit. As root. The goal for 50 containers: under 0.5 % of a core, and 40 MiB.
"""

from __future__ import annotations

import os
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


def measure(vgpurun: list[str], environment: dict[str, str], duration_s: float) -> None:
    with subprocess.Popen([*vgpurun, "guard"], env=environment) as guard:
        time.sleep(10)  # it has looked everybody up
        before_s, began_s = cpu_s(guard.pid), time.monotonic()
        time.sleep(duration_s)
        used_s, elapsed_s = cpu_s(guard.pid) - before_s, time.monotonic() - began_s
        print(f"{100 * used_s / elapsed_s:.2f} % of a core over {elapsed_s:.0f} s, {resident_mib(guard.pid):.0f} MiB")
        guard.terminate()


def main() -> None:
    image = sys.argv[1]
    containers = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    duration_s = float(sys.argv[3]) if len(sys.argv) > 3 else 60
    vgpurun = [sys.executable, "-m", "vgpurun"]
    with tempfile.TemporaryDirectory() as folder:
        sim = {"VGPURUN_DRIVER": "sim", "VGPUSIM_CONFIG": str(config(Path(folder)))}
        environment = {**os.environ, "VGPURUN_STATE_DIR": folder, **sim}
        names = [f"guard-bench-{number}" for number in range(containers)]
        try:
            for name in names:
                limits = ("--mem", "2g", "--sm", "2")
                command = ("python3", "/gpu.py", "hold", str(100 << 20))
                run = [
                    *vgpurun,
                    "run",
                    "-d",
                    "-i",
                    "--name",
                    name,
                    *limits,
                    "-v",
                    f"{PROGRAM}:/gpu.py:ro",
                    image,
                    *command,
                ]
                subprocess.run(run, env=environment, check=True, stdout=subprocess.DEVNULL)
            print(f"{containers} containers, {GPUS} GPUs")
            measure(vgpurun, environment, duration_s)
        finally:
            subprocess.run([*vgpurun, "rm", "-f", *names], env=environment, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
