"""`vgpurun doctor`: each thing that can be wrong is found, and something that helps is said."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import make_gpus

from support import CHECKOUT, unavailable
from support.debian_packages import tool
from vgpurun import abi
from vgpurun.admission.capacity import capacities
from vgpurun.cli.views import findings
from vgpurun.config.file import ConfigFile
from vgpurun.config.values import Config
from vgpurun.diagnostics import doctor
from vgpurun.diagnostics.cleaned import cleaned_by
from vgpurun.diagnostics.finding import FAILED, OK, WARNING, Finding
from vgpurun.diagnostics.unusual import unusual_engine, unusual_gpus, unusual_host
from vgpurun.errors import ConfigError, GpuError
from vgpurun.host import mps
from vgpurun.host.drivers import EngineFacts
from vgpurun.host.gpus import GpuUse
from vgpurun.inventory.reservations import Holder
from vgpurun.limits.quota import Quota
from vgpurun.util import extras

(GPU,) = make_gpus(1)


def test_gpus() -> None:
    assert doctor.check_gpu(GPU, "default").status == OK
    exclusive = doctor.check_gpu(GPU, "exclusive process")
    assert exclusive.status == FAILED and "-c DEFAULT" in exclusive.remedy
    mig = doctor.check_gpu(replace(GPU, mig_enabled=True), "default")
    assert mig.status == WARNING and "-mig 0" in mig.remedy


def test_what_report_and_history_lack_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command that brings it; docs/install.md has the packages, and pyproject.toml the extras."""
    assert doctor.check_extras().words == "report, history, exporter and convert have all that they need"
    monkeypatch.setattr(extras, "lacking", lambda _: ["it"])
    said = doctor.check_extras()
    assert said.status == OK and "history --plot: " in said.words and "exporter, which fills history: " in said.words
    page = (CHECKOUT / "docs" / "install.md").read_text()
    project = (CHECKOUT / "pyproject.toml").read_text()
    for extra, (_, modules) in extras.OF_ANY_HOST.items():
        assert f"'vgpurun[{extra}]'" in said.words and f"the extra `{extra}`" in page
        assert all(f'"{module.replace("_", "-")}>=' in project for module in modules)


def test_what_holds_compute_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_CONTROL_DEVICE", tmp_path)
    assert doctor.check_compute_limits([GPU], is_simulated=False).words.startswith("held by the GPU's own scheduler")
    instance = replace(GPU, mig_index=0)
    assert (
        "on MIG instances launches are held" in doctor.check_compute_limits([GPU, instance], is_simulated=False).words
    )
    monkeypatch.setattr(doctor, "_CONTROL_DEVICE", tmp_path / "none")
    without = doctor.check_compute_limits([GPU], is_simulated=False)
    assert without.status == WARNING and without.words.startswith("launches are held")
    assert doctor.check_compute_limits([GPU], is_simulated=True).status == OK


def test_missing_nodes_fail() -> None:
    assert doctor.check_nodes([replace(GPU, minor_number=77)]).status == FAILED


@pytest.mark.parametrize(
    ("make", "status", "word"),
    [
        (lambda _: None, OK, "will be made"),
        (lambda path: (path.mkdir(), path.chmod(0o1777)), OK, "open to all"),
        (lambda path: (path.mkdir(), path.chmod(0o755)), FAILED, "0755"),
        (lambda path: (path.mkdir(), path.chmod(0o777)), WARNING, "remove each other's"),
        (lambda path: path.symlink_to("/tmp"), FAILED, "a link"),
        (lambda path: path.write_text(""), FAILED, "not a folder"),
    ],
)
def test_the_turns_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], status: str, word: str
) -> None:
    monkeypatch.setattr(doctor, "cleaned_by", lambda _: None)
    make(tmp_path / "lock")
    found = doctor.check_tenants_folder(tmp_path / "lock")
    assert found.status == status and word in found.words
    assert bool(found.remedy) == (status != OK)


PLACE = Path("/var/tmp/vgpulock")
AGED = "# of all\nq /var/tmp 1777 root root 30d\n"


