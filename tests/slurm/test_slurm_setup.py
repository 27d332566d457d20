"""Setting a node up: the plugin of the right release, and what `slurm check` says of a cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_cluster import PROGRAM, RELEASES, Cluster, slurm_cluster, slurm_packages
from support import CHECKOUT


def test_the_plugin_is_of_the_installed_release(cluster: Cluster) -> None:
    plugin = "/usr/local/lib/slurm/spank_vgpurun.so"
    assert cluster.ask("vgpurun slurm build-plugin", "root") == f"{plugin}: for Slurm {cluster.release}\n"
    (other,) = set(RELEASES) - {cluster.release}
    headers = f"{slurm_packages(other)}/usr/include"
    done = cluster.run(
        f"vgpurun slurm build-plugin --include {headers} --output /tmp/other.so; ls /tmp/other.so", "root"
    )
    assert f"are of Slurm {other}, and {cluster.release} is installed" in done.stderr and done.stdout == ""


def test_a_plugin_of_another_release_is_said_in_one_line(cluster: Cluster) -> None:
    plugin = "/usr/local/lib/slurm/spank_vgpurun.so"
    (other,) = set(RELEASES) - {cluster.release}
    number = {"22.05": "0x160508", "24.11": "0x180b05"}
    change = f"s/slurm={number[cluster.release]} /slurm={number[other]} /"
    cluster.ask(f"cp {plugin} /tmp/kept.so; sed -i '{change}' {plugin}", "root")
    try:
        done = cluster.run("vgpurun slurm check --node n1", "root")
    finally:
        cluster.ask(f"cp /tmp/kept.so {plugin}", "root")
    assert done.returncode == 1
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("FAIL"))
    assert f"is for Slurm {other}, which {cluster.release} does not load" in line


def test_check_finds_this_cluster_usable(cluster: Cluster) -> None:
    found = json.loads(cluster.ask("vgpurun slurm check --node n1 --format json"))
    by_name = {each["name"]: each["status"] for each in found}
    assert "fail" not in by_name.values(), found
    assert {name for name, status in by_name.items() if status == "warn"} == {
        "devices",
        "HealthCheckProgram",
        "ProctrackType",
    }
    assert {"Prolog", "Epilog", "plugin", "gres.conf", "library"} <= by_name.keys()


def failures(cluster: Cluster, vgpurun: str = "vgpurun") -> list[str]:
    """Return what `slurm check` finds wrong on n1."""
    found = json.loads(cluster.run(f"{vgpurun} slurm check --node n1 --format json", "root").stdout)
    return [f"{each['name']}: {each['words']}" for each in found if each["status"] == "fail"]


def test_check_finds_what_autodetect_makes_of_gres_conf(cluster: Cluster) -> None:
    cluster.ask("cp /etc/slurm/gres.conf /tmp/kept; sed -i s/=off/=nvml/ /etc/slurm/gres.conf", "root")
    try:
        with_gpus = failures(cluster)
        cluster.ask("sed -i /Name=gpu/d /etc/slurm/gres.conf", "root")
        without = failures(cluster)
    finally:
        cluster.ask("cp /tmp/kept /etc/slurm/gres.conf", "root")
    if cluster.release == "22.05":  # goes on without NVML
        assert with_gpus == []
        assert (
            without[0] == "gres.conf: slurmd does not start with it: failed to merge SHARED and SHARING configuration"
        )
        assert "this Slurm does not tell" in without[1]
    else:  # Debian's is built without NVML, and then has no GRES at all
        none = ["gpu for node n1, and slurm.conf has 2", "shard for node n1, and slurm.conf has 8"]
        assert with_gpus == without == [f"gres.conf: slurmd finds 0 of {each}" for each in none]


def test_check_finds_a_prolog_that_does_not_find_vgpurun(cluster: Cluster) -> None:
    cluster.ask("mv /usr/local/bin/vgpurun /opt/vgpurun", "root")
    try:
        found = failures(cluster, "/opt/vgpurun")
        done = cluster.run("srun -w n1 --gres=shard:1 echo it ran")
    finally:
        cluster.ask("mv /opt/vgpurun /usr/local/bin/vgpurun", "root")
    searched = "since its PATH is /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    names = ("Prolog", "Epilog")
    assert found == [f"{name}: /etc/slurm/{name.lower()} does not find vgpurun, {searched}" for name in names]
    assert done.returncode == 125 and "the prolog has made none" in done.stderr
    cluster.on("n1", "vgpurun slurm sweep --node n1")


@pytest.fixture
def plain_cluster(built_library: Path) -> Iterator[Cluster]:
    """A cluster without the plugin, where TaskProlog sets variables."""
    lines = ["TaskProlog=/etc/slurm/task_prolog", "PlugStackConfig=/dev/null"]
    with slurm_cluster("24.11", lines) as cluster:
        yield cluster


@pytest.mark.slow
def test_without_the_plugin_a_task_prolog_sets_variables(plain_cluster: Cluster) -> None:
    allocates = f"PYTHONPATH={CHECKOUT}/tests VGPUSIM_CONFIG=/etc/slurm/sim.yaml {PROGRAM}allocates.py 1500 1700"
    done = plain_cluster.run(f"srun --gres=shard:1 bash -c '{allocates}; env -i {allocates}'")
    assert done.stdout == "2048 ok CUDA_ERROR_OUT_OF_MEMORY\n8192 ok ok\n"  # the weaker way
    plain_cluster.tidy()
    plain_cluster.ask("ln -sf /bin/true /etc/slurm/prolog", "root")
    done = plain_cluster.run("srun --gres=shard:1 echo it ran")
    assert done.returncode != 0 and "it ran" not in done.stdout
    assert "has no share of a GPU here: the prolog has made none" in done.stdout
    (weaker,) = (
        each
        for each in json.loads(plain_cluster.ask("vgpurun slurm check --node n1 --format json || true"))
        if each["name"] == "TaskProlog"
    )
    assert weaker["status"] == "warn" and "`env -i`" in weaker["words"]


CONFIGLESS = r"""
sed -i 's#=/etc/slurm/\(prolog\|epilog\)$#=\1#; s#^SlurmdLogFile=.*#SlurmctldParameters=enable_configless#' \
  /etc/slurm/slurm.conf
