"""Measures what `vgpurun exporter` costs beside many containers: its CPU time, by the metric that it has of itself.

    python tests/bench/exporter.py IMAGE [CONTAINERS] [SECONDS]

IMAGE is one that the engine has, with a `sleep`. The containers are real ones on the simulated GPU; what they use is
written into their usage files by this program, which holds the locks of three processes in each. A scrape every
15 s and a sample for the history every 10 s, both as by default, go on for SECONDS.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.scraping import Exporter, exporter, label_values, value
from vgpurun import abi

SCRAPE_S = 15
PROCESSES = 3


def fill(usage: Path) -> list[int]:
    """Write what three processes of a training would."""
    written = abi.Usage(magic=abi.USAGE_MAGIC, abi_version=abi.ABI_VERSION, slots_used=PROCESSES)
    now_s = time.monotonic_ns() // 10**9
    written.devices[0].busy_ns, written.devices[0].launches = 10**12, 10**6
    written.devices[0].last_launch_ns = time.monotonic_ns()
    for second in range(now_s - 60, now_s):
        written.devices[0].seconds[second % abi.SECONDS] = second << 32 | 200_000
    for slot in range(PROCESSES):
        written.processes[slot].devices[0].allocated_bytes = 100 << 20
        written.processes[slot].devices[0].counted_bytes = 100 << 20
        written.processes[slot].devices[0].overhead_bytes = 500 << 20
    usage.write_bytes(bytes(written))
    locks = [os.open(usage, os.O_RDWR) for _ in range(PROCESSES)]
    for slot, file in enumerate(locks):
        lock = struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, abi.SLOT_LOCK_OFFSET + slot, 1, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
    return locks


def cpu_s(running: Exporter) -> float:
    return value(running.scrape(), "process_cpu_seconds_total") or 0.0


def measure(environment: dict[str, str], containers: int, duration_s: int) -> None:
    with exporter(environment) as running:
        assert len(label_values(running.scrape(), "container")) == containers
        time.sleep(2)
        before_s, began_s = cpu_s(running), time.monotonic()
        scrapes = 0
        while time.monotonic() - began_s < duration_s:
            time.sleep(SCRAPE_S)
            after_s = cpu_s(running)
            scrapes += 1
        elapsed_s = time.monotonic() - began_s
        looks_ms = 1000 * (value(running.scrape(), "vgpurun_exporter_look_duration_seconds") or 0)
        resident_mib = (value(running.scrape(), "process_resident_memory_bytes") or 0) / 2**20
        answer_kib = len(running.get()) / 1024
    share = (after_s - before_s) / elapsed_s
    print(f"{containers} containers, {scrapes} scrapes in {elapsed_s:.0f} s: {after_s - before_s:.2f} s of CPU time,")
    print(f"{100 * share:.2f} % of a core. A look takes {looks_ms:.0f} ms, an answer {answer_kib:.0f} KiB,")
    print(f"the exporter {resident_mib:.0f} MiB of memory.")


def main() -> None:
    image = sys.argv[1]
    containers = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    duration_s = int(sys.argv[3]) if len(sys.argv) > 3 else 60
    vgpurun = [sys.executable, "-m", "vgpurun"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "VGPURUN_STATE_DIR": folder, "VGPURUN_DRIVER": "sim"}
        names = [f"exporter-bench-{number}" for number in range(containers)]
        try:
            for name in names:
                limits = ("--mem", "128m", "--sm", "1")
                command = [*vgpurun, "run", "-d", "--name", name, *limits, image, "sleep", "3600"]
                subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
            locks = [each for state in Path(folder).glob("containers/*") for each in fill(state / "run" / "usage")]
            measure(environment, containers, duration_s)
            for lock in locks:
                os.close(lock)
        finally:
            subprocess.run([*vgpurun, "rm", "-f", *names], env=environment, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
