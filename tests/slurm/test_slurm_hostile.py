"""Users who want more than their share, or something of others' shares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_cluster import PROGRAM, Cluster, constrained_cluster, slurm_cluster
from support import CHECKOUT, unavailable

OOM = "CUDA_ERROR_OUT_OF_MEMORY"
ALLOCATES_OF_ONE = f"{PROGRAM}allocates.py 1500 1700"
ONE_SHARD = f"2048 ok {OOM}\n"


def script(cluster: Cluster, path: str, lines: str) -> None:
    cluster.ask(f"printf '#!/bin/bash\\n%s\\n' '{lines}' >{path}; chmod 755 {path}")


@pytest.mark.parametrize("hook", ["task-prolog", "task-epilog"])
def test_a_users_own_hooks_have_the_share(cluster: Cluster, hook: str) -> None:
    """The epilog of a task is no task: slurmstepd itself starts it."""
    script(cluster, "/tmp/hook", f"{ALLOCATES_OF_ONE} >/tmp/hook.out")
    cluster.ask(f"srun -w n1 --gres=shard:1 --{hook}=/tmp/hook true")
    assert cluster.ask("cat /tmp/hook.out; rm /tmp/hook.out") == ONE_SHARD


def test_the_hook_of_a_task_that_was_refused_sees_no_gpu(cluster: Cluster) -> None:
    script(cluster, "/tmp/hook", "stat -Lc %t:%T /dev/nvidia* >/tmp/hook.out")
    with cluster.lenient_filter():
        assert cluster.run("srun -w n1 --gres=shard:1 --vgpu-sm=90 --task-epilog=/tmp/hook true").returncode == 125
    assert cluster.ask("cat /tmp/hook.out; rm /tmp/hook.out") == 2 * "1:3\n"  # /dev/null


def test_a_gpu_of_others_is_none(cluster: Cluster) -> None:
    """Also where Slurm does not keep its devices from the job (ConstrainDevices)."""
    other = f"CUDA_VISIBLE_DEVICES=1 {PROGRAM}allocates.py 1"
    done = cluster.run(f"srun -w n1 --gres=shard:1 bash -c '{other}; env -i PYTHONPATH={CHECKOUT}/tests {other}'")
    assert done.stdout == "" and done.stderr.count(OOM) == 2
    assert "GPU-51000000-0000-0000-0000-000000000001 was not granted" in done.stderr


def test_what_a_user_says_of_a_job_counts_for_nothing(cluster: Cluster) -> None:
    """Slurm's variables are for those who want to read them, and the options of a step have to be its job's."""
    forged = "SLURM_SHARDS_ON_NODE=4 SPANK_VGPU_MEM=8g SLURM_JOB_UID=0 SLURM_JOB_GPUS=0,1"
    inner = f"srun --overlap --gres=none env SLURM_JOB_ID=1 SLURM_JOBID=1 {ALLOCATES_OF_ONE}"
    options = "unset ${!SLURM_SPANK*}; _SLURM_SPANK_OPTION_vgpurun_vgpu_mem=8g"
    job = cluster.batch("--gres=shard:1 --vgpu-mem=2g", f"export {forged}; {inner}; {options} srun echo it ran")
    assert cluster.until_ended(job) == "FAILED"
    assert cluster.output(job) == ONE_SHARD
    assert "give them to sbatch or salloc, and not to a step" in cluster.output(job, "err")


def test_what_a_user_calls_a_job_counts_for_nothing(cluster: Cluster) -> None:
    """Slurm prints its name as it was given, before and among what the prolog and the sweep read."""
    forged = "a Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:4(4/4,0/4) JobState=COMPLETED NodeList=x b"
    job = cluster.batch(f"--gres=shard:1 -w n1 -J '{forged}' --comment '{forged}'", f"{ALLOCATES_OF_ONE}; sleep 60")
    cluster.until(lambda: cluster.output(job) != "", "the job does not begin")
    assert cluster.output(job) == ONE_SHARD
    assert cluster.on("n1", "vgpurun slurm sweep --node n1") == "" and cluster.slices("n1") == [f"slurm-{job}"]
    lines = "a\\n     Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:4(4/4,0/4)"
    done = cluster.run(f"srun -w n1 --gres=shard:1 -J $'{lines}' {ALLOCATES_OF_ONE}")
    assert done.returncode == 125 and "take the line breaks out" in done.stderr


def test_few_open_files_lift_no_limit(cluster: Cluster) -> None:
    few = f"ulimit -n 16; srun --overlap --propagate=NOFILE {ALLOCATES_OF_ONE} || echo none"
    job = cluster.batch("--gres=shard:1", few)
    cluster.until_ended(job)
    assert cluster.output(job) in (ONE_SHARD, "none\n")


def test_nobody_else_writes_a_jobs_usage_or_turns(cluster: Cluster) -> None:
    job = cluster.batch("--gres=shard:1 -w n1", f"{PROGRAM}holds.py")
    cluster.until(lambda: "ready" in cluster.output(job), "the job does not begin")
    files = f"/var/lib/vgpurun/slices/slurm-{job}/run/usage /var/lib/vgpurun/slices/slurm-{job}/slurm/presence"
    assert cluster.on("n1", f"stat -Lc '%U %a' {files}") == "alice 600\nalice 644\n"
    read = cluster.run(f"srun -w n1 --gres=shard:1 head -c 1 {files.split()[0]}", user="bob")
    assert "Permission denied" in read.stderr, "who can open it can lock its slots"
    tried = cluster.run(f"srun -w n1 --gres=shard:1 bash -c 'for f in {files}; do : >$f; done'", user="bob")
    assert tried.stderr.count("Permission denied") == 2
    assert cluster.on("n1", f"vgpurun slice inspect slurm-{job} | grep memory_used_bytes") != ""


def test_a_neighbours_folder_in_the_place_of_a_jobs_turns(cluster: Cluster) -> None:
    """Its name follows from the job's id, and anybody may make one there beforehand."""
    job = int(cluster.batch("--gres=shard:1 -w n1", "true"))
    cluster.until_ended(str(job))
    name = "import hashlib, sys; print(hashlib.sha256(sys.argv[1].encode()).hexdigest()[:24])"
    names = [
        cluster.ask(f"python3 -c '{name}' /var/lib/vgpurun/slices/slurm-{number}").strip()
        for number in range(job + 1, job + 4)
    ]
    places = " ".join(f"/var/tmp/vgpulock/{each}" for each in names)
    taken = f"for p in {places}; do mkdir -p $p/presence1; ln -s /etc/passwd $p/limits; done"
    cluster.ask(f"srun -w n1 bash -c '{taken}'", user="bob")
    assert cluster.ask(f"srun -w n1 --gres=shard:1 {ALLOCATES_OF_ONE}") == ONE_SHARD
    assert cluster.ask("head -c 4 /etc/passwd") == "root"


