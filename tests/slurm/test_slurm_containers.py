"""Containers that a job starts, by a Docker Engine of its node or by Apptainer, are held to the job's share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

import images
from private_engine import SCRIPT, fetched_engine
from slurm_cluster import Cluster
from support import CHECKOUT, unavailable
from support.debian_packages import unpacked

OOM = "CUDA_ERROR_OUT_OF_MEMORY"
ENGINE = Path("/run/engine")
IMAGE = "debian:1"
PROGRAMS = f"{CHECKOUT}/tests/slurm/programs"
ALLOCATES, HOLDS = f"python3 {PROGRAMS}/allocates.py", f"python3 {PROGRAMS}/holds.py"
RUN = f"vgpurun run -v {CHECKOUT}/tests:{CHECKOUT}/tests:ro -e PYTHONPATH={CHECKOUT}/tests"
JOINS = f"{RUN} --slice slurm-$SLURM_JOB_ID"
ON_THE_ENGINE = f"export DOCKER_HOST=unix://{ENGINE}/docker.sock;"

pytestmark = pytest.mark.exhaustive  # tests/engine/test_slices.py and test_nested.py have containers in a share


@pytest.fixture(scope="module")
def node(clusters: dict[str, Cluster]) -> Iterator[Cluster]:
    """A cluster whose node n1 has an engine that bob may use, and alice may not."""
    cluster = clusters["24.11"]
    cluster.on("n1", f"{SCRIPT} start {fetched_engine()} {ENGINE} --group bob")
    client = docker.DockerClient(f"unix:///proc/{cluster.pid}/root{ENGINE}/docker.sock")
    images.debian(client, IMAGE)
    yield cluster
    for container in client.containers.list(all=True):
        container.remove(force=True)
    client.close()
    cluster.on("n1", f"{SCRIPT} stop {ENGINE}; rm -r {ENGINE}")


@pytest.fixture
def docked(node: Cluster) -> Iterator[Cluster]:
    yield node
    node.tidy()


def on_the_node(cluster: Cluster, command: str) -> str:
    """Run a command line with docker's as root on n1; return what it says, stderr too."""
    return cluster.on("n1", f"{ON_THE_ENGINE} PATH=$PATH:{fetched_engine()}/bin; ({command}) 2>&1 || true")


def containers(cluster: Cluster, more: str = "") -> list[str]:
    return on_the_node(cluster, f"docker ps --format '{{{{.Names}}}}' {more}").split()


def test_containers_and_tasks_of_a_job_have_one_share(docked: Cluster) -> None:
    """A task holds 618 MiB of 2048; each container has a context of 518."""
    tries = (
        f"{JOINS} --rm {IMAGE} {ALLOCATES} 800 1000",
        f"{JOINS} --rm --mem 1g {IMAGE} {ALLOCATES} 400 600",
        f"{RUN} --rm {IMAGE} {ALLOCATES} 800 1000",  # already in the share
        f"vgpurun local --mem 1500m -- {RUN} --rm --mem 50% {IMAGE} {ALLOCATES} 200 300",
    )
    holds = f"{HOLDS} >/tmp/holds.out & until grep ready /tmp/holds.out >/tmp/said; do sleep 0.1; done"
    script = f"{ON_THE_ENGINE} export PYTHONPATH={CHECKOUT}/tests\n{holds}\n" + "\n".join(tries)
    job = docked.batch("-w n1 --gres=shard:1", f"{script}\nkill %1", user="bob")
    docked.until_ended(job)
    shown = [f"2048 ok {OOM}", f"1024 ok {OOM}", f"2048 ok {OOM}", f"750 ok {OOM}"]
    assert docked.output(job).splitlines() == shown, docked.output(job, "err")


@pytest.mark.parametrize("end", ["scancel {job}", pytest.param(
    "scontrol update JobId={job} EndTime=now+1", marks=pytest.mark.exhaustive)])  # fmt: skip
def test_no_container_outlives_its_job(docked: Cluster, end: str) -> None:
    """Neither does a paused one, one that the engine would start anew, or one with limits of its own."""
    starts = (
        f"{JOINS} -d --name joined {IMAGE} {HOLDS}",
        f"{JOINS} -d --name restarted --restart always {IMAGE} {HOLDS}",
        f"{RUN} -d --name part --mem 1g {IMAGE} {HOLDS}",
        f"{JOINS} --name waited-for {IMAGE} {HOLDS}",
    )
    job = docked.batch("-w n1 --gres=shard:2", f"{ON_THE_ENGINE}\n" + "\n".join(starts), user="bob")
    docked.until(lambda: len(containers(docked)) == len(starts) and "ready" in docked.output(job), "not all begin")
    on_the_node(docked, "docker pause joined")
    docked.ask(end.format(job=job), "root")
    docked.until(lambda: docked.slices("n1") == [], "the slice stays", 90)
    docked.until(lambda: containers(docked) == [], "a container stays")
    assert docked.run(f"pgrep -f {PROGRAMS}/holds.py$", "root").stdout == ""
    assert "drain" not in docked.ask("sinfo", "root")
    for name in containers(docked, "--all"):
        again = on_the_node(docked, f"vgpurun start {name}; docker start {name}; docker rm {name}")
        assert f"there is no slice 'slurm-{job}'" in again and "bind source path does not exist" in again