pkill -x 'slurmctld|slurmd'
while pgrep -x 'slurmctld|slurmd' >/dev/null; do sleep 0.1; done
slurmctld -D >/tmp/slurmctld.out 2>&1 </dev/null &
sed -e 's#exec slurmd -D#mkdir /tmp/kept; cp /etc/slurm/sim.yaml /tmp/kept; mount --bind /tmp/kept /etc/slurm; &#' \
  -e 's#slurmd -D -N $0#& --conf-server node#' -i /usr/local/bin/start-node
start-node n1
until [ "$(sinfo -h -t idle -n n1 -o %D 2>/dev/null)" = 1 ]; do sleep 0.1; done
"""
# Syslog's, of this machine: prints the first line that it is sent.
SYSLOG = r"""
import socket
receives = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
receives.bind("/dev/log")
while b"vgpurun" not in (line := receives.recv(4096)):
    pass
print(line.decode())
"""


@pytest.mark.slow
def test_a_node_that_fetches_its_configuration(built_library: Path) -> None:
    """A cluster with prolog and epilog, which slurmctld sends along where slurm.conf names them without a folder."""
    allocates = f"{PROGRAM}allocates.py 1500 1700"
    with slurm_cluster("24.11") as cluster:
        cluster.ask(CONFIGLESS, "root")
        assert cluster.on("n1", "ls /etc/slurm") == "sim.yaml\n"
        assert cluster.ask(f"srun -w n1 --gres=shard:1 {allocates}") == "2048 ok CUDA_ERROR_OUT_OF_MEMORY\n"
        cluster.until(lambda: cluster.slices("n1") == [], "the epilog does not run")
        found = json.loads(cluster.on("n1", "vgpurun slurm check --node n1 --format json"))
        assert [each["words"] for each in found if each["status"] == "fail"] == []
        assert "/run/slurm/conf/prolog" in [each["words"] for each in found]
        with cluster.start(f"{sys.executable} -c '{SYSLOG}'", "root") as syslog:
            cluster.until(lambda: cluster.run("ls /dev/log").returncode == 0, "no syslog")
            cluster.on("n1", "SLURM_JOB_ID=7 SLURM_JOB_UID=1101 SLURMD_NODENAME=n1 vgpurun slurm prolog")
            said, _ = syslog.communicate(timeout=10)
        assert "vgpurun: no share for job 7: " in said