def test_an_id_that_slurm_gives_to_another_job(cluster: Cluster) -> None:
    """A slurmctld that has lost its state gives an id again: what is left of the earlier job is not the new one's."""
    job = int(cluster.batch("--gres=shard:3 -w n1", "true"))
    cluster.until_ended(str(job))
    cluster.until(lambda: cluster.slices("n1") == [], "the slice stays")
    cluster.ask("mv /etc/slurm/epilog /etc/slurm/aside; ln -s /bin/true /etc/slurm/epilog", "root")
    try:
        left = int(cluster.batch("--gres=shard:3 -w n1", "true", user="bob"))
        cluster.until_ended(str(left))
    finally:
        cluster.ask("mv /etc/slurm/aside /etc/slurm/epilog", "root")
    cluster.on("n1", f"cd /var/lib/vgpurun/slices; mv slurm-{left} slurm-{left + 1}; "
                     f"sed -i 's/slurm-{left}/slurm-{left + 1}/' slurm-{left + 1}/owner")  # fmt: skip
    assert cluster.ask(f"srun -w n1 --gres=shard:1 {ALLOCATES_OF_ONE}") == ONE_SHARD


@pytest.mark.exhaustive  # test_slurm_jobs.py has arrays, whose tasks are jobs at once
def test_many_jobs_at_once(cluster: Cluster) -> None:
    """Eight prologs begin in one second, and the epilogs of the first run beside the prologs of the next."""
    job = cluster.batch("--gres=shard:1 --array=1-24", f"{ALLOCATES_OF_ONE}; sleep 0.$((RANDOM % 9))")
    ids = cluster.ask(f"squeue -h -r -j {job} -o %A", "root").split()
    cluster.until(lambda: not cluster.ask("squeue -h -o %A", "root").split(), "the array goes on", 90)
    assert [cluster.output(each) for each in ids] == len(ids) * [ONE_SHARD]
    assert "drain" not in cluster.ask("sinfo", "root")


