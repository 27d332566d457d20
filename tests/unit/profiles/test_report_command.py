"""`vgpurun report` as a user starts it, on files as the library writes them."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

import support.made_profiles as made
from support import command_line
from vgpurun.profiles.model import KernelTotal


def report(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return command_line.run(["report", *map(str, arguments)], os.environ | variables)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.save([made.training(2)], tmp_path_factory.mktemp("runs") / "train")


def test_what_is_saved_is_read_back(profile: Path) -> None:
    from vgpurun.profiles.reader import read_profiles

    original = made.training(2)
    (read,) = read_profiles(profile)
    assert list(read.calls()) == original.call_list
    assert list(read.spans()) == original.span_list
    assert list(read.samples()) == original.sample_list
    assert list(read.totals) == original.totals and list(read.kernels) == original.kernels


def test_tables_and_a_page(profile: Path) -> None:
    done = report(profile)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("python train.py\n")
    assert done.stderr == f"vgpurun: wrote {profile / 'report.html'}\n"
    page = (profile / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and page.rstrip().endswith("</html>")
    assert len(page) < 300_000


@pytest.mark.slow
def test_the_page_goes_where_it_is_wanted(profile: Path, tmp_path: Path) -> None:
    assert report("-o", tmp_path / "page.html", profile).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    failed = report("-o", tmp_path / "missing" / "page.html", profile)
    assert failed.returncode == 125
    assert failed.stdout == ""
    assert failed.stderr == (
        f"vgpurun: cannot write {tmp_path / 'missing' / 'page.html'}: No such file or directory; "
        "--output names another place\n"
    )


def test_tables_alone(profile: Path, tmp_path: Path) -> None:
    done = report("--format", "text", profile)
    assert done.returncode == 0 and done.stderr == ""
    assert "cuStreamSynchronize" in done.stdout
    assert report("--format=text", "-o", tmp_path / "a.txt", profile).stdout == ""
    assert (tmp_path / "a.txt").read_text() == done.stdout


def test_json(profile: Path) -> None:
    described = json.loads(report("--format", "json", profile).stdout)
    assert described["processes"][0]["command"] == "python train.py"


def test_a_trace(profile: Path, tmp_path: Path) -> None:
    done = report("--format", "trace", profile)
    assert done.returncode == 0 and "ui.perfetto.dev" in done.stderr
    with gzip.open(profile / "trace.json.gz", "rt") as file:
        compressed = json.load(file)
    report("--format=trace", f"--output={tmp_path / 'trace.json'}", profile)
    assert json.loads((tmp_path / "trace.json").read_text()) == compressed


def test_files_of_alnair(profile: Path, tmp_path: Path) -> None:
    assert report("--format", "alnair", "-o", tmp_path / "logs", profile).returncode == 0
    assert (tmp_path / "logs" / "metrics.log").read_text().startswith("name:mem_used,count:")
    assert (tmp_path / "logs" / "timeline.log").read_text().startswith("name:cuInit, start:")


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["svg", "png"])
def test_pictures(profile: Path, tmp_path: Path, file_format: str) -> None:
    assert report("--format", file_format, "-o", tmp_path, profile).returncode == 0
    names = ["apis", "copies", "kernels", "memory-gpu0", "share-gpu0", "timeline", "waits"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{name}.{file_format}" for name in names]
    for path in tmp_path.iterdir():
        if file_format == "svg":
            assert xml.etree.ElementTree.parse(path).getroot().tag.endswith("svg")
        else:
            assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_names_of_programs_do_no_harm(tmp_path: Path) -> None:
    profiles = [made.training(2, pid=pid) for pid in (1, 2)]
    for profile in profiles:
        profile.command = "python </text><script>alert(1)</script> $x_1$ 训练 \x1b[2J"
        profile.kernels[0] = KernelTotal("</svg>\x1b\x01$\\frac{", 1, 10**12)
    folder = made.save(profiles, tmp_path / "run")
    done = report(folder)
    assert done.returncode == 0 and "\x1b" not in done.stdout
    assert done.stderr == f"vgpurun: wrote {folder / 'report.html'}\n"
    page = (folder / "report.html").read_text()
    assert "<script" not in page and "\x1b" not in page
    assert report("--format", "svg", folder).returncode == 0
    for path in (folder / "pictures").iterdir():
        xml.etree.ElementTree.parse(path)


def test_a_folder_without_profiles(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        done = report(folder)
        assert (done.returncode, done.stdout) == (125, "")
        assert done.stderr.startswith(f"vgpurun: profile folder {folder}") and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_without_the_extra_the_tables_are_left(profile: Path, tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError(name='matplotlib')")
    command, environment = [sys.executable, "-m", "vgpurun", "report"], os.environ | {"PYTHONPATH": str(tmp_path)}
    page = ["-o", tmp_path / "page.html"]
    done = subprocess.run([*command, *page, profile], env=environment, capture_output=True, text=True)
    assert done.returncode == 125 and done.stdout.startswith("python train.py\n")
    assert done.stderr == (
        f"vgpurun: pages and pictures need matplotlib: {sys.executable} -m pip install 'vgpurun[report]'; "
        "--format text needs nothing\n"
    )
    assert not (tmp_path / "page.html").exists()
    text = subprocess.run([*command, "--format=text", profile], env=environment, capture_output=True, text=True)
    assert (text.returncode, text.stdout) == (0, done.stdout)
