"""A GPU has fallen off the bus beside one that works: that one stays usable, and the lost one is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cuda_driver import Driver, byref, c_size_t, c_uint64
from support import wait_until
from support.programs import text_of
from support.scraping import exporter, label_values, value

pytestmark = pytest.mark.slow

UUIDS = [f"GPU-{os.getpid():08x}-{letter * 4}-0000-0000-000000000000" for letter in "cd"]
MACHINE = "devices:\n" + "".join(f"  - uuid: {uuid}\n    memory_mib: 8192\n" for uuid in UUIDS)
Run = Callable[..., subprocess.CompletedProcess[str]]


def hold() -> None:
    d = Driver.started()
    d.mem_alloc(64 << 20)
    print(d.result("cuMemAlloc_v2", byref(c_uint64()), c_size_t(1 << 30)))


@pytest.fixture
def environment(environment: dict[str, str], built_library: Path, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "sim.yaml").write_text(MACHINE)
    return environment | {
        "VGPUSIM_CONFIG": str(tmp_path / "sim.yaml"),
        "VGPUSIM_STATE": str(tmp_path / "sim.state"),
        "VGPURUN_LIBRARY": str(built_library),
    }


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    def run(verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "vgpurun", verb, "--driver", "sim", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    return run


def fault(environment: dict[str, str], line: str) -> None:
    with Path(environment["VGPUSIM_STATE"] + ".faults").open("a") as file:
        file.write(f"{line}\n")


@pytest.mark.parametrize("lost", [0, 1])
class TestOneOfTwo:
    """The first one ends a search by UUID for the second."""

    @pytest.fixture(autouse=True)
    def _lose(self, environment: dict[str, str], lost: int) -> None:
        fault(environment, f"lost {UUIDS[lost]}")

    def test_smi_and_top_show_the_other(self, run: Run, lost: int) -> None:
        shown = run("smi", "--format", "json")
        assert shown.returncode == 0, shown.stderr
        assert [gpu["uuid"] for gpu in json.loads(shown.stdout)["gpus"]] == [UUIDS[1 - lost]]
        assert f"warning: GPU {lost} cannot be used: GPU is lost" in shown.stderr
        top = run("top", "--once")
        assert top.returncode == 0 and f"\n{1 - lost}: " in top.stdout, top.stderr

    def test_a_process_gets_the_other_and_its_limit(self, run: Run, lost: int) -> None:
        done = run("local", "--mem", "1g", "--", sys.executable, "-c", text_of(hold))
        assert done.returncode == 0 and "OUT_OF_MEMORY" in done.stdout, done.stderr
        assert f"GPU {lost} cannot be used" in done.stderr

    def test_the_lost_one_is_refused_with_its_name(self, run: Run, lost: int) -> None:
        refused = run("local", "--gpus", f"device={lost}", "--", "true")
        assert refused.returncode == 125
        assert f"no GPU '{lost}' among {1 - lost}" in refused.stderr
        assert f"GPU {lost} cannot be used: GPU is lost" in refused.stderr

    def test_doctor_fails_for_it_alone(self, run: Run, lost: int) -> None:
        done = run("doctor", "--format", "json")
        found = {each["name"]: each for each in json.loads(done.stdout)}
        assert done.returncode == 1
        assert (found[f"GPU {lost}"]["status"], found[f"GPU {1 - lost}"]["status"]) == ("fail", "ok")
        assert "GPU is lost" in found[f"GPU {lost}"]["words"] and found[f"GPU {lost}"]["remedy"]
        assert found["driver"]["status"] == "ok"
        assert "cannot be used" not in done.stderr, "said twice"


def test_without_any_that_works_the_reason_is_said_in_one_line(run: Run, environment: dict[str, str]) -> None:
    for uuid in UUIDS:
        fault(environment, f"lost {uuid}")
    done = run("smi")
    assert done.returncode == 125
    assert "GPU 0 cannot be used: GPU is lost" in done.stderr.splitlines()[-1]


def look_twice() -> None:
    from vgpurun.cli.views.top_screen import Watch
    from vgpurun.host.visible import survey_gpus

    watch = Watch(lambda: survey_gpus(True), "gpu", 1, "sim")
    watch.print_once()
    print("once", flush=True)
    input()
    watch.print_once()


def test_top_goes_on_when_one_is_lost(environment: dict[str, str]) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", text_of(look_twice)], env=environment, **pipes) as top:
        assert len([line for line in iter(top.stdout.readline, "once\n") if "Simulated" in line]) == 2
        fault(environment, f"lost {UUIDS[0]}")
        shown, said = top.communicate("\n", timeout=60)
    assert [line.split()[0] for line in shown.splitlines() if "Simulated" in line] == ["1:"], said
    assert "GPU 0 cannot be used" in said


def test_the_exporter_goes_on_with_the_other(environment: dict[str, str]) -> None:
    pytest.importorskip("prometheus_client")
    with exporter(environment, "--no-history") as running:
        assert label_values(running.scrape(), "gpu") == set(UUIDS)
        fault(environment, f"lost {UUIDS[0]}")
        wait_until(lambda: label_values(running.scrape(), "gpu") == {UUIDS[1]}, "metrics of the other GPU alone")
        series = running.scrape()
        assert value(series, "vgpurun_exporter_source_up", source="nvml") == 0
        fault(environment, f"back {UUIDS[0]}")
        wait_until(lambda: label_values(running.scrape(), "gpu") == set(UUIDS), "metrics of both GPUs")
        assert value(running.scrape(), "vgpurun_exporter_source_up", source="nvml") == 1
        said = running.stop()
    assert said.count("GPU 0 cannot be used: GPU is lost") == 1
