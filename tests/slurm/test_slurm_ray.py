"""Ray in a Slurm job gives its tasks parts of the job's share."""

from __future__ import annotations

import json
import os
import shlex
import sys

import pytest
from ray_node import HOOK, NEWEST, PAGE, PLUGINS, PROGRAMS, ray_packages

from slurm_cluster import Cluster
from support import CHECKOUT, LIBRARY

FOLDER = "/tmp/ray-in-a-job"


@pytest.mark.real_time
@pytest.mark.exhaustive
def test_two_tasks_of_half_a_gpu_have_a_quarter_each_in_half_a_gpu(cluster: Cluster) -> None:
    environment = {
        "PYTHONPATH": os.pathsep.join([str(ray_packages(NEWEST)), str(CHECKOUT), str(CHECKOUT / "tests")]),
        "HOME": FOLDER,
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": FOLDER,
        PLUGINS: PAGE[PLUGINS],
        HOOK: PAGE[HOOK],
        "VGPURUN_DRIVER": "sim",
        "VGPURUN_LIBRARY": str(LIBRARY),
        "VGPURUN_STATE_DIR": f"{FOLDER}/state",
        "VGPUSIM_CONFIG": "/etc/slurm/sim.yaml",
        "VGPUSIM_STATE": "/var/lib/vgpurun/sim.state",
    }
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    driver = f"env {settings} {sys.executable} {PROGRAMS}/shares.py 1 0.5 0.25 0.5 0.25"
    done = cluster.run(f"mkdir -p {FOLDER}; srun -n1 -c8 -w n1 --gres=shard:2 {driver}", timeout_s=110)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    trials = json.loads(cluster.ask(f"cat {FOLDER}/found"))["trials"]
    assert [memory_mib for _, memory_mib in trials[-1]] == [2048, 2048], trials
    assert all(abs(share - 0.25) < 0.02 for share, _ in trials[-1]), trials
