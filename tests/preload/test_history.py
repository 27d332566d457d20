"""`vgpurun history` from what a running exporter keeps, also over an exporter that is killed."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cuda_driver import Driver
from support import BARE_PYTHON, CHECKOUT, wait_until
from support.scraping import Exporter, exporter, under_limits, value
from support.suspension import Host, Program, programs

pytestmark = pytest.mark.slow

pytest.importorskip("prometheus_client")


def launch_when_told() -> None:
    """Launch as often as each line says, and say when all have ended."""
    d = Driver.started()
    d.mem_alloc(64 << 20)
    kernel = d.kernel("busy_1ms")
    print("ready", flush=True)
    for line in sys.stdin:
        for _ in range(int(line)):
            d.launch(kernel)
        d.synchronize()
        print("done", flush=True)


def history(environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vgpurun", "history", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def accounts(environment: dict[str, str], *options: str) -> list[dict[str, Any]]:
    done = history(environment, "--format", "json", *options)
    if done.returncode:
        return []
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.fixture
def program(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with under_limits(environment, launch_when_told, sm=99) as process:
        yield process


def launch(program: subprocess.Popen[str], times: int) -> None:
    program.stdin.write(f"{times}\n")
    program.stdin.flush()
    while program.stdout.readline() not in ("done\n", ""):
        pass


def test_what_a_program_used_over_an_exporter_that_is_killed(
    environment: dict[str, str], program: subprocess.Popen[str], tmp_path: Path
) -> None:
    name = f"process {program.pid}"
    options = ("--history-interval", "1")

    def counted_s(running: Exporter, at_least_s: float) -> float:
        """The value of the metric, and the history's too."""
        measured_s = value(running.scrape(), "vgpurun_container_gpu_seconds_total", container=name) or 0
        kept_s = sum(each["gpu_seconds"] for each in accounts(environment))
        return measured_s if measured_s >= at_least_s and kept_s == pytest.approx(measured_s) else 0

    with exporter(environment, *options) as running:
        wait_until(lambda: accounts(environment), "sample")
        launch(program, 50)
        first_s = wait_until(lambda: counted_s(running, 0.03), "the GPU time in the history")
        running.process.kill()
    launch(program, 100)
    with exporter(environment, *options) as running:
        wait_until(lambda: counted_s(running, first_s + 0.06), "what was used while no exporter ran")
        running.stop()

    time.sleep(2)  # the program's last second of use has to be over: `last_seconds` is never later than now
    (account,) = accounts(environment, "--by", "container")
    assert (account["container"], account["gpu_number"]) == (name, "0")
    assert account["memory_peak_bytes"] > 64 << 20 and account["memory_byte_hours"] > 0
    assert 0 < account["mean_share_ratio"] <= account["max_share_ratio"] <= 1
    (row,) = csv.DictReader(io.StringIO(history(environment, "--by", "container", "--format", "csv").stdout))
    assert row == {key: "" if text is None else str(text) for key, text in account.items()}
    table = history(environment).stdout.splitlines()
    assert table[0].split()[:2] == ["USER", "GPU"] and table[1].split()[0] == account["user"]
    assert history(environment, "--since", "2020-01-01", "--until", "2020-01-02").stdout.count("\n") == 1
    pytest.importorskip("matplotlib")
    drawn = history(environment, "--plot", str(tmp_path / "use.svg"))
    assert drawn.returncode == 0
    assert f"<!--  {account['user']} -->" in (tmp_path / "use.svg").read_text(), "the name in the legend"


@pytest.mark.exhaustive
def test_an_exporter_that_was_away(environment: dict[str, str], program: subprocess.Popen[str]) -> None:
    options = ("--history-interval", "1")
    with exporter(environment, *options) as running:
        wait_until(lambda: accounts(environment), "sample")
        launch(program, 1500)
        running.stop()
    (before,) = accounts(environment)
    launch(program, 2000)
    time.sleep(3)
    with exporter(environment, *options) as running:
        wait_until(lambda: accounts(environment)[0]["ran_seconds"] > before["ran_seconds"] + 1, "further samples")
        program.stdin.close()
        program.wait()
        time.sleep(4)
        assert accounts(environment, "--since", "2s") == [], "it is gone"
        (account,) = accounts(environment)
        running.stop()
    assert account["gpu_seconds"] >= 3.3, "what was used while no exporter ran is counted"
    assert account["ran_seconds"] < account["measured_seconds"] - 4, "for which it was not seen to run"