def test_a_job_of_a_user_without_right_to_the_engine(docked: Cluster) -> None:
    done = docked.run(f"{ON_THE_ENGINE} srun -w n1 --gres=shard:1 {RUN} {IMAGE} {ALLOCATES} 1")
    assert done.returncode == 1 and done.stdout == ""
    assert f"no permission on the Docker Engine's socket {ENGINE}/docker.sock" in done.stderr


def test_a_container_does_not_join_another_users_job(docked: Cluster) -> None:
    job = docked.batch("-w n1 --gres=shard:1", "sleep 60")
    docked.until(lambda: docked.slices("n1") == [f"slurm-{job}"], "there is no slice")
    joins = f"{RUN} --slice slurm-{job} {IMAGE} {ALLOCATES} 1"
    done = docked.run(f"{ON_THE_ENGINE} srun -w n1 --gres=shard:1 {joins}", user="bob")
    assert done.returncode == 125 and f"slice slurm-{job} is not for user bob, but for alice" in done.stderr


@pytest.fixture
def with_apptainer(clusters: dict[str, Cluster]) -> Iterator[Cluster]:
    """A cluster with Apptainer, of a later Debian than Slurm's, and an image as a folder."""
    cluster = clusters["24.11"]
    cluster.ask(f"cp -a {unpacked('apptainer', 'sid')}/. /; ldconfig", "root")
    if said := cluster.run("apptainer version").stderr:
        unavailable(f"Apptainer does not run here: {said.splitlines()[-1]}")
    cluster.ask(f"mkdir /srv/debian; tar -C /srv/debian -xf {images.debian_tar()}; chmod 755 /srv/debian/root", "root")
    yield cluster
    cluster.ask("rm -r /srv/debian", "root")
    cluster.tidy()


def test_apptainers_containers_are_in_the_share_of_their_job(with_apptainer: Cluster) -> None:
    """The last one starts without the variable that the plugin sets, by the lines that docs/slurm.md has."""
    lines = "bind path = /.vgpurun\\nbind path = /etc/ld.so.preload\\nbind path = /etc/ld-nix.so.preload\\n"
    inside = f"env -i LD_LIBRARY_PATH=/.singularity.d/libs PYTHONPATH={CHECKOUT}/tests {ALLOCATES} 1500 1700"
    run = f"apptainer exec --nv --bind {CHECKOUT}"
    tries = [
        f"{run} {options} /srv/debian {inside}" for options in ("", "--containall", "--cleanenv --no-mount bind-paths")
    ]
    shown = with_apptainer.run(
        f"export APPTAINER_BIND=/srv:/mnt; srun -w n1 --gres=shard:1 bash -c '{'; '.join(tries)}'"
    )
    assert shown.stdout == 3 * f"2048 ok {OOM}\n", shown.stderr
    with_apptainer.ask(f"printf '{lines}' >>/etc/apptainer/apptainer.conf", "root")
    without = f"env -i /usr/bin/{run} /srv/debian {inside}"
    assert with_apptainer.ask(f"srun -w n1 --gres=shard:1 {without}") == f"2048 ok {OOM}\n"
    assert (
        with_apptainer.ask("srun -w n1 apptainer exec /srv/debian sh -c 'echo $APPTAINER_BIND; cat /etc/ld.so.preload'")
        == "\n"
    )


@pytest.fixture
def unpacked_by_alice(clusters: dict[str, Cluster]) -> Iterator[Cluster]:
    """A cluster where a user has an image as a folder of her own, as `enroot create` makes it."""
    cluster = clusters["24.11"]
    cluster.ask("install -d -o alice /srv/own", "root")
    cluster.ask(f"cat {images.debian_tar()} >/srv/own/tar; chown alice /srv/own/tar", "root")
    cluster.ask("mkdir /srv/own/root; tar -C /srv/own/root --exclude './dev/*' -xf /srv/own/tar; rm /srv/own/tar")
    yield cluster
    cluster.ask("rm -r /srv/own", "root")
    cluster.tidy()


def test_containers_by_the_mounts_that_the_page_has_for_enroot(unpacked_by_alice: Cluster) -> None:
    """Nothing is said of enroot itself, which cannot be had here: of the lines, in the order that it documents."""
    page = (CHECKOUT / "docs" / "slurm.md").read_text()
    lines = re.findall(r"(?m)^ +(/\S+ +/\S+ +none x-create=\S+)$", page)
    assert len(lines) == 3
    lines += [f"{each} {each} none x-create=dir,rbind" for each in ("/proc", "/dev", CHECKOUT)]  # enroot's, the user's
    unpacked_by_alice.ask("cat >/srv/own/fstab <<'LINES'\n" + "\n".join(lines) + "\nLINES")
    inside = f"env -i LD_LIBRARY_PATH={CHECKOUT}/lib/build/sim PYTHONPATH={CHECKOUT}/tests"
    start = f"{PROGRAMS}/like_enroot /srv/own/root /srv/own/fstab"
    done = unpacked_by_alice.run(f"srun -w n1 --gres=shard:1 {start} /usr/bin/{inside} {ALLOCATES} 1500 1700")
    assert done.stdout == f"2048 ok {OOM}\n", done.stderr
    empty = unpacked_by_alice.run(f"srun -w n1 {start} /usr/bin/cat /etc/ld.so.preload")
    assert (empty.returncode, empty.stdout) == (0, ""), empty.stderr
