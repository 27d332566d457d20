"""docs/slurm.md, word for word: from a cluster that knows nothing of GPUs to a job that shows its share."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm_cluster import Cluster, constrained_cluster
from support import CHECKOUT
from support.page_steps import blocks, text_of_page

# A site's own lines of slurm.conf, beside those of the page. Here both nodes are of one machine.
SITE = """ClusterName=test
SlurmctldHost=node
SlurmUser=root
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
SlurmdSpoolDir=/var/spool/slurmd-%n
StateSaveLocation=/var/spool/slurmctld
SlurmdLogFile=/tmp/slurmd-%n.log
SlurmctldLogFile=/tmp/slurmctld.log
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
PartitionName=main Nodes=n1,n2 Default=YES
"""
EMPTY = """
pkill -9 slurmd
pkill -9 slurmctld
until ! pgrep -x 'slurmd|slurmctld'; do sleep 0.1; done
rm -r /var/spool/slurmctld/* /usr/local/lib/slurm
find /etc/slurm -type f ! -name sim.yaml -delete
"""
START = """
slurmctld -D >/tmp/slurmctld.out 2>&1 </dev/null &
start-node n1
start-node n2
until [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ]; do sleep 0.1; done
"""


def write(cluster: Cluster, name: str, text: str) -> None:
    cluster.ask(f"cat >/etc/slurm/{name} <<'TEXT'\n{text}\nTEXT", "root")


def checked(cluster: Cluster) -> list[list[str]]:
    """Two words of each line of `slurm check` on n1."""
    lines = cluster.run("vgpurun slurm check --node n1", "root").stdout.splitlines()
    return [line.split()[:2] for line in lines]


@pytest.mark.slow
def test_from_an_empty_node_to_a_job_that_shows_its_share(built_library: Path) -> None:
    slurm_conf, gres_conf, build, scripts, shown = blocks(text_of_page("slurm.md", "Set up"))
    gpus = re.search(r"NodeName=n\[1-2\] \.\.\. (.*)\n", slurm_conf)
    assert gpus
    nodes = "\n".join(f"NodeName=n{n} NodeHostname=node Port=700{n} CPUs=16 {gpus.group(1)}" for n in (1, 2))
    with constrained_cluster() as cluster:
        cluster.ask(EMPTY, "root")
        write(cluster, "slurm.conf", slurm_conf.replace(gpus.group(), f"{nodes}\n") + SITE)
        failed = [name for status, name in checked(cluster) if status == "FAIL"]
        assert failed == ["gres.conf", "Prolog", "Epilog", "plugin"]
        write(cluster, "gres.conf", f"AutoDetect=off\n{gres_conf}")
        library, rest = build.split("\n", 1)
        assert library == "vgpurun build"  # the checkout's is built, and other tests use it
        cluster.ask(f"cd {CHECKOUT}; set -e; {rest}{scripts}", "root")
        assert checked(cluster) == [line.split()[:2] for line in shown.splitlines()[1:]]  # 1 to look at
        write(cluster, "cgroup.conf", "ConstrainDevices=yes\nIgnoreSystemd=yes")
        assert checked(cluster)[-1] == ["all", "is"]
        cluster.ask(START, "root")
        page = text_of_page("slurm.md")
        command, *answer = re.findall(r"(?m)^    \$ (srun .*nvidia-smi.*)\n    (.*)\n    (.*)\n", page)[0]
        assert cluster.ask(command).splitlines()[:2] == answer
        ask_as_at_the_top(cluster, page)
        cluster.tidy()


def ask_as_at_the_top(cluster: Cluster, page: str) -> None:
    """The page's first commands, for programs that print the MiB which their GPU is said to have."""
    cluster.ask(f"cp {CHECKOUT}/examples/slurm/cli_filter.lua /etc/slurm; ln -s python3 /usr/bin/python", "root")
    cluster.ask("echo CliFilterPlugins=cli_filter/lua >>/etc/slurm/slurm.conf", "root")
    cluster.ask("install -d -o alice /srv/work", "root")
    commands = re.findall(r"(?m)^    (srun .* (\w+\.py)) +# ", page)
    for _, program in commands:
        cluster.ask(f"cp {CHECKOUT}/tests/slurm/programs/allocates.py /srv/work/{program}")
    shown = [cluster.ask(f"cd /srv/work; {command}") for command, _ in commands]
    cluster.ask("rm -r /srv/work", "root")
    assert shown == ["4096\n", "3000\n", "8192\n"]
