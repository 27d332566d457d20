"""Sessions that are adopted by a job, as those of ssh, are held to its share by the PAM module."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from slurm_cluster import PROGRAM, Cluster
from support import CHECKOUT
from support.debian_packages import unpacked

GROUPS = f"/tmp/cgroups/vgpurun-test-{os.getpid()}"


@pytest.fixture
def adopting(cluster: Cluster) -> Iterator[Cluster]:
    """One whose `su` ends up in a job's cgroup, as pam_slurm_adopt does it to a session of ssh, and has the module."""
    headers = unpacked("libpam0g-dev") / "usr" / "include"
    built = cluster.ask(f"vgpurun slurm build-plugin --pam --include {headers}", "root").strip()
    rules = f"auth required pam_permit.so\naccount required pam_permit.so\nsession required {built}"
    cluster.ask(f"cp /etc/pam.d/su /tmp; echo '{rules}' >/etc/pam.d/su; mkdir -p /tmp/cgroups", "root")
    mount = "mount -t cgroup2 none /tmp/cgroups || mount -t cgroup -o freezer none /tmp/cgroups"
    cluster.on("n1", f"{mount}; mkdir {GROUPS}")
    yield cluster
    cluster.ask("cp /tmp/su /etc/pam.d/su", "root")
    cluster.on("n1", f"find {GROUPS} -depth -type d -exec rmdir {{}} +; umount /tmp/cgroups")


def su(cluster: Cluster, job: str, command: str) -> str:
    """Run a user's command on n1 in a session that is in the cgroup of a job."""
    group = f"{GROUPS}/job_{job}/step_extern"
    adopt = f"mkdir -p {group}; echo $$ >{group}/cgroup.procs"
    return cluster.on("n1", f"{adopt}; PYTHONPATH={CHECKOUT}/tests su alice -c '{command}' 2>&1 || true")


def test_a_session_has_the_share_of_its_job(adopting: Cluster) -> None:
    job = adopting.batch("--gres=shard:1 -w n1", "sleep 60")
    adopting.until(lambda: adopting.slices("n1") == [f"slurm-{job}"], "there is no slice")
    assert "2048 ok CUDA_ERROR_OUT_OF_MEMORY\n" in su(adopting, job, f"{PROGRAM}allocates.py 1500 1700")
    assert su(adopting, str(int(job) + 1), "cat /etc/ld.so.preload") == ""  # a job without a share


def test_a_session_of_a_job_that_was_refused_a_share_is_refused(adopting: Cluster) -> None:
    adopting.on("n1", "mkdir -p /var/lib/vgpurun/slurm; echo a reason >/var/lib/vgpurun/slurm/999")
    shown = su(adopting, "999", "echo it ran")
    adopting.on("n1", "rm /var/lib/vgpurun/slurm/999")
    assert "it ran" not in shown and "job 999 has no share of a GPU here: a reason" in shown
