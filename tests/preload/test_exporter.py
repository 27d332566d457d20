"""`vgpurun exporter` as it runs: what programs did is what it shows, promtool is content, and it ends as it should."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_driver import Driver, byref, c_size_t, c_uint64
from support import wait_until
from support.debian_packages import tool
from support.scraping import exporter, label_values, under_limits, value
from vgpurun.limits import usage_file

pytestmark = pytest.mark.slow

pytest.importorskip("prometheus_client")
MIB = 1 << 20


def launch_20_times() -> None:
    """Allocate, be refused once, launch, print, and wait."""
    d = Driver.started()
    d.mem_alloc(64 << 20)
    refused = d.result("cuMemAlloc_v2", byref(c_uint64()), c_size_t(4 << 30))
    kernel = d.kernel("busy_1ms")
    for _ in range(20):
        d.launch(kernel)
    d.synchronize()
    print(refused, flush=True)
    sys.stdin.read()


@pytest.fixture
def program(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with under_limits(environment, launch_20_times, sm=50) as process:
        assert process.stdout is not None and "OUT_OF_MEMORY" in process.stdout.readline()
        yield process


def busy_seconds(state_dir: Path) -> float:
    """Return the only program's GPU time by the usage file."""
    (usage,) = state_dir.rglob("run/usage")
    (reading,) = usage_file.read_usage(usage, ["GPU"]) or ()
    return reading.busy_ns / 1e9


def test_what_a_program_did(environment: dict[str, str], program: subprocess.Popen[str]) -> None:
    with exporter(environment, "--compat", "hami", "--compat", "alnair") as running:
        series = running.scrape()
        name = f"process {program.pid}"

        def of_program(metric: str) -> float | None:
            return value(series, f"vgpurun_container_{metric}", container=name)

        assert of_program("memory_limit_bytes") == 2048 * MIB
        assert of_program("memory_buffer_bytes") == 64 * MIB
        assert (of_program("memory_context_bytes") or 0) > 0
        parts = [of_program(f"memory_{part}_bytes") or 0 for part in ("buffer", "context", "module")]
        assert of_program("memory_used_bytes") == sum(parts)
        assert of_program("oom_refusals_total") == 1
        assert of_program("launches_total") == 20
        # A busy machine holds the program up between launches, and the library then takes some of it for work.
        gpu_s = busy_seconds(Path(environment["VGPURUN_STATE_DIR"]))
        assert gpu_s > 0.010 and of_program("gpu_seconds_total") == pytest.approx(gpu_s)
        assert of_program("sm_limit_ratio") == 0.5
        assert of_program("processes") == 1
        assert value(series, "vgpurun_gpu_memory_reserved_bytes", index="0") == 2048 * MIB
        assert value(series, "alnair_cuda_launch_kernel_cnt", pod_name=name) == 20
        assert value(series, "hami_vgpu_memory_used_bytes", pod=name) == of_program("memory_used_bytes")
        assert value(series, "vgpurun_exporter_source_up", source="engine") == 0
        program.communicate("")
        wait_until(lambda: label_values(running.scrape(), "container") == set(), "end of its series")


def test_promtool_has_nothing_to_say(environment: dict[str, str], program: subprocess.Popen[str]) -> None:
    promtool = tool("promtool", "prometheus")
    with exporter(environment) as running:
        text = running.get()
    assert f"process {program.pid}" in text
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_its_pages(environment: dict[str, str]) -> None:
    with exporter(environment) as running:
        assert running.get("/healthz") == "ok\n"
        assert 'href="/metrics"' in running.get("/")
        with pytest.raises(OSError, match="404"):
            running.get("/secret")
        said = running.stop()
    assert said.count("\n") == 1 and "containers are not shown" in said and "no-engine.sock" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_told_to(environment: dict[str, str], number: signal.Signals) -> None:
    with exporter(environment) as running:
        running.process.send_signal(number)
        assert running.process.wait(timeout=20) == 0


def test_an_address_in_use(environment: dict[str, str]) -> None:
    with exporter(environment) as running:
        command = [sys.executable, "-m", "vgpurun", "exporter", "--driver", "sim", "--listen", running.address]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    assert done.returncode == 125
    assert done.stderr.count("\n") == 1 and running.address in done.stderr and "another port" in done.stderr


def test_many_clients_that_say_nothing_do_not_keep_a_scraper_out_for_ever(environment: dict[str, str]) -> None:
    import socket

    with exporter(environment) as running:
        host, port = running.address.split(":")
        idle = [socket.create_connection((host, int(port))) for _ in range(40)]

        def answers() -> bool:
            try:
                return running.get("/healthz") == "ok\n"
            except OSError:
                return False

        for each in idle:
            each.close()
        wait_until(answers, "answer")
