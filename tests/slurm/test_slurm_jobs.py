"""Jobs of every kind have the share that Slurm gave them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from escapes import by_nix_loader
from slurm_cluster import PROGRAM, Cluster
from support import CHECKOUT

OOM = "CUDA_ERROR_OUT_OF_MEMORY"
WITHOUT_ENVIRONMENT = f"env -i PYTHONPATH={CHECKOUT}/tests"
# A GPU has 8192 MiB and 4 shards; 518 of a share are a context's.
TWO_SHARDS, ONE_SHARD, WHOLE = f"4096 ok {OOM}\n", f"2048 ok {OOM}\n", "8192 ok ok\n"
ALLOCATES_OF_TWO = f"{PROGRAM}allocates.py 3500 3700"
ALLOCATES_OF_ONE = f"{PROGRAM}allocates.py 1500 1700"


def inspect(cluster: Cluster, node: str, job: str) -> dict[str, Any]:
    (found,) = json.loads(cluster.on(node, f"vgpurun slice inspect slurm-{job}"))
    return found


def test_a_job_is_held_to_its_shards_also_without_an_environment(cluster: Cluster) -> None:
    script = f"{ALLOCATES_OF_TWO}; {WITHOUT_ENVIRONMENT} {ALLOCATES_OF_TWO}"
    assert cluster.ask(f"srun --gres=shard:2 bash -c '{script}'") == 2 * TWO_SHARDS


def test_a_program_with_nix_s_loader_is_held_to_its_shards(cluster: Cluster) -> None:
    _, _, script, *_ = by_nix_loader()
    assert cluster.ask(f"srun --gres=shard:2 bash -c '{script}' bash {ALLOCATES_OF_TWO}") == TWO_SHARDS


def test_a_batch_job_and_its_steps_have_one_share(cluster: Cluster) -> None:
    job = cluster.batch(
        "--gres=shard:2", f"{ALLOCATES_OF_TWO}\nsrun {ALLOCATES_OF_TWO}\nsrun --gres=none {ALLOCATES_OF_TWO}"
    )
    assert cluster.until_ended(job) == "COMPLETED"
    assert cluster.output(job) == 3 * TWO_SHARDS


def test_steps_at_once_share_the_memory(cluster: Cluster) -> None:
    holds = f"<(exec srun --overlap --gres=shard:2 {PROGRAM}holds.py)"
    job = cluster.batch(
        "--gres=shard:2 -n2",
        f"exec 3< {holds}; one=$!; exec 4< {holds}; other=$!; read <&3; read <&4\n"
        f"srun --overlap {PROGRAM}allocates.py 2500 3000\nkill $one $other",
    )
    assert cluster.until_ended(job) == "COMPLETED"
    assert set(cluster.output(job).splitlines()) == {f"4096 {OOM} {OOM}"}  # two contexts, and 200 MiB, are in use


def test_a_whole_gpu_is_not_limited_unless_it_is_asked_for(cluster: Cluster) -> None:
    assert cluster.ask(f"srun --gres=gpu:1 {PROGRAM}allocates.py 3500 7000") == WHOLE
    assert cluster.ask(f"srun --gres=gpu:1 --vgpu-mem=4g {ALLOCATES_OF_TWO}") == TWO_SHARDS


def test_each_of_a_jobs_gpus_is_limited(cluster: Cluster) -> None:
    on_each = f"for n in 0 1; do CUDA_VISIBLE_DEVICES=$n {ALLOCATES_OF_TWO}; done"
    assert cluster.ask(f"srun -w n1 --gres=gpu:2 --vgpu-mem=50% bash -c '{on_each}'") == 2 * TWO_SHARDS
    assert cluster.ask(f"srun -w n1 -n2 --gpus-per-task=1 --vgpu-mem=4g {ALLOCATES_OF_TWO}") == 2 * TWO_SHARDS


@pytest.mark.exhaustive  # Slurm starts such a job twice a minute
def test_each_component_of_a_job_has_a_share_of_its_own(cluster: Cluster) -> None:
    parts = f"-w n1 --gres=shard:1 {ALLOCATES_OF_ONE} : -w n2 --gres=shard:2 {ALLOCATES_OF_TWO}"
    assert sorted(cluster.ask(f"srun {parts}").splitlines(True)) == [ONE_SHARD, TWO_SHARDS]


def test_whole_gpus_and_shards_of_one_node(cluster: Cluster) -> None:
    whole = cluster.batch("-w n1 --gres=gpu:1 --vgpu-sm=40", "sleep 60")
    cluster.until(lambda: cluster.state(whole) == "RUNNING", "no job begins")
    shards = cluster.batch("-w n1 --gres=shard:3", "sleep 60")
    cluster.until(lambda: len(cluster.slices("n1")) == 2, "there are no two slices")
    of_whole, of_shards = (inspect(cluster, "n1", job)["devices"][0] for job in (whole, shards))
    assert of_whole["uuid"] != of_shards["uuid"]
    assert (of_whole["memory_limit_bytes"], of_whole["sm_limit_percent"]) == (None, 40)
    assert (of_shards["memory_limit_bytes"], of_shards["sm_limit_percent"]) == (6 << 30, 75)


def test_a_job_has_its_share_on_each_of_its_nodes(cluster: Cluster) -> None:
    assert cluster.ask(f"srun -N2 --gres=shard:1 {ALLOCATES_OF_ONE}") == 2 * ONE_SHARD


def test_each_task_of_an_array_has_a_share_of_its_own(cluster: Cluster) -> None:
    wait = "until [ -e /tmp/all ]; do sleep 0.1; done"
    job = cluster.batch("--gres=shard:1 --array=1-4 -w n1", f"{ALLOCATES_OF_ONE}; {wait}")
    cluster.until(lambda: len(cluster.slices("n1")) == 4, "there are no four slices")
    ids = cluster.ask(f"squeue -h -r -j {job} -o %A", "root").split()
    cluster.ask("touch /tmp/all")
    cluster.until(lambda: not cluster.ask("squeue -h -o %A", "root").split(), "the array goes on")
    assert [cluster.output(each) for each in ids] == 4 * [ONE_SHARD]


def test_salloc_and_a_job_without_its_submitters_environment(cluster: Cluster) -> None:
    assert cluster.ask(f"salloc --quiet --gres=shard:1 srun {ALLOCATES_OF_ONE}") == ONE_SHARD
    job = cluster.batch("--export=NONE --gres=shard:1", f"export PYTHONPATH={CHECKOUT}/tests\n{ALLOCATES_OF_ONE}")
    assert cluster.until_ended(job) == "COMPLETED"
    assert cluster.output(job) == ONE_SHARD


def test_a_share_is_its_jobs_users(cluster: Cluster) -> None:
    job = cluster.batch("--gres=shard:1 -w n1", "sleep 60", user="bob")
    cluster.until(lambda: cluster.slices("n1") == [f"slurm-{job}"], "there is no slice")
    assert inspect(cluster, "n1", job)["user"] == "bob"
    assert "bob" in cluster.on("n1", "vgpurun slice ls")


def test_a_requeued_job_gets_its_share_anew_and_drains_nothing(cluster: Cluster) -> None:
    job = cluster.batch("--gres=shard:1 -w n1 --requeue", f"{ALLOCATES_OF_ONE}; sleep 60")
    cluster.until(lambda: ONE_SHARD in cluster.output(job), "the job does not begin")
    first = inspect(cluster, "n1", job)["folder"]
    cluster.ask(f"scontrol requeue {job}", "root")
    cluster.until(lambda: cluster.state(job) == "PENDING", "it is not requeued")
    # Slurm puts it off by two minutes. Within the same second, 22.05 may run no prolog for it.
    cluster.ask(f"scontrol update JobId={job} StartTime=now+2", "root")
    cluster.until(
        lambda: "restarts=1" in cluster.on("n1", f"cat {first}/slurm/job 2>/dev/null || true"), "no new share"
    )
    cluster.until(lambda: ONE_SHARD in cluster.output(job), "the job does not begin")
    assert "drain" not in cluster.ask("sinfo", "root")


def test_the_prolog_keeps_the_share_of_a_job_that_runs(cluster: Cluster) -> None:
    """slurmd may run it again, as after its own restart."""
    job = cluster.batch("--gres=shard:1 -w n1", f"{PROGRAM}holds.py")
    cluster.until(lambda: "ready" in cluster.output(job), "the job does not begin")
    cluster.on("n1", f"vgpurun slice update slurm-{job} --sm 10")
    again = f"SLURM_JOB_ID={job} SLURM_JOB_UID=1101 SLURMD_NODENAME=n1 SLURM_JOB_GPUS=0 SLURM_JOB_RESTART_COUNT=0"
    assert cluster.on("n1", f"{again} /etc/slurm/prolog") == f"slurm-{job}\n"
    assert inspect(cluster, "n1", job)["devices"][0]["memory_used_bytes"] > 100 << 20
    assert cluster.state(job) == "RUNNING"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--vgpu-mem=3g", "--vgpu-mem 3g is more than the job's part of the GPU, 2 GiB; ask for more"),
        ("--vgpu-sm=26", "--vgpu-sm 26 is more than the job's 25 %; ask for more shards"),
    ],
)
def test_a_job_that_gets_no_share_fails_with_one_line(cluster: Cluster, options: str, words: str) -> None:
    with cluster.lenient_filter():
        done = cluster.run(f"srun --gres=shard:1 {options} echo it ran")
    assert done.returncode == 125 and done.stdout == ""
    (line,) = (line for line in done.stderr.splitlines() if "vgpurun" in line)
    assert words in line and "has no share of a GPU here" in line
    assert "drain" not in cluster.ask("sinfo", "root")
    (job,) = re.findall("job ([0-9]+)", line)
    log = cluster.ask("cat /tmp/slurmd-n?.log", "root")
    assert re.search(rf"(?m)^\[[-T:.0-9]+\] error: vgpurun: no share for job {job}: {re.escape(words)}", log)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--gres=shard:1 --vgpu-mem=much", "--vgpu-mem 'much' is no part of a GPU; use a size such as 1500m or"),
        ("--gres=shard:1 --vgpu-mem=101%", "--vgpu-mem '101%' is no part of a GPU;"),
        ("--vgpu-mem=2", "--vgpu-mem '2' is no part of a GPU;"),
        ("--gres=gpu:1 --vgpu-sm=150", "--vgpu-sm '150' is no part of a GPU's time; use a whole percentage from 1"),
        ("--gres=shard:1 --vgpu-mem=3g", "--vgpu-mem=3g is more than 1 of a GPU's 4 shards, 2048 MiB; ask for"),
        ("--gres=shard:3 --vgpu-sm=80", "--vgpu-sm=80 is more than 3 of a GPU's 4 shards, 75 %; ask for"),
        ("--gres=shard --vgpu-mem=9g", "--vgpu-mem=9g is more than 1 of a GPU's 4 shards, 2048 MiB"),
        ("--gpus=1 --vgpu-mem=9g", "--vgpu-mem=9g is more than a GPU has, 8192 MiB"),
        ("--vgpu-mem=9000m --vgpu-sm=10", "--vgpu-mem=9000m is more than a GPU has, 8192 MiB"),
    ],
)
def test_a_wrong_limit_is_refused_at_submission(cluster: Cluster, options: str, words: str) -> None:
    """By the plugin where it is none, and by cli_filter.lua where it is more than the shards."""
    for command in (f"sbatch {options} --wrap true", f"salloc {options} true", f"srun {options} true"):
        done = cluster.run(command)
        assert done.returncode not in (0, 125) and words in done.stderr, (command, done.stderr)
        assert "Submitted" not in done.stdout and "allocat" not in done.stderr.lower(), (command, done.stderr)


def test_options_of_a_step_that_its_job_did_not_have_are_refused(cluster: Cluster) -> None:
    job = cluster.batch("--gres=shard:1", "srun --vgpu-sm=10 echo it ran")
    assert cluster.until_ended(job) == "FAILED"
    assert "give them to sbatch or salloc, and not to a step" in cluster.output(job, "err")
    assert "it ran" not in cluster.output(job)


def test_a_job_whose_prolog_made_nothing_fails(cluster: Cluster) -> None:
    cluster.ask("mv /etc/slurm/prolog /etc/slurm/aside; ln -s /bin/true /etc/slurm/prolog", "root")
    try:
        done = cluster.run("srun --gres=shard:1 echo it ran")
    finally:
        cluster.ask("mv /etc/slurm/aside /etc/slurm/prolog", "root")
    assert done.returncode == 125 and done.stdout == ""
    assert "the prolog has made none" in done.stderr


def test_a_job_for_which_slurm_has_chosen_no_gpu_fails(cluster: Cluster) -> None:
    built = "cc -shared -fPIC -o /usr/local/lib/slurm/without_gpu.so"
    cluster.ask(f"{built} {CHECKOUT}/tests/slurm/programs/without_gpu.c", "root")
    cluster.ask("mv /etc/slurm/prolog /etc/slurm/aside; ln -s /bin/true /etc/slurm/prolog", "root")
    cluster.ask("sed -i '1i required /usr/local/lib/slurm/without_gpu.so' /etc/slurm/plugstack.conf", "root")
    try:
        done = cluster.run("srun --gres=shard:1 echo it ran")
    finally:
        cluster.ask("sed -i /without_gpu/d /etc/slurm/plugstack.conf; mv /etc/slurm/aside /etc/slurm/prolog", "root")
    assert done.returncode == 125 and done.stdout == ""
    assert "Slurm has chosen no GPU for its shards; submit it again if slurmctld has just started" in done.stderr


def test_slurm_counts_what_is_asked_for_in_bytes(cluster: Cluster) -> None:
    """By cli_filter.lua: 3000 MiB are two shards of 2 GiB, and the limit is what was asked for."""
    job = cluster.batch("--vgpu-mem=3000m -w n1", "sleep 60")
    cluster.until(lambda: cluster.slices("n1") == [f"slurm-{job}"], "there is no slice")
    device = inspect(cluster, "n1", job)["devices"][0]
    assert (device["memory_limit_bytes"], device["sm_limit_percent"]) == (3000 << 20, 50)
    assert "shard:2" in cluster.ask(f"scontrol -o -d show job {job}")
    assert "it has no GPU" in cluster.run("srun --gres=none --vgpu-mem=2g true").stderr


def test_a_job_without_a_gpu_has_nothing_of_it(cluster: Cluster) -> None:
    assert cluster.ask("srun cat /etc/ld.so.preload 2>/dev/null || true") == ""
    assert cluster.slices("n1") == []


def test_a_jobs_programs_are_shown_in_its_slice(cluster: Cluster) -> None:
    job = cluster.batch("--gres=shard:1 -w n1", f"{PROGRAM}holds.py")
    cluster.until(lambda: "ready" in cluster.output(job), "the job does not begin")
    shown = json.loads(cluster.on("n1", "vgpurun smi --format json"))
    assert [each["outside"] for each in shown["gpus"]] == [[], []]
    assert [each["name"] for each in shown["slices"]] == [f"slice slurm-{job}"]
    assert [each["command"] for each in shown["processes"]] == ["slurm_script"]


def test_a_container_of_slurms_own_is_refused_a_share(cluster: Cluster) -> None:
    """Its root has no place for the library. 22.05 starts no such container here, with a share or without."""
    config = '{"ociVersion": "1.0.0", "process": {"args": ["true"], "cwd": "/"}, "root": {"path": "rootfs"}}'
    cluster.ask(f"mkdir -p /tmp/bundle/rootfs; echo '{config}' >/tmp/bundle/config.json")
    done = cluster.run("srun --gres=shard:1 --container=/tmp/bundle true")
    assert done.returncode != 0 and "in a container" not in done.stdout
    if cluster.release != "22.05":
        assert "would run without its limits" in done.stderr
        assert cluster.ask("srun --container=/tmp/bundle true") == "in a container\n"


def test_a_task_that_another_plugin_takes_elsewhere_is_refused(cluster: Cluster) -> None:
    """The plugin moves the task as pyxis does, which comes after ours in plugstack.conf here."""
    built = "cc -shared -fPIC -D_GNU_SOURCE -o /usr/local/lib/slurm/elsewhere.so"
    cluster.ask(f"{built} {CHECKOUT}/tests/slurm/programs/elsewhere.c", "root")
    cluster.ask("echo 'required /usr/local/lib/slurm/elsewhere.so' >>/etc/slurm/plugstack.conf", "root")
    try:
        done = cluster.run("srun -w n1 --gres=shard:1 echo it ran")
        without = cluster.ask("srun -w n1 echo it ran")
    finally:
        cluster.ask("sed -i /elsewhere/d /etc/slurm/plugstack.conf", "root")
    assert done.returncode == 125 and done.stdout == "" and without == "it ran\n"
    assert "another plugin has put the task where its limits are not" in done.stderr


def test_a_part_of_a_jobs_share(cluster: Cluster) -> None:
    """The command line of vgpurun is under the job's limits itself."""
    part = f"vgpurun local --mem 1500m --sm 10 -- {PROGRAM}allocates.py 900 1200"
    assert cluster.ask(f"srun -w n1 --gres=shard:2 {part}") == f"1500 ok {OOM}\n"
