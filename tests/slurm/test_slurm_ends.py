"""However a job ends, nothing of it stays: no slice, no process; and no node is drained."""

from __future__ import annotations

import re

import pytest

from slurm_cluster import PROGRAM, Cluster


def job_that_holds(cluster: Cluster, options: str = "") -> str:
    job = cluster.batch(f"--gres=shard:1 -w n1 {options}", f"{PROGRAM}holds.py &\nwait")
    cluster.until(lambda: "ready" in cluster.output(job), "the job does not begin")
    return job


def until_nothing_is_left(cluster: Cluster, patience_s: float = 30.0) -> None:
    cluster.until(lambda: cluster.slices("n1") == [], "the slice stays", patience_s)
    cluster.until(lambda: cluster.tenants("n1") == [], "the slice's folder among the tenants stays")
    assert cluster.run("pgrep -f programs/holds.py$", "root").stdout == ""
    assert "drain" not in cluster.ask("sinfo", "root")


def test_scancel(cluster: Cluster) -> None:
    cluster.ask(f"scancel {job_that_holds(cluster)}", "root")
    until_nothing_is_left(cluster)


@pytest.mark.exhaustive  # Slurm looks at it twice a minute
def test_the_time_limit(cluster: Cluster) -> None:
    job = job_that_holds(cluster)
    cluster.ask(f"scontrol update JobId={job} EndTime=now+1", "root")
    until_nothing_is_left(cluster, 90)


def test_a_task_whose_slurmstepd_was_killed(cluster: Cluster) -> None:
    """Slurm itself loses sight of it, and scancel would not end it."""
    job = job_that_holds(cluster)
    cluster.ask(f"pkill -9 -f 'slurmstepd: .{job}'", "root")
    cluster.ask(f"scancel {job}", "root")
    until_nothing_is_left(cluster)


def test_a_killed_slurmd(cluster: Cluster) -> None:
    job = job_that_holds(cluster)
    cluster.ask("pkill -9 -f '^slurmd -D -N n1'", "root")
    cluster.ask(f"start-node n1; scancel {job}", "root")
    cluster.until(lambda: cluster.run("pgrep -f '^slurmd -D -N n1'", "root").returncode == 0, "slurmd does not start")
    until_nothing_is_left(cluster)


def test_a_node_that_starts_anew_is_swept(cluster: Cluster) -> None:
    """After a reboot slices are there, and no process of their jobs: as if slurmd ran none of it."""
    job = job_that_holds(cluster)
    cluster.ask(f"pkill -9 -f '^slurmd -D -N n1'; pkill -9 -f 'slurmstepd[:] .{job}'; pkill -9 -f '[h]olds.py'", "root")
    cluster.ask(f"mv /etc/slurm/epilog /etc/slurm/aside; ln -s /bin/true /etc/slurm/epilog; scancel {job}", "root")
    try:
        cluster.ask("start-node n1", "root")
        cluster.until(lambda: cluster.ask("squeue -h -o %A", "root").split() == [], "the job stays")
        assert cluster.slices("n1") == [f"slurm-{job}"]
        assert cluster.on("n1", "SLURMD_NODENAME=n1 /etc/slurm/health_check").startswith(f"slurm-{job}: ")
    finally:
        cluster.ask("mv /etc/slurm/aside /etc/slurm/epilog", "root")
    until_nothing_is_left(cluster)


def test_a_sweep_keeps_what_runs(cluster: Cluster) -> None:
    job = job_that_holds(cluster)
    assert cluster.on("n1", "SLURMD_NODENAME=n1 /etc/slurm/health_check") == ""
    assert cluster.slices("n1") == [f"slurm-{job}"]
    assert cluster.state(job) == "RUNNING"
    cluster.ask(f"scontrol suspend {job}", "root")
    assert cluster.on("n1", "vgpurun slurm sweep --node n1") == ""
    cluster.ask(f"scontrol resume {job}", "root")
    cluster.ask("scontrol update PartitionName=main Hidden=YES", "root")
    cluster.on("n1", "SQUEUE_USERS=bob SQUEUE_STATES=PD SQUEUE_FORMAT=%u vgpurun slurm sweep --node n1")
    cluster.ask("scontrol update PartitionName=main Hidden=NO", "root")
    assert cluster.slices("n1") == [f"slurm-{job}"]


def asked_for_in_a_sweep(cluster: Cluster) -> set[str]:
    """Return what the sweep of n1 asks slurmctld for, in its own words, but for that there is no federation."""
    cluster.ask("sdiag -r", "root")
    cluster.on("n1", "vgpurun slurm sweep --node n1")
    asked = set(re.findall(r"REQUEST_\w+_INFO\w*", cluster.ask("sdiag", "root")))
    return asked - {"REQUEST_STATS_INFO", "REQUEST_FED_INFO"}


def test_a_sweep_asks_for_the_jobs_of_its_slices_alone(cluster: Cluster) -> None:
    """All jobs of a large cluster are many megabytes."""
    assert asked_for_in_a_sweep(cluster) == set()
    job = job_that_holds(cluster)
    assert asked_for_in_a_sweep(cluster) == {"REQUEST_JOB_INFO_SINGLE"}
    assert cluster.slices("n1") == [f"slurm-{job}"]


KILLS = {
    "while it starts": "until pkill -9 -f 'slurmstepd[:] .{job}.batch'; do :; done",
    "its step's": "until pgrep -f '[h]olds.py$'; do :; done; pkill -9 -f 'slurmstepd[:] .{job}.0'",
    "its prolog": "until pgrep -f 'vgpuru[n] slurm prolog'; do :; done; sleep .1; pkill -9 -f 'vgpuru[n] slurm prolog'",
}


@pytest.mark.parametrize("what", KILLS)
def test_a_slurmstepd_or_a_prolog_that_is_killed_at_any_moment(cluster: Cluster, what: str) -> None:
    """A sweep ends what a prolog had half made."""
    job = cluster.batch("--gres=shard:1 -w n1 --no-requeue", f"srun {PROGRAM}holds.py")
    cluster.run(f'timeout 10 bash -c "{KILLS[what].format(job=job)}"; sleep 0.3; scancel {job}', "root")
    cluster.until(lambda: cluster.ask("squeue -h -o %A", "root").split() == [], "the job stays")
    cluster.run("scontrol update NodeName=n1 State=RESUME", "root")  # Slurm drains one whose slurmstepd dies early
    until_nothing_is_left(cluster)
    cluster.on("n1", "vgpurun slurm sweep --node n1; ! ls -d /var/lib/vgpurun/slices/.[!.]*")