@pytest.mark.parametrize(
    ("files", "by"),
    [
        ({}, None),
        ({"usr/lib/tmpfiles.d/tmp.conf": AGED}, "usr/lib/tmpfiles.d/tmp.conf"),
        ({"usr/lib/tmpfiles.d/tmp.conf": "q /var/tmp 1777 root root -\n#q /var/tmp 1777 root root 30d\n"}, None),
        ({"usr/lib/tmpfiles.d/tmp.conf": AGED, "etc/tmpfiles.d/tmp.conf": ""}, None),
        ({"usr/lib/tmpfiles.d/tmp.conf": AGED, "etc/tmpfiles.d/vgpurun.conf": f"d {PLACE} 1777 root root\n"}, None),
        ({"usr/lib/tmpfiles.d/tmp.conf": AGED, "etc/tmpfiles.d/own.conf": "x /var/tmp/vgpu*\n"}, None),
        ({"etc/tmpfiles.d/own.conf": "d /var 0755 - - 10d\nd /opt 0755 - - 1d\n"}, "etc/tmpfiles.d/own.conf"),
    ],
)
def test_a_folder_that_systemd_cleans_up(tmp_path: Path, files: dict[str, str], by: str | None) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert cleaned_by(PLACE, tmp_path) is None, "no systemd runs"
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert cleaned_by(PLACE, tmp_path) == (tmp_path / by if by else None)


def test_the_way_out_is_the_line_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "cleaned_by", lambda _: Path("/usr/lib/tmpfiles.d/tmp.conf"))
    path = tmp_path / "lock"
    path.mkdir()
    path.chmod(0o1777)
    found = doctor.check_tenants_folder(path)
    assert found.status == WARNING and "/usr/lib/tmpfiles.d/tmp.conf" in found.words
    line = found.remedy.removeprefix("as root: ").replace(str(path), str(PLACE))
    for page in ("lab-server.md", "troubleshooting.md", "kubernetes.md"):
        assert f"`{line}`" in (CHECKOUT / "docs" / page).read_text()


@pytest.mark.parametrize("is_spared", [True, False])
def test_systemd_goes_by_that_line(tmp_path: Path, is_spared: bool) -> None:
    folder, rules = tmp_path / "var/tmp/vgpulock/a-tenant", tmp_path / "etc/tmpfiles.d"
    folder.mkdir(parents=True)
    rules.mkdir(parents=True)
    (rules / "tmp.conf").write_text("q /var/tmp 1777 root root 0\n")  # whatever is there is too old
    if is_spared:
        (rules / "vgpurun.conf").write_text("d /var/tmp/vgpulock 1777 root root\n")
    clean = [tool("systemd-tmpfiles", "systemd"), "--clean", f"--root={tmp_path}"]
    subprocess.run(clean, capture_output=True, check=True, timeout=60)
    assert folder.exists() == is_spared


def test_a_folder_of_another_user(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    path = tmp_path / "lock"
    path.mkdir()
    path.chmod(0o1777)
    os.chown(path, 12345, 12345)
    assert "12345" in doctor.check_tenants_folder(path).words


@pytest.mark.parametrize("options", ["size=64k", "size=64m,nr_inodes=2"], ids=["no room", "no inodes"])
def test_a_full_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: str) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(tmp_path)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        unavailable("needs the right to mount a tmpfs")
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path / "state"))
    try:
        found = next(doctor.check_files())
        assert list(tmp_path.iterdir()) == [], "nothing is left behind"
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert (found.status, found.words) == (FAILED, f"nothing can be made in {tmp_path}: No space left on device")
    assert found.remedy.startswith("make room there")


@pytest.mark.parametrize(
    ("content", "status"),
    [("", OK), ("/opt/libjemalloc.so\n", WARNING), ("/usr/local/vgpu/libvgpu.so\n", FAILED)],
)
def test_preloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, status: str) -> None:
    (tmp_path / "preload").write_text(content)
    monkeypatch.setattr(doctor, "_PRELOAD", tmp_path / "preload")
    assert doctor.check_preloads().status == status


def test_conflicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_HAMI", (str(tmp_path),))
    monkeypatch.setattr(mps, "find_daemon", lambda: 7)
    found = {each.name: each for each in doctor.check_conflicts([GPU])}
    assert found["HAMi-core"].status == found["MPS"].status == WARNING
    assert "process 7" in found["MPS"].words and "quit" in found["MPS"].remedy