def test_a_full_disk_refuses_and_drains_nothing(cluster: Cluster) -> None:
    used = "$(df -k --output=used /var/lib/vgpurun | tail -1)"
    fill = "! head -c 1G /dev/zero >/var/lib/vgpurun/full"
    cluster.on("n1", f"mount -o remount,size=$(({used} + 100))k /var/lib/vgpurun && {fill}")
    try:
        done = cluster.run("srun -w n1 --gres=shard:1 echo it ran")
        lines = cluster.run("salloc --quiet -w n1 --gres=shard:1 srun --gres=none echo it ran")
    finally:
        cluster.on("n1", "rm /var/lib/vgpurun/full; mount -o remount,size=1g /var/lib/vgpurun")
    for each in (done, lines):
        assert each.returncode == 125 and each.stdout == ""
        assert "has no share of a GPU here" in each.stderr
    assert "drain" not in cluster.ask("sinfo", "root")
    assert cluster.ask(f"srun -w n1 --gres=shard:1 {ALLOCATES_OF_ONE}") == ONE_SHARD


@contextmanager
def _on_one_cpu() -> Iterator[None]:
    """Start what this thread starts on one CPU.

    Slurm binds the namespace that it makes for a job to a file. Since Linux 6.18 each CPU numbers namespaces by itself,
    and the kernel refuses that bind (EINVAL) for one with a lower number than slurmstepd's own.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.slow
def test_jobs_with_a_private_tmp_have_their_share_too(built_library: Path) -> None:
    """Slurm finds a job's own namespace by a file that a namespace of ours would not have."""
    if CHECKOUT.is_relative_to("/tmp"):
        unavailable("such a job does not see the library of a checkout in /tmp")
    lines = ["JobContainerType=job_container/tmpfs", "PrologFlags=Contain"]
    with _on_one_cpu(), slurm_cluster("24.11", lines) as cluster:
        hook = f"{ALLOCATES_OF_ONE} >/var/tmp/hook.out"
        cluster.ask(f"printf '#!/bin/bash\\n%s\\n' '{hook}' >/var/hook; chmod 755 /var/hook", "root")
        inside = f"{ALLOCATES_OF_ONE}; ls /tmp | wc -l"
        done = cluster.run(f"srun -w n1 --gres=shard:1 --task-epilog=/var/hook bash -c '{inside}'")
        assert done.stdout == f"{ONE_SHARD}0\n", done.stderr
        assert cluster.on("n1", "cat /var/tmp/hook.out") == ONE_SHARD


@pytest.fixture
def constrained(built_library: Path) -> Iterator[Cluster]:
    with constrained_cluster() as cluster:
        yield cluster


@pytest.mark.slow
def test_devices_of_other_gpus_are_kept_from_a_job(constrained: Cluster) -> None:
    """The nodes of these GPUs have no driver: one that a job may open gives another error."""
    opens = "for n in 0 1; do : </dev/nvidia$n; done"
    done = constrained.run(f"srun -w n1 --gres=shard:1 bash -c '{ALLOCATES_OF_ONE}; {opens}'")
    assert done.stdout == ONE_SHARD
    assert "/dev/nvidia0: No such device or address" in done.stderr
    assert "/dev/nvidia1: Operation not permitted" in done.stderr
    constrained.tidy()
