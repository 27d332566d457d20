"""Shows what every page says of a limited GPU that this process and a child of it use. Prints JSON.

With an argument, a number of seconds, the GPU is kept busy so long before it is asked how busy it is.
"""

import json
import os
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import driver_nvml
import pynvml
import torch

MIB = 1 << 20
HOLD = [sys.executable, Path(__file__).with_name("torch_held.py"), "64"]


def smi(*options: str) -> str:
    """Return what nvidia-smi prints of the first GPU."""
    return subprocess.run(["nvidia-smi", "-i", "0", *options], capture_output=True, text=True, check=True).stdout


def query(kind: str, fields: str) -> list[list[str]]:
    lines = smi(f"--query-{kind}={fields}", "--format=csv,noheader,nounits").splitlines()
    return [line.split(", ") for line in lines]


def xml_page() -> dict[str, object]:
    gpu = ElementTree.fromstring(smi("-q", "-x")).find("gpu")
    sizes = {name: gpu.findtext(f"fb_memory_usage/{name}") for name in ("total", "used", "free")}
    processes = {each.findtext("pid"): each.findtext("used_memory") for each in gpu.iter("process_info")}
    return {**sizes, "processes": processes, "utilization": gpu.findtext("utilization/gpu_util")}


def gpustat_page() -> dict[str, object] | None:
    try:
        import gpustat
    except ImportError:
        return None
    gpu = gpustat.new_query()[0]
    processes = {str(each["pid"]): each["gpu_memory_usage"] for each in gpu.processes}
    return {"total": gpu.memory_total, "used": gpu.memory_used, "processes": processes}


def nvitop_page() -> dict[str, object] | None:
    try:
        import nvitop
    except ImportError:
        return None
    gpu = nvitop.Device(0)
    processes = {str(pid): each.gpu_memory() / MIB for pid, each in gpu.processes().items()}
    sizes = {"total": gpu.memory_total() / MIB, "used": gpu.memory_used() / MIB, "free": gpu.memory_free() / MIB}
    return {**sizes, "processes": processes}


def busy_percent() -> int:
    return int(query("gpu", "utilization.gpu")[0][0])


def keep_busy(seconds: float) -> threading.Thread:
    def work() -> None:
        square = torch.randn(4096, 4096, device="cuda")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(20):
                square = torch.nn.functional.normalize(square @ square)
            torch.cuda.synchronize()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def main() -> None:
    busy_s = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    held = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    child = subprocess.Popen(HOLD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    time.sleep(1.2)
    utilization = {"idle": busy_percent()}
    worker = keep_busy(busy_s) if busy_s else None
    time.sleep(busy_s * 0.7)
    utilization["busy"] = busy_percent()
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    if worker:
        worker.join()
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    found = {
        "pids": [os.getpid(), child.pid],
        "cuda": [total_bytes / MIB, free_bytes / MIB],
        "nvml": [memory.total / MIB, memory.used / MIB, memory.free / MIB],
        "gpu_query": query("gpu", "memory.total,memory.used,memory.free")[0],
        "application_query": query("compute-apps", "pid,used_memory"),
        "table": smi(),
        "xml": xml_page(),
        "gpustat": gpustat_page(),
        "nvitop": nvitop_page(),
        "utilization": utilization,
        "driver": {str(pid): size / MIB for pid, size in driver_nvml.process_bytes().items()},
        "held_mib": held.numel() / MIB,
    }
    child.communicate("\n")
    print(json.dumps(found))


main()
