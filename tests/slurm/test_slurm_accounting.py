"""A job's use of GPUs is in Slurm's own accounting, in a real slurmdbd with a real database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_cluster import PROGRAM, Cluster, slurm_cluster
from support import CHECKOUT

DATABASE = (
    "slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server-core", "mariadb-client-core", "libmariadb3", "libaio1",
    "liburing2", "libsnappy1v5", "libfmt9", "libdbus-1-3", "libedit2", "libncurses6",
    "libbsd0",
)  # fmt: skip
# The lines are those of docs/slurm.md.
TRES, WEIGHTS = "AccountingStorageTRES=gres/gpu,gres/shard", 'TRESBillingWeights="GRES/gpu=4,GRES/shard=1"'
# Starts both, and then slurmctld anew, which asks slurmdbd for what it counts.
START = """
mkdir -p /run/mysqld /tmp/database
mariadbd --no-defaults --user=root --datadir=/tmp/database --skip-grant-tables --skip-networking=0 --port=3306 \
  --socket=/run/mysqld/mysqld.sock --innodb-buffer-pool-size=64M >/tmp/mariadb.out 2>&1 </dev/null &
until mariadb --no-defaults -S /run/mysqld/mysqld.sock -e 'create database slurm_acct_db' 2>/dev/null; do
  sleep 0.1
done
cat >/etc/slurm/slurmdbd.conf <<CONF
DbdHost=node
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=root
StoragePass=any
StorageLoc=slurm_acct_db
LogFile=/tmp/slurmdbd.log
PidFile=/run/slurmdbd.pid
CONF
chmod 600 /etc/slurm/slurmdbd.conf
slurmdbd -D >/tmp/slurmdbd.out 2>&1 </dev/null &
cat >>/etc/slurm/slurm.conf <<CONF
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=node
{tres}
CONF
sed -i 's#^PartitionName=main.*#& {weights}#' /etc/slurm/slurm.conf
until sacctmgr -i add cluster test >/dev/null 2>&1; do sleep 0.2; done
pkill -9 slurmctld
slurmctld -D >/tmp/slurmctld.out 2>&1 </dev/null &
until [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ]; do sleep 0.2; done
sed -i 's/slurm epilog/slurm epilog --admin-comment/' /etc/slurm/epilog
"""


@pytest.fixture
def accounting_cluster(built_library: Path) -> Iterator[Cluster]:
    with slurm_cluster("22.05", more=DATABASE) as cluster:
        start = START.replace("{tres}", TRES).replace("{weights}", WEIGHTS)
        assert cluster.run(start, "root", timeout_s=60).returncode == 0, cluster.logs()
        yield cluster


@pytest.mark.exhaustive
def test_both_nodes_of_a_job_are_summed_up_in_its_comment(accounting_cluster: Cluster) -> None:
    cluster = accounting_cluster
    cluster.ask("touch /tmp/go")
    job = cluster.batch("-N2 --gres=shard:1", f"srun {PROGRAM}works.py 1")
    assert cluster.until_ended(job) == "COMPLETED", cluster.output(job, "err")

    def comment() -> str:
        return cluster.ask(f"sacct -j {job} -X -n -P -o AdminComment", "root").strip()

    cluster.until(lambda: "n1=" in comment() and "n2=" in comment(), "a node has not written")
    words = dict(word.split("=") for word in comment().removeprefix("vgpurun: ").split())
    seconds = [float(words[node].split("/")[0]) for node in ("n1", "n2")]
    assert min(seconds) > 0.2 and float(words["gpu_seconds"]) == pytest.approx(sum(seconds), abs=0.11)
    assert words["refusals"] == "0"


@pytest.mark.exhaustive
def test_shards_are_accounted_and_billed(accounting_cluster: Cluster) -> None:
    page = (CHECKOUT / "docs" / "slurm.md").read_text()
    assert TRES in page and WEIGHTS in page
    cluster = accounting_cluster
    ids = [cluster.batch(f"--gres={gres}", "true") for gres in ("shard:3", "gpu:2")]
    assert [cluster.until_ended(job) for job in ids] == ["COMPLETED", "COMPLETED"]
    shown = [cluster.ask(f"sacct -j {job} -X -n -P -o AllocTRES", "root").strip() for job in ids]
    assert shown == ["billing=3,cpu=1,gres/shard=3,node=1", "billing=8,cpu=1,gres/gpu=2,node=1"]


@pytest.mark.slow
def test_history_accounts_for_jobs_by_their_users(cluster: Cluster) -> None:
    cluster.ask("touch /tmp/go", "root")
    exporter = "vgpurun exporter --listen 127.0.0.1:9487 --history-interval 1"
    cluster.on("n1", f"({exporter} >/tmp/exporter.out 2>&1 </dev/null & echo $! >/tmp/exporter.pid)")
    try:
        job = cluster.batch("--gres=shard:2 -w n1", f"{PROGRAM}works.py 3", user="bob")
        assert cluster.until_ended(job) == "COMPLETED", cluster.output(job, "err")
    finally:
        cluster.ask("kill $(cat /tmp/exporter.pid); rm -f /tmp/go", "root")
    rows = json.loads(cluster.on("n1", "vgpurun history --by user --format json"))
    (of_bob,) = (row for row in rows if row["user"] == "bob")
    assert of_bob["gpu_seconds"] > 0.5
