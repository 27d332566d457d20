"""The limits at work, in half a minute: `make demo`, or `python examples/demo.py [IMAGE]`.

On a machine with a GPU the numbers are that GPU's; without one they come from the simulated GPU. With a Docker Engine
the program runs in a container, of IMAGE (it must have python3) or else of this machine's own /usr: nothing is pulled.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import docker
from rich.console import Console

import host_image
from vgpurun.errors import GpuError
from vgpurun.host.gpus import list_gpus

MEMORY = "2g"
SM = "50"
SECONDS = "2"
MIB = 1 << 20
OUT_OF_MEMORY = 2
PROGRAM = Path(__file__).resolve().with_name("demo_program.py")

console = Console(highlight=False)


def find_gpu() -> str | None:
    """The name of this machine's first GPU."""
    try:
        return list_gpus()[0].name
    except GpuError:
        return None


def find_engine() -> docker.DockerClient | None:
    """A Docker Engine on this machine that this user may talk to."""
    if not os.environ.get("DOCKER_HOST", "unix://").startswith("unix://"):
        return None
    try:
        client = docker.from_env(timeout=10)
        client.ping()
    except (docker.errors.DockerException, OSError):
        return None
    return client


def plan(engine: docker.DockerClient | None) -> tuple[list[str], list[str]]:
    """The arguments of vgpurun before and after the limits: how the program is run, and which one."""
    if engine is None:
        return ["local"], ["--", sys.executable, str(PROGRAM)]
    before = ["run", "--rm", "-v", f"{PROGRAM}:/{PROGRAM.name}:ro"]
    if len(sys.argv) > 1:
        return before, [sys.argv[1], "python3", f"/{PROGRAM.name}"]
    image = host_image.make(engine)
    return [*before, *host_image.options()], [image, host_image.python(), f"/{PROGRAM.name}"]


def run(before: list[str], limits: list[str], after: list[str], *arguments: str) -> dict:
    """Run the demo's program through vgpurun and return what it found."""
    image = [] if before[0] == "local" else [after[0]]
    program = after[-1] if image else os.path.relpath(PROGRAM)
    shown = ["vgpurun", before[0], *limits, *(image or ["--"]), "python3", program, *arguments]
    console.print(f"[bold]$ {shlex.join(shown)}[/]", soft_wrap=True)
    command = [sys.executable, "-m", "vgpurun", *before, *limits, *after, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


def report(free: dict, limited: dict) -> None:
    """Print what the limited program found."""
    mib = {name: value // MIB for name, value in limited.items() if name.endswith("_bytes")}
    share = limited["kernels_per_second"] / free["kernels_per_second"]
    refusal = "out of memory" if limited["refused_with"] == OUT_OF_MEMORY else f"error {limited['refused_with']}"
    rows = {
        "the GPU it sees": f"{mib['total_bytes']} MiB in CUDA, {mib['nvml_total_bytes']} MiB in nvidia-smi",
        "it gets": f"{mib['granted_bytes']} MiB besides {mib['context_bytes']} MiB of its CUDA context, then {refusal}",
        "after freeing": "allocations work again" if limited["granted_again"] else "allocations still fail",
        "kernels of 1 ms": f"{limited['kernels_per_second']:.0f} per second: {share:.1%} of the above",
    }
    for what, found in rows.items():
        console.print(f"  {what:<17}{found}", soft_wrap=True)


def main() -> None:
    gpu, engine = find_gpu(), find_engine()
    on = f"This machine's GPU ({gpu})" if gpu else "A simulated GPU (no NVIDIA GPU here)"
    where = "in containers" if engine else "with `vgpurun local` (no Docker Engine answers)"
    console.print(f"{on}, {where}.\n", soft_wrap=True)
    before, after = plan(engine)
    driver = [] if gpu else ["--driver", "sim"]
    try:
        free = run(before, driver, after, "work", SECONDS)
        console.print(f"  {'kernels of 1 ms':<17}{free['kernels_per_second']:.0f} per second\n")
        limited = run(before, [*driver, "--mem", MEMORY, "--sm", SM], after, "all", SECONDS)
        report(free, limited)
    finally:
        if engine and len(sys.argv) == 1:
            host_image.remove(engine)


main()
