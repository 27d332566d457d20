"""MIG instances in gres.conf: each is a GPU for Slurm, and a job has the instance that Slurm gave it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_cluster import PROGRAM, Cluster, slurm_cluster

OOM = "CUDA_ERROR_OUT_OF_MEMORY"
LARGE, SMALL = (f"MIG-51000000-0000-0000-0000-00000000000{number}" for number in (1, 2))
CARD = "GPU-52000000-0000-0000-0000-000000000000"
# The nodes get other GPUs, which both daemons have to be started anew for.
OTHER_GPUS = f"""
cat >/etc/slurm/sim.yaml <<CONF
devices:
  - uuid: {LARGE}
    mig_gpu: 1
    memory_mib: 4096
  - uuid: {SMALL}
    mig_gpu: 1
    memory_mib: 2048
  - uuid: {CARD}
    memory_mib: 8192
state_file: /var/lib/vgpurun/sim.state
CONF
mkdir /dev/nvidia-caps
for number in 21 22 30 31; do mknod -m 666 /dev/nvidia-caps/nvidia-cap$number c 236 $number; done
cat >/etc/slurm/gres.conf <<CONF
AutoDetect=off
Name=gpu Type=3g.20gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21,/dev/nvidia-caps/nvidia-cap22
Name=gpu Type=1g.5gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap30,/dev/nvidia-caps/nvidia-cap31
Name=gpu Type=a100 File=/dev/nvidia1
Name=shard Count=4 File=/dev/nvidia1
CONF
sed -i 's/Gres=gpu:2,shard:8/Gres=gpu:3g.20gb:1,gpu:1g.5gb:1,gpu:a100:1,shard:4/' /etc/slurm/slurm.conf
pkill -9 slurmctld
pkill -9 slurmd
until ! pgrep -x 'slurmd|slurmctld'; do sleep 0.05; done
rm -r /var/spool/slurmctld/*
slurmctld -D >/tmp/slurmctld.out 2>&1 </dev/null &
start-node n1
start-node n2
until [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ]; do sleep 0.1; done
"""


@pytest.fixture
def divided(built_library: Path) -> Iterator[Cluster]:
    """A cluster of nodes with a card of two instances, and another one with shards."""
    with slurm_cluster("24.11") as cluster:
        cluster.ask(OTHER_GPUS, "root")
        yield cluster


@pytest.mark.slow
def test_a_job_has_the_instance_that_slurm_gave_it(divided: Cluster) -> None:
    """CUDA has one instance at a time, by its UUID, which Slurm puts into the environment with AutoDetect=nvml."""
    tries = "; ".join(f"CUDA_VISIBLE_DEVICES={each} {PROGRAM}allocates.py 300 700 || true" for each in (SMALL, LARGE))
    done = divided.run(f"srun -w n1 --gres=gpu:1g.5gb:1 --vgpu-mem=50% bash -c '{tries}'")
    assert done.stdout == f"1024 ok {OOM}\n" and f"GPU {LARGE} was not granted" in done.stderr, done.stderr

    asked = {
        "--gres=gpu:3g.20gb:1 --vgpu-mem=1g": (LARGE, 1 << 30, None),
        "--gres=gpu:1g.5gb:1 --vgpu-sm=40": (SMALL, None, 40),
        "--gres=shard:3": (CARD, 6 << 30, 75),
    }
    jobs = [divided.batch(f"-w n1 {options}", "sleep 60") for options in asked]
    divided.until(lambda: len(divided.slices("n1")) == len(jobs), "not all have a slice")
    found = json.loads(divided.on("n1", "vgpurun slice inspect " + " ".join(f"slurm-{job}" for job in jobs)))
    devices = [device for each in found for device in each["devices"]]
    granted = [tuple(each[key] for key in ("uuid", "memory_limit_bytes", "sm_limit_percent")) for each in devices]
    assert granted == list(asked.values())
    checked = json.loads(divided.ask("vgpurun slurm check --node n1 --format json"))
    assert "fail" not in [each["status"] for each in checked], checked
    divided.tidy()
