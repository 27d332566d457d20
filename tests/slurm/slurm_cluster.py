"""A Slurm cluster of two nodes with two simulated GPUs each, of real daemons in a machine of their own (node-root)."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from support import CHECKOUT, unavailable
from support.debian_packages import UnavailableError, kept, unpack
from support.own_machine import OwnMachine, own_machine

HERE = Path(__file__).parent
# For command lines: a Python program of this folder.
PROGRAM = f"{sys.executable} {HERE}/programs/"
# By Slurm's release: Debian's, and packages of that release alone.
RELEASES = {
    "22.05": ("bookworm", ("libslurm38", "libreadline8")),
    "24.11": ("trixie", ("libslurm42t64", "libreadline8t64", "libc6")),
}
PACKAGES = (
    "libhwloc15", "libjson-c5", "liblua5.1-0", "liblz4-1", "libmunge2", "libnuma1", "libproc2-0", "libslurm-dev",
    "libyaml-0-2", "munge", "procps", "slurm-client", "slurm-wlm-basic-plugins", "slurm-wlm-basic-plugins-dev",
    "slurmctld", "slurmd",
)  # fmt: skip
_PATIENCE_S = 30.0


def slurm_packages(release: str, *more: str) -> Path:
    """The folder with the files of a release of Slurm, and of further packages. Raises UnavailableError."""
    debian, own = RELEASES[release]

    def fill(folder: Path) -> None:
        unpack(folder, [*PACKAGES, *own, *more], debian)
        for path in (*folder.rglob("*.a"), *folder.rglob("*.la")):
            path.unlink()

    return kept("-".join(("slurm", release, *more[:1])), fill)


class Cluster(OwnMachine):
    """The cluster. Commands are alice's where no user is named."""

    def __init__(self, pid: int, release: str) -> None:
        super().__init__(pid, "alice", PYTHONPATH=f"{CHECKOUT}/tests")
        self.release = release

    def on(self, node: str, command: str) -> str:
        """Run a command line as root in the view that a node's slurmd has of the files."""
        found = self.ask(f"pgrep -f -o '^slurmd -D -N {node}'", "root").strip()
        return self.ask(f"nsenter --target={found} --mount bash -c {shlex.quote(command)}", "root")

    def slices(self, node: str) -> list[str]:
        """The names of the slices on a node."""
        return self.on(node, "ls /var/lib/vgpurun/slices 2>/dev/null || true").split()

    def tenants(self, node: str) -> list[str]:
        """The folders by which limited programs on a node know of each other."""
        return self.on(node, "ls /var/tmp/vgpulock 2>/dev/null || true").split()

    def batch(self, options: str, script: str, user: str = "alice") -> str:
        """Submit a script with its output in /tmp/JOBID.out and .err, and return the job's id."""
        command = f"sbatch --parsable -o /tmp/%j.out -e /tmp/%j.err {options} <<'SCRIPT'\n#!/bin/bash\n{script}\nSCRIPT"
        return self.ask(command, user).strip()

    def output(self, job: str, kind: str = "out") -> str:
        """The output of a batch job so far; `err`: what went to stderr."""
        return self.run(f"cat /tmp/{job}.{kind}", "root").stdout

    def state(self, job: str) -> str:
        """The state of a job, such as RUNNING."""
        shown = self.run(f"scontrol -o show job {job}", "root").stdout
        match = re.search(r"JobState=(\w+)", shown)
        return match.group(1) if match else "gone"

    def until(self, is_so: Callable[[], bool], what: str, patience_s: float = _PATIENCE_S) -> None:
        """Wait until something is so."""
        give_up_at = time.monotonic() + patience_s
        while not is_so():
            assert time.monotonic() < give_up_at, f"{what}, for {patience_s} s\n{self.logs()}"
            time.sleep(0.05)

    def until_ended(self, job: str) -> str:
        """Wait until a job has ended on its nodes, and return its state."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        self.until(lambda: self.state(job) in ended, f"job {job} goes on")
        return self.state(job)

    @contextmanager
    def lenient_filter(self) -> Iterator[None]:
        """Let cli_filter.lua pass what is more than a job's shards, so that the prolog refuses it."""
        self.ask("sed -i 's/SHARDS = 4/SHARDS = 1/' /etc/slurm/cli_filter.lua", "root")
        try:
            yield
        finally:
            self.ask("sed -i 's/SHARDS = 1/SHARDS = 4/' /etc/slurm/cli_filter.lua", "root")

    def tidy(self) -> None:
        """End every job, and look that nothing is left of any."""
        self.run("scancel --quiet -u alice; scancel --quiet -u bob; scancel --quiet -u root", "root")
        self.until(lambda: self.ask("squeue -h -o %A", "root").split() == [], "jobs stay")
        self.until(lambda: self.slices("n1") + self.slices("n2") == [], "slices stay")
        self.until(lambda: self.ask("sinfo -h -t idle -o %D", "root").strip() == "2", "nodes are not idle")

    def logs(self) -> str:
        """The last lines of the daemons' logs."""
        return self.run("tail -n 20 /tmp/*.log /tmp/n?.out; sinfo; squeue; ls -l /var/lib/n?/slices", "root").stdout


@contextmanager
def slurm_cluster(release: str, lines: Sequence[str] = (), more: Sequence[str] = ()) -> Iterator[Cluster]:
    """Run a cluster of a release of Slurm, with further lines of slurm.conf and further packages."""
    if os.geteuid() != 0:
        raise UnavailableError("only root can run slurmd")
    packages = slurm_packages(release, *more)
    order = "under" if release == "22.05" else "over"  # its packages are of the machine's own Debian, or of a later one
    daemons = [HERE / "cluster-daemons", CHECKOUT, sys.executable, *lines]
    with own_machine(packages, order, [CHECKOUT], *daemons) as pid:
        yield Cluster(pid, release)


@contextmanager
def constrained_cluster(lines: Sequence[str] = (), more: Sequence[str] = ()) -> Iterator[Cluster]:
    """Run one whose jobs reach the devices of their GPUs alone, by cgroups of this machine, which are removed again."""
    if not Path("/sys/fs/cgroup/devices/cgroup.procs").exists():
        unavailable("no cgroup v1 with its controller of devices, where Slurm could make groups without systemd")
    try:
        with slurm_cluster(
            "24.11", ["ProctrackType=proctrack/cgroup", "TaskPlugin=task/cgroup", *lines], more
        ) as cluster:
            yield cluster
    finally:
        for group in sorted(Path("/sys/fs/cgroup").glob("*/slurm_n[12]/**/"), reverse=True):
            with suppress(OSError):
                group.rmdir()
