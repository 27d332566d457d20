"""Jobs come and go by the hundred, and nothing is left of them: no slice, folder, mount, process or reservation.

SLURM_JOBS=1000 runs a thousand, which takes 13 minutes on a busy machine of two cores.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import pytest

from slurm_cluster import PROGRAM, Cluster

NODES = ("n1", "n2")
JOBS = int(os.environ.get("SLURM_JOBS", "100"))
OPTIONS = (
    "--gres=shard:1",
    "--gres=shard:2 --vgpu-mem=1g",
    "--gres=shard:1 --vgpu-sm=10",
    "--gres=gpu:1 --vgpu-mem=50%",
)
EACH = JOBS // len(OPTIONS)
# Every tenth uses its GPU.
SCRIPT = f"""echo began
[ $((SLURM_ARRAY_TASK_ID % 10)) != 0 ] || {PROGRAM}allocates.py 100 || exit 1
echo ended"""


class Left(NamedTuple):
    """Reservations, files and mounts on a node."""

    reserved: list[str]
    files: list[str]
    mounts: list[str]


def left_on(cluster: Cluster, node: str) -> Left:
    asked = (
        "vgpurun free --format json",
        "find /var/lib/vgpurun /var/tmp /run/vgpurun /dev/shm | sort",
        "cut -d' ' -f2,3 /proc/self/mounts | sort",
    )
    return Left(*(cluster.on(node, command).splitlines() for command in asked))


@pytest.mark.exhaustive
@pytest.mark.timeout(120 + 2 * JOBS)
def test_many_jobs_leave_nothing(clusters: Any) -> None:
    cluster = clusters["22.05"]
    job = cluster.batch("--gres=shard:1 --array=1-2 --nodelist=n1,n2 -N2", "true")  # makes what stays on each node
    cluster.until(lambda: cluster.ask("squeue -h -o %A", "root").split() == [], f"job {job} stays")
    cluster.tidy()
    before = [left_on(cluster, node) for node in NODES]
    arrays = [cluster.batch(f"{options} --array=1-{EACH} -o /tmp/many-%A-%a", SCRIPT) for options in OPTIONS]
    cluster.until(lambda: cluster.ask("squeue -h -o %A", "root").split() == [], "jobs stay", 60 + 2 * JOBS)
    for array in arrays:
        assert int(cluster.ask(f"cat /tmp/many-{array}-* | grep -c ended", "root")) == EACH
    cluster.tidy()
    assert cluster.run("pgrep -fa 'slurmstepd[:]|vgpurun[ ]slurm|allocates[.]py'", "root").stdout == ""
    for node, then in zip(NODES, before, strict=True):
        now = left_on(cluster, node)
        assert (now.reserved, now.mounts) == (then.reserved, then.mounts), node
        assert set(now.files) <= set(then.files), "a sweep may have taken what was there before"
    assert "drain" not in cluster.ask("sinfo", "root")
