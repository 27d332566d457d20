"""Measures what vgpurun adds to a job on a cluster of real Slurm daemons: the prolog's time, and a job's without a GPU.

PYTHONPATH=tests:tests/slurm python tests/bench/slurm_prolog.py [RELEASE...]    as root
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

from slurm_cluster import RELEASES, Cluster, slurm_cluster

RUNS = 15


def median_ms(ask: Callable[[str], str], command: str, before: str = "true") -> float:
    timed = f"{before}; t=$(date +%s%N); {{ {command}; }} >/dev/null 2>&1; echo $(($(date +%s%N) - t))"
    return statistics.median(int(ask(timed)) / 1e6 for _ in range(RUNS))


def measure(cluster: Cluster) -> None:
    job = cluster.batch("--gres=shard:1 -w n1", "sleep 600")
    cluster.until(lambda: cluster.slices("n1") == [f"slurm-{job}"], "there is no slice")
    of_job = f"env SLURM_JOB_ID={job} SLURM_JOB_UID=1101 SLURMD_NODENAME=n1 SLURM_JOB_RESTART_COUNT=0"

    def on_node(command: str) -> str:
        return cluster.on("n1", command)

    prolog, gone = "/etc/slurm/prolog", f"rm -r /var/lib/vgpurun/slices/slurm-{job}"
    print(f"prolog of a job with shards   {median_ms(on_node, f'{of_job} SLURM_JOB_GPUS=0 {prolog}', gone):6.0f} ms")
    print(f"prolog of a job without a GPU {median_ms(on_node, f'{of_job} {prolog}'):6.1f} ms")
    whole = "srun -w n2 true"
    with_hooks = median_ms(cluster.ask, whole)
    of_none = "sed -i '/^Prolog=/d; /^Epilog=/d; /^CliFilter/d' /etc/slurm/slurm.conf; >/etc/slurm/plugstack.conf"
    cluster.ask(f"{of_none}; scontrol reconfigure; sleep 2", "root")
    print(f"srun without a GPU            {with_hooks:6.0f} ms, {median_ms(cluster.ask, whole):.0f} ms without vgpurun")


def main() -> None:
    for release in sys.argv[1:] or RELEASES:
        print(f"Slurm {release}, medians of {RUNS}:")
        with slurm_cluster(release) as cluster:
            measure(cluster)


if __name__ == "__main__":
    main()
