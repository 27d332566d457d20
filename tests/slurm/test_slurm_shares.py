"""Jobs on one GPU have its time as they have its shards."""

from __future__ import annotations

import pytest

from slurm_cluster import PROGRAM, Cluster
from support import CHECKOUT, assert_measured


@pytest.mark.exhaustive  # beside jobs, and what they are given, which the other tests have
@pytest.mark.real_time
def test_two_jobs_have_two_shards_and_one_of_four(cluster: Cluster) -> None:
    """The second also clears its environment."""
    assert_measured(
        lambda: _shares(cluster),
        lambda shares: abs(shares[0] - 0.5) < 0.02 and abs(shares[1] - 0.25) < 0.02,
    )


@pytest.mark.exhaustive
@pytest.mark.real_time
def test_steps_at_once_have_the_share_of_their_job_together(cluster: Cluster) -> None:
    assert_measured(
        lambda: _shares_of_steps(cluster), lambda shares: abs(sum(shares) - 0.5) < 0.02 and min(shares) > 0.2
    )


def _shares_of_steps(cluster: Cluster) -> list[float]:
    cluster.ask("rm -f /tmp/go", "root")
    step = f"srun --overlap -n1 --gres=shard:2 {PROGRAM}works.py 1.5 &"
    job = cluster.batch("--gres=shard:2 -w n1 -n2", f"{step}\n{step}\nwait")
    cluster.until(lambda: cluster.output(job).count("ready") == 2, "the steps do not begin")
    cluster.ask("touch /tmp/go", "root")
    assert cluster.until_ended(job) == "COMPLETED", cluster.output(job, "err")
    return [float(line) for line in cluster.output(job).split() if line != "ready"]


def _shares(cluster: Cluster) -> list[float]:
    cluster.ask("rm -f /tmp/go", "root")
    jobs = [
        cluster.batch("--gres=shard:2 -w n1", f"exec {PROGRAM}works.py 1.5"),
        cluster.batch("--gres=shard:1 -w n1", f"exec env -i PYTHONPATH={CHECKOUT}/tests {PROGRAM}works.py 1.5"),
    ]
    cluster.until(lambda: all("ready" in cluster.output(job) for job in jobs), "the jobs do not begin")
    cluster.ask("touch /tmp/go", "root")
    for job in jobs:
        assert cluster.until_ended(job) == "COMPLETED", cluster.output(job, "err")
    return [float(cluster.output(job).split()[1]) for job in jobs]
