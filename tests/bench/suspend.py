"""How long a suspend and a resume take, call by call of the driver, and what of the GPU NVML shows meanwhile.

    python tests/bench/suspend.py [--gib 1,10,40] [--times 3] [--huge-pages always,never] [--gpu 0] [--driver sim]

Needs a GPU, nobody else on it, and root. A row is one suspend and its resume; a process that holds so much memory is
taken off as many times. The first time of a process may differ from the others, since the driver touches the host's
memory then: the row has what the program's process has touched (its page faults) and the time that the kernel took for
it, and the heading whether transparent huge pages are on (`--huge-pages` sets that, and sets it back). The goal: 40 GiB
out and back within 4 s each, at most 50 MiB shown. `--driver sim` tries this out, and measures nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vgpurun.host import gpus
from vgpurun.host.checkpoints import Checkpoints
from vgpurun.host.visible import libcuda, visible_gpus
from vgpurun.suspend.processes import find
from vgpurun.suspend.resuming import bring_back
from vgpurun.suspend.targets import process_numbered
from vgpurun.suspend.transition import Wishes, suspend

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
CALLS = ("lock", "checkpoint", "restore", "unlock")
KEPT = Path(__file__).parent / "programs" / "kept.py"


class Timed(Checkpoints):
    """Notes how long each call of the driver took, from here and back."""

    def __init__(self, library: str) -> None:
        super().__init__(library)
        self.took_s = dict.fromkeys(CALLS, 0.0)

    def _do(self, verb: str, pid: int, patience_s: float, *arguments: str) -> None:
        began_s = time.monotonic()
        super()._do(verb, pid, patience_s, *arguments)
        self.took_s[verb] += time.monotonic() - began_s


def touched(pid: int) -> tuple[int, float]:
    """Return the page faults of a process, and the seconds that the kernel has worked for it."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[7]), int(words[12]) / os.sysconf("SC_CLK_TCK")


def measure(gib: int, times: int, gpu: gpus.Gpu, driver: str) -> Iterator[str]:
    library, found = libcuda(driver == "sim"), visible_gpus(driver == "sim")
    (idle,) = gpus.read_use([gpu])
    command = [sys.executable, "-m", "vgpurun", "local", "--driver", driver, "--mem", f"{gib + 2}g"]
    command += ["--gpus", f"device={gpu.number}", "--", sys.executable, str(KEPT), str(gib)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        if program.stdout.readline() != "ready\n":
            raise SystemExit(f"{gib} GiB cannot be held")
        target = process_numbered(str(program.pid))
        (process,) = find(target.limits_folder, found)
        for number in range(1, times + 1):
            calls = Timed(library)
            with calls:
                faults, kernel_s = touched(process.pid)
                began_s = time.monotonic()
                suspend(target, found, calls, Wishes(is_held=True))
                out_s = time.monotonic() - began_s
                (use,) = gpus.read_use([gpu])
                faults_out, kernel_out_s = touched(process.pid)
                began_s = time.monotonic()
                bring_back(target, found, calls, None)
                back_s = time.monotonic() - began_s
            program.stdin.write("\n")
            program.stdin.flush()
            if program.stdout.readline() != "True\n":
                raise SystemExit("the program's memory has changed")
            figures = [out_s, calls.took_s["lock"], calls.took_s["checkpoint"], kernel_out_s - kernel_s]
            figures += [back_s, calls.took_s["restore"], calls.took_s["unlock"]]
            shown = f"{(use.memory_used_bytes - idle.memory_used_bytes) / 2**20:.0f} MiB"
            yield "\t".join(
                [f"{gib} GiB", str(number), *(f"{each:.3f}" for each in figures), str(faults_out - faults), shown]
            )
        program.stdin.close()


@contextmanager
def huge_pages(wanted: str) -> Iterator[str]:
    """Have the kernel use transparent huge pages as wanted, or as it does; yield how that is."""
    before = HUGE_PAGES.read_text().partition("[")[2].partition("]")[0] if HUGE_PAGES.exists() else "none"
    if not wanted:
        yield before
        return
    HUGE_PAGES.write_text(wanted)
    try:
        yield wanted
    finally:
        HUGE_PAGES.write_text(before)


def simulate(folder: Path, gib: int) -> None:
    """Have everything here use a simulated GPU of this size, which keeps what is written to it."""
    uuid = f"GPU-{os.urandom(4).hex()}-0000-0000-0000-000000000000"
    (folder / "sim.yaml").write_text(f"kept_data_mib: 256\ndevices:\n- uuid: {uuid}\n  memory_mib: {(gib + 4) << 10}\n")
    os.environ |= {"VGPUSIM_CONFIG": str(folder / "sim.yaml"), "VGPUSIM_STATE": str(folder / "sim.state")}
    os.environ |= {"VGPURUN_STATE_DIR": str(folder / "state")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", default="1,10,40")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--huge-pages", default="", help="always, never or madvise, with commas; as they are")
    parser.add_argument("--gpu", type=int, default=0, help="its index in nvidia-smi")
    parser.add_argument("--driver", choices=["host", "sim"], default="host")
    options = parser.parse_args()
    paths = (str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", ""))  # cuda_driver; packages
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    sizes = [int(each) for each in options.gib.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        if options.driver == "sim":
            simulate(Path(folder), max(sizes))
        gpu = visible_gpus(options.driver == "sim")[options.gpu]
        for wanted in options.huge_pages.split(","):
            with huge_pages(wanted) as setting:
                print(f"{gpu.name}, transparent huge pages: {setting}; seconds")
                print("held\ttime\tout\tlock\tcheckpoint\tin kernel\tback\trestore\tunlock\tfaults\tshown")
                for gib in sizes:
                    for row in measure(gib, options.times, gpu, options.driver):
                        print(row, flush=True)


if __name__ == "__main__":
    main()
