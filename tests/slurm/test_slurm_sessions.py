"""Sessions that are adopted by a job, as those of ssh, are held to its share by the PAM module."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_cluster import PROGRAM, Cluster, constrained_cluster
from support import CHECKOUT
from support.debian_packages import unpacked

PYTHONPATH = f"PYTHONPATH={CHECKOUT}/tests"
GROUPS = f"/tmp/cgroups/vgpurun-test-{os.getpid()}"


@pytest.fixture
def adopting(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster whose `su` ends up in a job's cgroup, as pam_slurm_adopt puts a session of ssh, and has the module."""
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
    return cluster.on("n1", f"{adopt}; {PYTHONPATH} su alice -c '{command}' 2>&1 || true")


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


OPENSSH = ("openssh-server", "openssh-client", "libpam-slurm-adopt", "libpam0g-dev", "libssl3t64", "libwrap0",
           "libwtmpdb0")  # fmt: skip
# These lines are those of docs/slurm.md. The machine's name is not the node's, so pam_slurm_adopt has to be told.
START = """
vgpurun slurm build-plugin --pam
cat >>/etc/pam.d/sshd <<RULES
account required pam_slurm_adopt.so nodename=n1
session required /usr/local/lib/slurm/pam_vgpurun.so
RULES
echo 'sshd:x:974:65534::/run/sshd:/usr/sbin/nologin' >>/etc/passwd
for user in alice bob; do echo "$user:*:20000::::::" >>/etc/shadow; done
mkdir -p /run/sshd /etc/ssh/keys
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
for user in alice bob; do
  install -d -m 700 -o $user -g $user /home/$user/.ssh
  ssh-keygen -q -t ed25519 -N '' -f /home/$user/.ssh/id_ed25519
  chown $user:$user /home/$user/.ssh/*
  cp /home/$user/.ssh/id_ed25519.pub /etc/ssh/keys/$user
done
printf 'UsePAM yes\nAuthorizedKeysFile /etc/ssh/keys/%%u\n' >/etc/ssh/sshd_config
/usr/sbin/sshd -f /etc/ssh/sshd_config -E /tmp/sshd.log
"""
CONTAIN = ["PrologFlags=Contain"]


@pytest.fixture
def by_ssh(built_library: Path) -> Iterator[Cluster]:
    """A cluster with sshd on n1, which keeps out users without a job there."""
    with constrained_cluster(CONTAIN, OPENSSH) as cluster:
        cluster.on("n1", START)
        yield cluster


def ssh(cluster: Cluster, command: str, user: str = "alice") -> subprocess.CompletedProcess[str]:
    return cluster.run(f"ssh -o StrictHostKeyChecking=no -o LogLevel=ERROR n1 '{command}'", user)


def until_out(cluster: Cluster, user: str) -> None:
    """End a user's jobs, and see that the node lets the user in no more."""
    cluster.ask(f"scancel -u {user}", "root")
    cluster.until(lambda: cluster.ask(f"squeue -h -u {user} -o %A", "root").split() == [], "the job stays")
    assert ssh(cluster, "echo it ran", user).stdout == ""


@pytest.mark.exhaustive  # the test above has a session's share, without sshd
def test_a_session_of_ssh_is_adopted_by_its_users_job(by_ssh: Cluster) -> None:
    """A user has a share, the other a job without a GPU; neither is let in without a job."""
    preloaded, opens = "cat /etc/ld.so.preload", "; : </dev/nvidia0"
    assert ssh(by_ssh, preloaded).returncode == 255 and "Access denied for user alice" in by_ssh.logs()
    by_ssh.ask("salloc --quiet --no-shell -w n1 --gres=shard:1")
    by_ssh.ask("salloc --quiet --no-shell -w n1", "bob")
    with by_ssh.start(f"ssh -o StrictHostKeyChecking=no n1 {PYTHONPATH} {PROGRAM}holds.py") as session:
        assert session.stdout is not None and session.stdout.readline() == "ready\n"
        done = ssh(by_ssh, f"echo $SLURM_JOB_ID; env -i {PYTHONPATH} {PROGRAM}allocates.py 800 1000")
        assert done.stdout == "1\n2048 ok CUDA_ERROR_OUT_OF_MEMORY\n", done.stderr
        of_bob = ssh(by_ssh, preloaded + opens, "bob")
        assert of_bob.stdout == "" and "/dev/nvidia0: Operation not permitted" in of_bob.stderr
        until_out(by_ssh, "alice")
        session.communicate(timeout=30)
    assert by_ssh.run("pgrep -f programs/holds.py$", "root").stdout == "" and by_ssh.slices("n1") == []
    with by_ssh.lenient_filter():
        by_ssh.ask("salloc --quiet --no-shell -w n1 --gres=shard:1 --vgpu-sm=26")
    refused = ssh(by_ssh, "echo it ran")
    assert "it ran" not in refused.stdout
    assert "has no share of a GPU here: --vgpu-sm 26 is more than the job's 25 %" in refused.stdout + refused.stderr
    by_ssh.tidy()
