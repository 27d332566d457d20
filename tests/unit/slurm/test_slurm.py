"""Slurm's files and programs: what they say of a node and of a job, and the quotas that follow."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support.second_user import UID, needs_two_users
from vgpurun import abi
from vgpurun.errors import LimitError, SlurmError
from vgpurun.host.gpus import Gpu
from vgpurun.limits.quota import Quota
from vgpurun.slurm import accounting, check, conf, job, log, node, plugin, scripts
from vgpurun.slurm.accounting import Used, merged
from vgpurun.slurm.conf import GresLine
from vgpurun.slurm.job import GpuShare, parse_shares
from vgpurun.slurm.share import Asked, gpu_at, job_quotas

GIB = 1 << 30
SLURM_CONF = """
GresTypes=gpu,shard # as here
SelectType=select/cons_tres
PrologFlags=Alloc,Contain
HealthCheckProgram={folder}/health
HealthCheckInterval=300
CliFilterPlugins=cli_filter/lua
Prolog={folder}/prolog
Epilog={folder}/epilog
TaskPlugin=task/affinity,\\
task/cgroup
NodeName=n[01-02] CPUs=16 Gres=gpu:2,shard:8
"""
GRES_CONF = """
AutoDetect=off
NodeName=n[01-02] Name=gpu File=/dev/nvidia[0-1]
NodeName=n[01-02] Name=shard Count=8
NodeName=m1 Name=gpu Type=a100 File=/dev/nvidia0
"""


def gpu(number: int, memory_gib: int = 8, **others: object) -> Gpu:
    return Gpu(number, f"GPU-{number}", "A GPU", memory_gib * GIB, number, "", **others)  # type: ignore[arg-type]


@pytest.fixture
def cluster_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write slurm.conf and the files beside it, with one text in the place of another."""

    def write(old: str = "", new: str = "", plugstack: str = "required {folder}/spank_vgpurun.so\n") -> Path:
        files = {
            "slurm.conf": SLURM_CONF,
            "gres.conf": GRES_CONF,
            "cgroup.conf": "ConstrainDevices=yes\n",
            "cli_filter.lua": "local SHARDS = 4 -- of each GPU\n",
            "plugstack.conf": plugstack,
            "prolog": "#!/bin/sh\nPATH={folder}:$PATH\nvgpurun slurm prolog\nexit 0\n",
            "epilog": "#!/bin/sh\nexport PATH={folder}\nvgpurun slurm epilog\nexit 0\n",
            "health": "#!/bin/sh\n{folder}/vgpurun slurm sweep\n",
            "vgpurun": "",
            "spank_vgpurun.so": "vgpurun spank plugin slurm=0x160508 ",
        }
        for name, text in files.items():
            path = tmp_path / name
            path.write_text((text.replace(old, new) if old else text).replace("{folder}", str(tmp_path)))
            path.chmod(0o755)
        return tmp_path / "slurm.conf"

    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setattr(plugin, "installed_release", lambda: (22, 5))
    monkeypatch.setattr(check, "_library", lambda *_: iter(()))
    return write