def test_two_exporters_keep_one_history(environment: dict[str, str]) -> None:
    def errors(running: Exporter) -> float | None:
        return value(running.scrape(), "vgpurun_exporter_errors_total", source="history")

    with exporter(environment) as one, exporter(environment) as another:
        wait_until(lambda: errors(one) or errors(another), "complaint")
        keeps, complains = (another, one) if errors(one) else (one, another)
        assert errors(keeps) == 0
        said = complains.stop()
    assert "is written by another exporter" in said


def test_no_history(environment: dict[str, str]) -> None:
    with exporter(environment, "--no-history") as running:
        running.scrape()
        running.stop()
    done = history(environment)
    assert done.returncode == 125 and done.stderr.count("\n") == 1
    assert "there is no history" in done.stderr and "vgpurun exporter keeps one" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("history", "--since", "1h", "--until", "2h"), "not before"),
        (("history", "--since", "soon"), "--since 'soon'"),
        (("history", "--plot", "use.doc"), ".png"),
        (("history", "--history", "/none/h"), "/none/h"),
        (("exporter", "--history", "x", "--no-history"), "exclude"),
        (("exporter", "--history-keep", "5"), "--history-keep '5'"),
        (("exporter", "--history-size", "5k"), "--history-size '5k'"),
        (("exporter", "--listen", "here"), "--listen 'here'"),
        (("exporter", "--listen", "1.2.3.4:9487"), "no such address"),
        (("exporter", "--compat", "dcgm"), "hami"),
    ],
)
def test_what_is_wrong_is_one_line(environment: dict[str, str], arguments: tuple[str, ...], word: str) -> None:
    command = [sys.executable, "-m", "vgpurun", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (125, "", 1), done.stderr
    assert word in done.stderr


@pytest.mark.parametrize(
    ("package", "arguments", "extra"),
    [
        ("prometheus_client", ["exporter"], "metrics"),
        ("matplotlib", ["history", "--plot", "a.png"], "report"),
        ("ruamel", ["convert", "compose.yaml"], "compose"),
    ],
)
def test_without_an_extra(
    environment: dict[str, str], tmp_path: Path, package: str, arguments: list[str], extra: str
) -> None:
    with exporter(environment, "--history-interval", "1"):  # for a history to draw
        wait_until(lambda: history(environment).returncode == 0, "history")
    for each in Path(sysconfig.get_path("purelib")).iterdir():  # all that is installed, but for that package
        if not each.name.startswith(package):
            (tmp_path / each.name).symlink_to(each)
    environment["PYTHONPATH"] = f"{tmp_path}:{CHECKOUT}"
    command = [*BARE_PYTHON, "-m", "vgpurun", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr.count("\n")) == (125, 1), done.stderr
    assert f"{sys.executable} -m pip install 'vgpurun[{extra}]'" in done.stderr


def test_what_a_program_held_idle_and_gave_back(built_library: Path, tmp_path: Path) -> None:
    host = Host(tmp_path)

    def held_s() -> list[float]:
        """The history's figures, which are the metrics' but for what each saw first."""
        name = f"process {program.pid}"
        kept = [each for each in accounts(host.environment, "--by", "container") if each["container"] == name]
        series = running.scrape()
        names = ("idle_seconds", "given_back_seconds")
        counted = [value(series, f"vgpurun_container_{each}_total", container=name) or 0.0 for each in names]
        return [min(counted[number], sum(row[each] for row in kept)) for number, each in enumerate(names)]

    with programs(host) as started, exporter(host.environment, "--history-interval", "1") as running:
        program = started["notebook"] = Program(host, "--mem", "1g", "--sm", "50", "--gpus", "device=0")
        wait_until(lambda: held_s()[0] > 1, "hours held idle")
        assert held_s()[1] == 0
        assert program.suspend().returncode == 0
        wait_until(lambda: held_s()[1] > 1, "hours given back")
        before_s = held_s()[0]
        wait_until(lambda: held_s()[1] > 3, "more of them")
        assert held_s()[0] == before_s, "it holds nothing"
