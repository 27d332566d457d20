"""The table of docs/slurm.md that tells which lines take a restart of Slurm's daemons."""

from __future__ import annotations

import re
import shlex

import pytest

from slurm_cluster import Cluster, slurm_cluster

RELEASES = [pytest.param("22.05", marks=pytest.mark.exhaustive), "24.11"]
# A site's lines before: no shards, and whole nodes for jobs.
BEFORE = """
cd /etc/slurm
sed -i -E -e '/^(SelectType|GresTypes|CliFilter|Prolog=|Epilog=)/d' -e 's/ Gres=.*//' slurm.conf
echo SelectType=select/linear >>slurm.conf
rm gres.conf plugstack.conf
"""
# By its command line: after a reconfiguration a daemon of 24.11 has another name.
RESTART = """
pkill -f '^{daemon} -D'
while pgrep -f '^{daemon} -D' >/dev/null; do sleep 0.1; done
if [ {daemon} = slurmd ]; then start-node n1; start-node n2; else slurmctld -D >/tmp/slurmctld.out 2>&1 </dev/null & fi
"""


def restart(cluster: Cluster, *daemons: str) -> None:
    for daemon in daemons:
        cluster.ask(RESTART.format(daemon=daemon), "root")


def reconfigure(cluster: Cluster, *lines: str) -> str:
    """Set lines of slurm.conf in the place of those of the same names, and return what `scontrol reconfigure` says."""
    for line in lines:
        name = line.split("=")[0]
        cluster.ask(f"sed -i /^{name}=/d /etc/slurm/slurm.conf; echo {line} >>/etc/slurm/slurm.conf", "root")
    return cluster.run("scontrol reconfigure", "root").stderr


def processors_of_a_job(cluster: Cluster) -> list[str]:
    shown = cluster.run("srun -n1 -w n1 sh -c 'scontrol -o show job $SLURM_JOB_ID'").stdout
    return re.findall(r"NumCPUs=(\d+)", shown)


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_another_select_type(built_library: None, release: str) -> None:
    with slurm_cluster(release) as cluster:
        cluster.ask(BEFORE, "root")
        restart(cluster, "slurmctld", "slurmd")
        cluster.until(lambda: processors_of_a_job(cluster) == ["16"], "jobs do not get whole nodes")
        held = cluster.batch("-H", "true")
        running = cluster.batch("-w n2", "sleep 600")
        cluster.until(lambda: cluster.state(running) == "RUNNING", "the job does not start")
        said = reconfigure(cluster, "SelectType=select/cons_tres", "SelectTypeParameters=CR_CPU")
        if release == "22.05":
            assert "SelectType change requires restart of the slurmctld daemon" in said
            restart(cluster, "slurmctld", "slurmd")
        cluster.until(lambda: processors_of_a_job(cluster) == ["1"], "jobs get whole nodes")
        assert [cluster.state(job) for job in (held, running)] == ["PENDING", "RUNNING"]


def trackers(cluster: Cluster) -> tuple[str, str]:
    """Return the proctrack plugins of n1's slurmd, and of a step that it starts."""
    look = "grep -o 'proctrack_[a-z]*' /proc/{}/maps | sort -u"
    of_daemon = look.format("$(pgrep -f -o '^slurmd -D -N n1')")
    of_step = f"srun -w n1 sh -c {shlex.quote(look.format('$PPID'))}"
    daemon, step = (cluster.run(each, "root").stdout.strip() for each in (of_daemon, of_step))
    return daemon, step


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_other_lines(built_library: None, release: str) -> None:
    old, new = "proctrack_linuxproc", "proctrack_pgid"
    with slurm_cluster(release) as cluster:
        assert trackers(cluster) == (old, old)
        reconfigure(cluster, "ProctrackType=proctrack/pgid")
        if release == "22.05":
            cluster.until(lambda: trackers(cluster)[1] == new, "steps have another plugin")
            assert trackers(cluster) == (old, new)
            restart(cluster, "slurmd")
        cluster.until(lambda: trackers(cluster) == (new, new), "slurmd or its steps have another plugin")
        cluster.ask("printf '#!/bin/sh\ntouch /tmp/checked\n' >/tmp/check; chmod 755 /tmp/check", "root")
        reconfigure(cluster, "HealthCheckProgram=/tmp/check", "HealthCheckInterval=1")
        cluster.until(lambda: cluster.run("ls /tmp/checked").returncode == 0, "the health check does not run")
        check_accounting_storage_tres(cluster)


def check_accounting_storage_tres(cluster: Cluster) -> None:
    """There is no slurmdbd, and so a slurmctld that takes the line ends."""
    reconfigure(cluster, "AccountingStorageTRES=gres/gpu,gres/shard")
    if cluster.release == "22.05":
        assert "gres" not in cluster.ask("scontrol show config | grep AccountingStorageTRES")
        restart(cluster, "slurmctld")
    said = "slurmdbd is required to run with TRES gres/gpu"
    cluster.until(lambda: said in cluster.ask("cat /tmp/slurmctld.out"), "slurmctld goes on")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_gres_of_a_node_takes_a_restart_of_slurmctld(built_library: None) -> None:
    """A cluster of 22.05. The slurmctld of 24.11 may crash where it is not restarted."""

    def are_idle() -> bool:
        return cluster.run("sinfo -h -t idle -o %D").stdout.strip() == "2"

    with slurm_cluster("22.05") as cluster:
        cluster.ask("cp /etc/slurm/slurm.conf /tmp/full; sed -i 's/ Gres=.*//' /etc/slurm/slurm.conf", "root")
        restart(cluster, "slurmctld", "slurmd")
        cluster.until(are_idle, "nodes are not idle")
        cluster.ask("cp /tmp/full /etc/slurm/slurm.conf; scontrol reconfigure", "root")
        cluster.until(lambda: "shard:8" in cluster.ask("sinfo -h -o %G"), "the nodes have no shards")
        assert cluster.run("srun --gres=shard:1 echo it ran").stdout == ""
        restart(cluster, "slurmctld")
        cluster.until(are_idle, "nodes are not idle")
        assert cluster.ask("srun --gres=shard:1 echo it ran") == "it ran\n"