def test_how_containers_get_the_driver() -> None:
    cdi = EngineFacts(cdi_devices=frozenset({f"nvidia.com/gpu={GPU.uuid}"}))
    assert "CDI" in next(doctor.check_driver_in_containers([GPU], cdi, "auto")).words
    toolkit = EngineFacts(runtimes=frozenset({"nvidia"}))
    assert "Toolkit" in next(doctor.check_driver_in_containers([GPU], toolkit, "auto")).words
    (failed,) = doctor.check_driver_in_containers([GPU], EngineFacts(), "cdi")
    assert failed.status == FAILED and "nvidia-ctk" in failed.remedy


def test_a_library_that_does_not_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VGPURUN_LIBRARY", str(tmp_path / "none.so"))
    (found,) = doctor.check_library()
    assert (found.status, found.remedy) == (FAILED, "")


def test_a_library_that_cannot_be_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VGPURUN_LIBRARY", raising=False)
    monkeypatch.setattr(doctor.library, "build_folder", lambda: tmp_path)
    monkeypatch.setattr(doctor.library, "ROOT_FOLDER", tmp_path)
    (found,) = doctor.check_library()
    assert (found.status, found.remedy) == (WARNING, "vgpurun build; by root it is for all users")
    headers = tmp_path / "lib"
    headers.mkdir()
    (headers / "Makefile").write_text("print-includes:\n\t@echo\n")
    monkeypatch.setattr(doctor.library, "sources", lambda: headers)
    (found,) = doctor.check_library()
    assert found.status == FAILED and "the CUDA headers are not here" in found.words
    assert found.remedy == f"{sys.executable} -m pip install nvidia-cuda-runtime nvidia-nvml-dev"
    monkeypatch.setattr(extras, "find_spec", {}.get)  # an installation by `uv tool`
    (found,) = doctor.check_library()
    assert found.remedy == f"uv pip install --python {sys.executable} nvidia-cuda-runtime nvidia-nvml-dev"
    monkeypatch.setattr(doctor.library, "sources", lambda: CHECKOUT / "lib")
    make = [*doctor.library._make_command(), "headers", "CUDA_H="]
    assert f"'{found.remedy}'" in subprocess.run(make, capture_output=True, text=True).stderr
    monkeypatch.setenv("PATH", "")
    (found,) = doctor.check_library()
    assert found.status == FAILED and "make is not installed" in found.words and "build-in-docker" in found.remedy


def test_a_state_folder_that_cannot_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path / "file" / "below"))
    found = {each.name: each for each in doctor.check_files()}
    assert found["state folder"].status == FAILED and "VGPURUN_STATE_DIR" in found["state folder"].remedy
    assert found["tenants folder"].words.startswith(abi.LOCK_DIR)


def test_that_something_can_be_made_in_the_state_folder_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VGPURUN_STATE_DIR", "/proc/vgpurun")  # root may write there, says access(2)
    found = next(doctor.check_files())
    assert (found.status, found.words) == (FAILED, "nothing can be made in /proc: No such file or directory")
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path / "new" / "folder"))
    assert next(doctor.check_files()).status == OK
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_wrong_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    mistakes = {Path("a"): ConfigError("a:3: what is this?"), Path("b"): ConfigError("b: not there; remove it")}
    monkeypatch.setattr(doctor.config, "load", lambda: Config(ConfigFile(), ConfigFile(), mistakes))
    first, second = doctor.check_config()
    assert (first.status, first.words) == (FAILED, "a:3: what is this?") and "launches are refused" in first.remedy
    assert (second.status, second.words, second.remedy) == (FAILED, "b: not there", "remove it")


def test_without_driver_and_engine_all_else_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///none.sock")
    found = {each.name: each for each in doctor.examine(GpuError("no driver; install one"), "auto")}
    assert (found["driver"].status, found["driver"].remedy) == (FAILED, "install one")
    assert found["engine"].status == FAILED and "vgpurun local" in found["engine"].remedy
    assert {"library", "state folder", "cgroups", "MPS"} <= set(found)
    assert json.dumps([vars(each) for each in found.values()])