@pytest.mark.parametrize(
    ("names", "expanded"),
    [
        ("n1", ["n1"]),
        ("n1,m[1-2]", ["n1", "m1", "m2"]),
        ("n[08-10,12]", ["n08", "n09", "n10", "n12"]),
        ("/dev/nvidia[0-1]", ["/dev/nvidia0", "/dev/nvidia1"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("", []),
    ],
)
def test_lists_of_names(names: str, expanded: list[str]) -> None:
    assert conf.expand(names) == expanded


def test_lines_are_joined_and_included(cluster_files: Callable[..., Path]) -> None:
    path = cluster_files("NodeName=n[01-02] CPUs", "Include nodes.conf\n#")
    path.with_name("nodes.conf").write_text("NodeName=n[01-02] CPUs=16 Gres=gpu:2\n")
    assert (
        conf.values(path)["taskplugin"] == "task/affinity,task/cgroup" and conf.values(path)["grestypes"] == "gpu,shard"
    )
    assert conf.node_settings(path, "n02")["gres"] == "gpu:2"
    assert conf.node_settings(path, "n03") == {}


def test_gres_conf_is_read_for_one_node(cluster_files: Callable[..., Path]) -> None:
    gres = cluster_files().with_name("gres.conf")
    assert conf.gres_lines(gres, "n01") == [GresLine("gpu", None, (0, 1)), GresLine("shard", 8, ())]
    assert conf.gres_lines(gres, "m1") == [GresLine("gpu", None, (0,))]


def record(gres: str, name: str = "train", comment: str = "", head: str = "JobId=7") -> str:
    """Print a job as scontrol 24.11 does, with names and comments as its user wrote them."""
    return (
        f"{head} JobName={name}\n   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A\n"
        "   Priority=1 Nice=0 Account=(null) QOS=(null)\n   JobState=RUNNING Reason=None Dependency=(null)\n"
        "   ReqNodeList=(null) ExcNodeList=(null)\n   NodeList=n[01-02]\n   BatchHost=n01\n   JOB_GRES=x\n"
        f"     Nodes=n01 CPU_IDs=0 Mem=0 GRES=\n     Nodes=n02 CPU_IDs=0-1 Mem=0 GRES={gres}\n"
        f"   MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0\n   Comment={comment} \n   \n\n"
    )


SHARD = "shard:1(0/4,1/4)"
FORGED = "a Nodes=n02 CPU_IDs=0 Mem=0 GRES=shard:99(99/100,0/4) JobState=COMPLETED NodeList=x b"
FORGED_LINES = (
    FORGED.replace(" ", "\n     ", 1).replace(" JobState", "\n   JobState").replace(" NodeList", "\n   NodeList")
)


@pytest.mark.parametrize("text", [record(SHARD, name=FORGED), record(SHARD, comment=FORGED)])
def test_a_users_words_are_no_share_and_end_no_job(
    cluster_files: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(job, "ask", lambda *_: text)
    assert job.shares_of("7", "n02", cluster_files().with_name("gres.conf")) == [GpuShare(1, 1, 4)]
    assert job.is_on("7", "n02") and not job.is_on("7", "n03")


@pytest.mark.parametrize("text", [record(SHARD, name=FORGED_LINES), record(SHARD, comment=FORGED_LINES)])
def test_lines_like_slurms_own_give_no_share_and_end_no_job(
    cluster_files: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(job, "ask", lambda *_: text)
    with pytest.raises(SlurmError, match="looks like what it has of n02; take the line breaks out"):
        job.shares_of("7", "n02", cluster_files().with_name("gres.conf"))
    assert job.is_on("7", "n02")


@pytest.mark.parametrize(
    ("head", "one"),
    [
        ("JobId=7 ArrayJobId=7 ArrayTaskId=3 ArrayTaskThrottle=1", "7_3"),
        ("JobId=7 HetJobId=7 HetJobOffset=0", "7+0"),
    ],
)
def test_a_job_is_told_from_the_others_of_its_array(
    cluster_files: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, head: str, one: str
) -> None:
    """A name with line breaks could make its job look like two of the array."""
    mine, another = record(SHARD, head=head), record("gpu:1(IDX:0)", head=head.replace("JobId=7", "JobId=8", 1))
    monkeypatch.setattr(job, "ask", lambda *words: mine if words[-1] == one else mine + another)
    assert job.shares_of("7", "n02", cluster_files().with_name("gres.conf")) == [GpuShare(1, 1, 4)]
    assert job.is_on("7", "n02")


def test_a_job_that_slurm_has_forgotten(cluster_files: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """An array may have other tasks yet."""
    monkeypatch.setattr(job, "ask", lambda *_: record(SHARD, head="JobId=8 ArrayJobId=7 ArrayTaskId=2"))
    assert not job.is_on("7", "n02")
    with pytest.raises(SlurmError, match="knows no job 7"):
        job.shares_of("7", "n02", cluster_files().with_name("gres.conf"))


@pytest.mark.parametrize(
    ("gres", "shares"),
    [
        ("shard:3(0/4,3/4)", [GpuShare(1, 3, 4)]),
        ("shard:a100:5(4/4,1/4)", [GpuShare(0, 4, 4), GpuShare(1, 1, 4)]),
        ("shard:3(IDX:1)", [GpuShare(1, 3, 4)]),
        ("gpu:2(IDX:0-1)", [GpuShare(0), GpuShare(1)]),
        ("gpu:tesla:1(IDX:1),craynetwork:1", [GpuShare(1)]),
        ("", []),
    ],
)
def test_a_jobs_shares_in_both_forms(cluster_files: Callable[..., Path], gres: str, shares: list[GpuShare]) -> None:
    gres_conf = cluster_files().with_name("gres.conf")
    assert parse_shares(record(gres), "n02", gres_conf) == shares
    assert parse_shares(record(gres), "n01", gres_conf) == []


def test_a_share_that_cannot_be_told_is_refused(cluster_files: Callable[..., Path]) -> None:
    gres_conf = cluster_files().with_name("gres.conf")
    with pytest.raises(SlurmError, match="does not tell how the shards of shard:5"):
        parse_shares(record("shard:5(IDX:0-1)"), "n02", gres_conf)
    with pytest.raises(SlurmError, match="does not say how many shards GPU 0 has"):
        job.all_shards([GresLine("gpu", None, (0,))], 0)


def test_shards_of_one_gpu_each(cluster_files: Callable[..., Path]) -> None:
    lines = [GresLine("gpu", None, (0, 1)), GresLine("shard", 4, (0,)), GresLine("shard", 10, (1,))]
    assert [job.all_shards(lines, index) for index in (0, 1)] == [4, 10]
    assert [job.all_shards([lines[0], GresLine("shard", 7, ())], index) for index in (0, 1)] == [4, 3]


def quotas(*shares: GpuShare, memory: str = "", sm: str = "") -> list[tuple[str, Quota]]:
    gpus = [gpu(0), gpu(1)]
    return [(each.gpu.uuid, each.quota) for each in job_quotas(shares, Asked(memory, sm), gpus, [])]


def test_shards_are_parts_of_memory_and_time() -> None:
    assert quotas(GpuShare(1, 3, 4)) == [("GPU-1", Quota(6 * GIB, 75))]
    assert quotas(GpuShare(0, 1, 3)) == [("GPU-0", Quota(8 * GIB // 3, 33))]
    assert quotas(GpuShare(0, 1, 4), memory="1500m", sm="10") == [("GPU-0", Quota(1500 << 20, 10))]


def test_whole_gpus_are_limited_where_that_is_asked_for() -> None:
    assert quotas(GpuShare(0), GpuShare(1)) == []
    assert quotas(GpuShare(1), memory="25%") == [("GPU-1", Quota(2 * GIB, None))]
    assert quotas(GpuShare(0), sm="100") == [("GPU-0", Quota(None, None))]


def test_more_than_the_share_is_refused() -> None:
    with pytest.raises(SlurmError, match="--vgpu-mem 3g is more than the job's part of the GPU, 2 GiB"):
        quotas(GpuShare(0, 1, 4), memory="3g")
    with pytest.raises(SlurmError, match="--vgpu-sm 26 is more than the job's 25 %"):
        quotas(GpuShare(0, 1, 4), sm="26")
    with pytest.raises(SlurmError, match="less than 1 %"):
        quotas(GpuShare(0, 1, 200))
    with pytest.raises(LimitError, match="'much' is not a size"):
        quotas(GpuShare(0, 1, 4), memory="much")
    with pytest.raises(SlurmError, match="gave the job GPU 2, and there are 2"):
        quotas(GpuShare(2, 1, 4))


def test_slurms_indexes_are_those_of_gres_conf() -> None:
    in_nvmls_order = [replace(gpu(0), minor_number=2), gpu(1), gpu(3)]
    assert [gpu_at(index, in_nvmls_order, []).minor_number for index in range(3)] == [1, 2, 3]
    some = [GresLine("gpu", None, (3,)), GresLine("gpu", None, (1,)), GresLine("shard", 8, ())]
    assert [gpu_at(index, in_nvmls_order, some).minor_number for index in range(2)] == [1, 3]
    card = [gpu(0, mig_index=1), gpu(0, mig_index=0), gpu(1)]
    each = [GresLine("gpu", None, (0,)), GresLine("gpu", None, (0,)), GresLine("gpu", None, (1,))]
    for conf_lines in ([], each):
        assert [gpu_at(index, card, conf_lines).mig_index for index in range(3)] == [0, 1, None]


def test_a_sweep_goes_on_past_what_is_no_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(abi, "LOCK_DIR", str(tmp_path / "tenants"))
    monkeypatch.setattr(node, "is_on", lambda *_: False)
    for name in ("7", "slurm.conf~"):
        node.refusal(name).mkdir(parents=True)
    for name in ("8", ".9.0a1b2c3d"):
        node.refusal(name).write_text("no shards\n")
    half_made = tmp_path / "slices" / ".slurm-9-abc"
    half_made.mkdir(parents=True)
    assert list(node.sweep("n1")) == []
    assert {each.name for each in (tmp_path / "slurm").iterdir()} == {"7", "slurm.conf~"}
    assert not half_made.exists()


@pytest.mark.parametrize(
    ("conf_text", "place"),
    [
        ("SlurmdLogFile={folder}/%n.log", "n1.log"),
        ("SlurmdLogFile={folder}/none/%n.log", "syslog"),
        ("", "syslog"),
        (None, "syslog"),
    ],
)
def test_no_line_for_the_log_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, conf_text: str | None, place: str
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setattr(log, "_to_syslog", (tmp_path / "syslog").write_text)
    if conf_text is not None:
        (tmp_path / "slurm.conf").write_text(conf_text.format(folder=tmp_path))
    log.error("job 7 has no share", "n1")
    assert (tmp_path / place).read_text().rstrip().endswith("vgpurun: job 7 has no share")
    assert {each.name for each in tmp_path.iterdir()} <= {"slurm.conf", place}


def test_no_other_gpu_is_taken_for_one_that_is_lost() -> None:
    both = [GresLine("gpu", None, (0, 1))]
    assert gpu_at(1, [gpu(1)], both) == gpu(1)
    with pytest.raises(SlurmError, match=r"has 1 of GPU 0 \(minor number 0\), and the driver shows 0"):
        gpu_at(0, [gpu(1)], both)
    with pytest.raises(SlurmError, match="and the driver shows 3"):
        gpu_at(0, [gpu(0, mig_index=index) for index in range(3)], both)


def wrong(cluster_files: Callable[..., Path], *change: str, **others: str) -> list[str]:
    cluster_files(*change, **others)
    return [f"{each.name}: {each.words}" for each in check.examine("n01") if each.status != "ok"]


def test_a_cluster_that_is_set_up_has_nothing_wrong(cluster_files: Callable[..., Path]) -> None:
    assert wrong(cluster_files) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("GresTypes=gpu,shard", "GresTypes=gpu"), "has no shard in it"),
        (("select/cons_tres", "select/linear"), "select/linear does not share GPUs"),
        (("shard:8", "mps:8"), "whole GPUs alone"),
        (("gpu:2,", "gpu:a100:4,"), "it has 2 of gpu for node n01, and slurm.conf has 4: Slurm drains such a node"),
        (("shard:8", "shard:6"), "it has 8 of shard for node n01, and slurm.conf has 6"),
        (("SHARDS = 4", "SHARDS = 8"), "counts 8 shards a GPU, and gres.conf has 4"),
        (("HealthCheckProgram={folder}/health", ""), "there is none: after a reboot the shares of jobs that are gone"),
        (
            ("HealthCheckProgram={folder}/health", "HealthCheckProgram=/usr/sbin/nhc"),
            "does not run vgpurun slurm sweep",
        ),
        (("HealthCheckInterval=300", ""), "there is no HealthCheckInterval"),
        (
            ("{folder}/vgpurun slurm sweep", "/opt/vgpurun slurm sweep"),
            "health does not find vgpurun, since its PATH is",
        ),
        (("PATH={folder}:$PATH\nvgpurun", "vgpurun"), "prolog does not find vgpurun, since its PATH is /"),
        (
            ("export PATH={folder}", "PATH={folder}\nPATH=/usr/bin"),
            "epilog does not find vgpurun, since its PATH is /usr",
        ),
        (("vgpurun slurm epilog", "# vgpurun slurm epilog"), "does not run vgpurun slurm epilog"),
        (("vgpurun slurm epilog", "true # vgpurun slurm epilog"), "does not run vgpurun slurm epilog"),
        (("PrologFlags=", "PrologEpilogTimeout=10\nPrologFlags="), "one cut off after 10 s drains its node"),
        (("spank_vgpurun.so\n", "spank_vgpurun.so state=/elsewhere\n"), "no job finds its share"),
        (("NodeName=n[01-02] Name=shard Count=8", ""), "it has no shards for node n01"),
        (("Prolog={folder}/prolog", ""), "there is none, and vgpurun slurm prolog has to run in it"),
        (("vgpurun slurm epilog", "true"), "does not run vgpurun slurm epilog"),
        (("PrologFlags=Alloc,Contain", ""), "without Alloc"),
        (("required", "optional"), "has it as optional: where it does not load, jobs would run without limits"),
        (("required {folder}/spank_vgpurun.so\n", ""), "nothing is held"),
        (("{folder}/spank_vgpurun.so", "{folder}/vgpurun_gone.so"), "no job starts here"),
        (("slurm=0x160508", "slurm=0x180b05"), "is for Slurm 24.11, which 22.05 does not load"),
        (("ConstrainDevices=yes", ""), "reaches all of them"),
    ],
)
def test_each_thing_wrong_is_said(cluster_files: Callable[..., Path], change: tuple[str, str], words: str) -> None:
    found = wrong(cluster_files, *change)
    assert len(found) == 1 and words in found[0], found


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/sh\n. {folder}/real\n",
        '#!/bin/bash\nsource "$(dirname "$0")/real" || exit 1\n',
        "#!/bin/bash\n${{0%/*}}/real\n",
        "#!/bin/sh\nfor each in {folder}/re*; do $each; done\n",
        "#!/bin/sh\nrun-parts {folder}/prolog.d\n",
        "#!/bin/sh\nVGPURUN={folder}/vgpurun\n$VGPURUN slurm prolog\n",
        "#!/bin/sh\nPATH=$(getconf PATH):/opt/bin; vgpurun slurm prolog\n",
        '#!/usr/bin/python3\nsubprocess.run(["{folder}/vgpurun", "slurm", "prolog"])\n',
    ],
)
def test_a_prolog_may_run_the_verb_in_its_own_way(cluster_files: Callable[..., Path], text: str) -> None:
    folder = cluster_files().parent
    (folder / "prolog").rename(folder / "real")
    (folder / "prolog.d").mkdir()
    (folder / "prolog.d" / "50-vgpurun").symlink_to(folder / "real")
    (folder / "prolog").write_text(text.format(folder=folder))
    (folder / "prolog").chmod(0o755)
    assert [each.words for each in check.examine("n01") if each.status != "ok"] == []
    (folder / "real").write_text("exit 0\n")
    if "real" in text:
        (found,) = (each for each in check.examine("n01") if each.status != "ok")
        assert "does not run vgpurun slurm prolog" in found.words


@pytest.mark.parametrize(
    "content", [b"\x7fELF\0/a\0b vgpurun slurm prolog", b"#!/bin/sh\n/ // /** //x /\xff/* $/ .d /.d /" + b"x" * 300]
)
def test_a_prolog_that_is_no_text_or_strange_does_not_run_it(
    cluster_files: Callable[..., Path], content: bytes
) -> None:
    folder = cluster_files().parent
    (folder / "prolog").write_bytes(content)
    (found,) = (each for each in check.examine("n01") if each.status != "ok")
    assert "does not run vgpurun slurm prolog" in found.words


@pytest.mark.parametrize("shell", ["{folder}/its-own-sh", "/bin/../{folder}/its-own-sh", "/bin/nonesh"])
def test_no_program_is_run_because_a_script_names_it(cluster_files: Callable[..., Path], shell: str) -> None:
    folder = cluster_files().parent
    (folder / "its-own-sh").write_text(f"#!/bin/sh\ntouch {folder}/run\n")
    (folder / "its-own-sh").chmod(0o755)
    (folder / "prolog").write_text(f"#!{shell.format(folder=folder)}\nPATH={folder}:$PATH\nvgpurun slurm prolog\n")
    assert [each.words for each in check.examine("n01") if each.status != "ok"] == []
    assert not (folder / "run").exists()


def test_a_shell_that_does_not_say_its_path_is_nothing_wrong(
    cluster_files: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "_PATIENCE_S", 0)
    assert wrong(cluster_files, "PATH={folder}:$PATH\nvgpurun", "vgpurun") == []


def test_the_prolog_is_one_of_several(cluster_files: Callable[..., Path]) -> None:
    path = cluster_files("Prolog={folder}/prolog", "Prolog={folder}/prolog\nProlog={folder}/own")
    path.with_name("own").write_text("#!/bin/sh\n")
    assert [each.words for each in check.examine("n01") if each.status != "ok"] == []


@needs_two_users
def test_what_another_user_has_written_is_not_read(cluster_files: Callable[..., Path], tmp_path: Path) -> None:
    cluster_files()
    (tmp_path / "prolog").write_text(f"#!/bin/sh\n. {tmp_path}/real\n")
    (tmp_path / "real").write_text(f"{tmp_path}/vgpurun slurm prolog\n")
    os.chown(tmp_path / "real", UID, UID)
    (found,) = (each for each in check.examine("n01") if each.status != "ok")
    assert "does not run vgpurun slurm prolog" in found.words


@needs_two_users
@pytest.mark.parametrize("script", ["prolog", "epilog", "health"])
def test_a_script_of_another_user_is_not_for_root_to_run(
    cluster_files: Callable[..., Path], tmp_path: Path, script: str
) -> None:
    cluster_files()
    os.chown(tmp_path / script, UID, UID)
    (found,) = (each for each in check.examine("n01") if each.status != "ok")
    assert (found.status, found.words) == ("FAIL", f"{tmp_path / script} is not root's, and runs as root")


def test_a_release_that_tells_no_shards_needs_the_gpus_in_gres_conf(
    cluster_files: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = wrong(cluster_files, "NodeName=n[01-02] Name=gpu File=/dev/nvidia[0-1]", "AutoDetect=nvml")
    assert "it names no GPU of node n01" in found
    monkeypatch.setattr(plugin, "installed_release", lambda: (24, 11))
    path = cluster_files("NodeName=n[01-02] Name=gpu File=/dev/nvidia[0-1]", "AutoDetect=nvml")
    path.with_name("spank_vgpurun.so").write_text("vgpurun spank plugin slurm=0x180b05 ")
    assert [each.words for each in check.examine("n01") if each.status != "ok"] == []


def test_more_shards_than_percent_are_refused(cluster_files: Callable[..., Path]) -> None:
    path = cluster_files("Count=8", "Count=300")
    path.write_text(path.read_text().replace("shard:8", "shard:300"))
    found = [each.words for each in check.examine("n01") if each.name == "gres.conf"]
    assert found == ["a GPU of node n01 has 150 shards: one is less than 1 % of its time, and no job can have it"]


def test_mig_instances_and_a_card_with_shards_are_nothing_wrong(cluster_files: Callable[..., Path]) -> None:
    path = cluster_files("gpu:2,shard:8", "gpu:3g.20gb:1(S:0),gpu:1g.5gb:1,gpu:a100:1,shard:4")
    path.with_name("gres.conf").write_text(
        "Name=gpu Type=3g.20gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21\n"
        "Name=gpu Type=1g.5gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap30\n"
        "Name=gpu Type=a100 File=/dev/nvidia1\nName=shard Count=4 File=/dev/nvidia1\n"
    )
    assert [each.words for each in check.examine("n01") if each.status != "ok"] == []


def test_a_cluster_without_gres_conf(cluster_files: Callable[..., Path]) -> None:
    gres_conf = cluster_files().with_name("gres.conf")
    gres_conf.unlink()
    (found,) = (each for each in check.examine("n01") if each.status != "ok")
    assert found.words == f"there is no {gres_conf}" and "Name=shard Count=M" in found.remedy


def test_without_slurm_conf_that_is_all_there_is_to_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none"))
    (found,) = check.examine("n01")
    assert found.status == "FAIL" and "cannot be read" in found.words


def test_a_task_prolog_alone_is_called_weaker(cluster_files: Callable[..., Path], tmp_path: Path) -> None:
    found = wrong(cluster_files, "PrologFlags", f"TaskProlog={tmp_path}/prolog\nPrologFlags", plugstack="")
    assert len(found) == 1 and "nothing is held" in found[0]
    (tmp_path / "task").write_text("export VGPURUN_LIMITS_FILE=")
    found = wrong(cluster_files, "PrologFlags", f"TaskProlog={tmp_path}/task\nPrologFlags", plugstack="")
    assert len(found) == 1 and "`env -i` in a job lifts its limits" in found[0]


def test_each_node_of_a_job_adds_its_part_to_the_comment() -> None:
    first = merged("", "n1", Used(20.06, 0))
    assert first == "vgpurun: gpu_seconds=20.1 refusals=0 n1=20.1/0"
    both = merged(first, "n2", Used(17.4, 2))
    assert both == "vgpurun: gpu_seconds=37.5 refusals=2 n1=20.1/0 n2=17.4/2"
    assert merged(both, "n2", Used(17.4, 2)) == both
    assert merged("checked by ann", "n1", Used(1, 0)) == "checked by ann; vgpurun: gpu_seconds=1.0 refusals=0 n1=1.0/0"
    assert merged("a; vgpurun: gpu_seconds=1.0 refusals=0 n1=1.0/0; b", "n1", Used(2, 0)) == (
        "a; b; vgpurun: gpu_seconds=2.0 refusals=0 n1=2.0/0"
    )


def test_a_part_that_another_node_has_overwritten_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """n2 reads before n1 writes, and writes afterwards."""
    kept = [""]

    def ask(program: str, *arguments: str) -> str:
        if program == "sacct":
            return f"8|other\n7|{kept[0]}\n"
        written = arguments[-1].removeprefix("AdminComment=")
        kept[0] = merged("", "n2", Used(5, 0)) if not kept[0] else written
        return ""

    monkeypatch.setattr(accounting, "ask", ask)
    monkeypatch.setattr(accounting, "_SETTLES_S", 0.0)
    accounting.note("7", "n1", Used(2, 1), is_alone=False)
    assert kept == ["vgpurun: gpu_seconds=7.0 refusals=1 n1=2.0/1 n2=5.0/0"]
