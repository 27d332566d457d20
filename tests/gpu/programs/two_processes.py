"""Two processes under one limit: a parent that holds memory, and a child that takes what is left. Prints JSON.

Each has a context of its own. The figures are the driver's, of both processes together.
"""

import json
import multiprocessing
import os

import driver_nvml
import torch

MIB = 1 << 20
HELD_BY_PARENT_MIB = 512


def take_all(answers: "multiprocessing.Queue[int]", done: "multiprocessing.synchronize.Event") -> None:
    """Allocate 32 MiB at a time until it is refused; tell how much, and hold it until the parent is done."""
    held = []
    while True:
        try:
            held.append(torch.empty(32 * MIB, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            break
    answers.put(32 * len(held))
    done.wait(60)


def main() -> None:
    processes = multiprocessing.get_context("spawn")
    held = torch.empty(HELD_BY_PARENT_MIB * MIB, dtype=torch.uint8, device="cuda")
    answers, done = processes.Queue(), processes.Event()
    child = processes.Process(target=take_all, args=(answers, done))
    child.start()
    granted_mib = answers.get(timeout=60)
    driver_holds = driver_nvml.process_bytes()
    running = [driver_holds[pid] for pid in (os.getpid(), child.pid)]
    driver_mib = sum(running) / MIB
    free_bytes, _ = torch.cuda.mem_get_info()
    done.set()
    child.join()
    print(
        json.dumps(
            {
                "child_granted_mib": granted_mib,
                "driver_holds_mib": driver_mib,
                "processes": len(running),
                "free_mib": free_bytes / MIB,
                "free_after_child_mib": torch.cuda.mem_get_info()[0] / MIB,
                "held_mib": held.numel() / MIB,
            }
        )
    )


if __name__ == "__main__":
    main()