def test_turns_that_nobody_gives_and_that_host_memory_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    quota = Quota(8 << 40, takes_turns=True)
    holders = [Holder("container", name, name, "", "", Path("/none"), ((GPU.uuid, quota),)) for name in "ab"]
    (found,) = capacities([GPU], [GpuUse(0, None)], holders)
    monkeypatch.setattr(doctor.guarded, "is_running", lambda: False)
    assert [(each.name, each.status) for each in doctor.check_turns([found])] == [("turns", WARNING)] * 2
    monkeypatch.setattr(doctor.guarded, "is_running", lambda: True)
    (full,) = doctor.check_turns([found])
    assert "may hold 8 TiB" in full.words
    assert list(doctor.check_turns(capacities([GPU], [GpuUse(0, None)], []))) == []


@pytest.mark.parametrize(
    ("host", "engine", "status", "words"),
    [
        ("no cgroup v2", "", OK, "held by the library in each program; not by the driver: no cgroup v2"),
        ("", "it has no CDI, do this", WARNING, "the driver has limits of its own, but it has no CDI"),
        ("", "", OK, "held by the library, and by the driver (misc) whatever is loaded"),
    ],
)
def test_which_walls_hold_memory(
    monkeypatch: pytest.MonkeyPatch, host: str, engine: str, status: str, words: str
) -> None:
    monkeypatch.setattr(doctor.memory_limits, "lacking", lambda _: host)
    monkeypatch.setattr(doctor.memory_limits, "backend", lambda: "misc")
    monkeypatch.setattr(doctor.limits_device, "lacking_of_engine", lambda *_: engine)
    found = doctor.check_memory_limits([GPU], EngineFacts(), is_simulated=False)
    assert (found.status, found.words) == (status, words) and (found.remedy == "do this") == bool(engine)


@pytest.mark.parametrize(
    ("there", "word"),
    [
        ("dev/dxg", "WSL2"),
        ("etc/nv_tegra_release", "Jetson"),
        (".dockerenv", "container"),
        ("run/.containerenv", "container"),
    ],
)
def test_kinds_of_hosts_are_named(tmp_path: Path, there: str, word: str) -> None:
    assert list(unusual_host(tmp_path)) == []
    (tmp_path / there).parent.mkdir(exist_ok=True)
    (tmp_path / there).touch()
    (found,) = unusual_host(tmp_path)
    assert word in found.words and (found.status == OK or found.remedy)


def test_kinds_of_gpus_are_named() -> None:
    assert list(unusual_gpus([GPU])) == []
    shared, consumer = unusual_gpus([replace(GPU, name="NVIDIA GB10"), replace(GPU, name="NVIDIA GeForce RTX 4090")])
    assert shared.status == WARNING and "the host's" in shared.words
    assert consumer.status == OK and "not tried" in consumer.words


def test_kinds_of_engines_are_named() -> None:
    facts = EngineFacts(cgroup_driver="systemd", default_runtime="runc")
    assert list(unusual_engine(facts, "mount", True)) == list(unusual_engine(facts, "toolkit", False)) == []
    (reload,) = unusual_engine(facts, "toolkit", True)
    assert "Failed to initialize NVML" in reload.words and "CDI" in reload.remedy
    (gvisor,) = unusual_engine(replace(facts, default_runtime="runsc"), "mount", True)
    assert "gVisor" in gvisor.words and gvisor.status == WARNING
    (rootless,) = unusual_engine(replace(facts, is_rootless=True), "mount", True)
    assert rootless.status == OK


def test_what_is_found_fits_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/a/path" * 10
    found = [Finding("host", OK, "a word " * 20), Finding("folder", WARNING, path, "so make " * 10)]
    monkeypatch.setattr(findings, "terminal_width", lambda: 80)
    assert findings.show_findings(found, "table") == 0
    first, *others, last = capsys.readouterr().out.splitlines()
    assert first.startswith("ok    host") and last == "1 to look at"
    assert all(len(line) <= 80 or line.endswith(path) for line in (first, *others))
    assert sum(line.startswith(" " * 28) for line in others) == len(others) - 1
    monkeypatch.setattr(findings, "terminal_width", lambda: None)
    findings.show_findings(found, "table")
    assert len(capsys.readouterr().out.splitlines()) == 4, "a program reads lines"
