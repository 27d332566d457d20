"""A real Prometheus scrapes the exporter while containers come and go: no gap, nothing stale, and the alerts work."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli
from support import wait_until
from support.prometheus_server import Prometheus, prometheus
from support.scraping import exporter

pytest.importorskip("prometheus_client")
MIB = 1 << 20
USED = "vgpurun_container_memory_used_bytes"
# By whose name: where the container's stands.
LABELS = {USED: "container", "hami_vgpu_memory_used_bytes": "pod", "alnair_gpu_mem_used": "pod_name"}


def start(vgpurun: Cli, image: str, name: str, *options: str) -> None:
    options = ("-d", "-i", "--name", name, "--mem", "1g", "--sm", "20", *options, *WITH_PROGRAMS)
    assert vgpurun.run(*options, image, *GPU_PROGRAM, "hold", str(64 * MIB)).exit_code == 0


def shown(scraped: Prometheus, name: str, label: str) -> set[str]:
    return {series["metric"][label] for series in scraped.now(name)}


def test_containers_come_and_go(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    options = ("--compat", "hami", "--compat", "alnair", "--history-interval", "1")
    with exporter(vgpurun.environment, *options) as running, prometheus(tmp_path, running.address) as scraped:
        start(vgpurun, debian, "steady")
        steady = f'{USED}{{container="steady"}}'
        wait_until(lambda: scraped.times(steady), "samples of steady")
        for number in range(2):
            brief = f'{USED}{{container="brief{number}"}}'
            start(vgpurun, debian, f"brief{number}")
            wait_until(lambda brief=brief: scraped.now(brief), "samples of a new container")
            vgpurun.engine.containers.get(f"brief{number}").kill()
            # A series that merely got no more samples would be shown for five minutes.
            wait_until(lambda brief=brief: not scraped.now(brief), "end of a series")
        again = f'{USED}{{container="brief0"}}'
        vgpurun("rm", "brief0")
        start(vgpurun, debian, "brief0")
        wait_until(lambda: scraped.now(again), "samples of the second container of a name")

        times = scraped.times(steady)
        scrapes = {each for each in scraped.times('up{job="vgpurun"} == 1') if min(times) <= each <= max(times)}
        assert scrapes == times, "a scrape without the container that runs all the time"
        assert len(times) > 3
        # After a scrape that was too late on a busy machine nothing is shown until the next one.
        for name, label in LABELS.items():
            seen = partial(shown, scraped, name, label)
            wait_until(lambda seen=seen: seen() == {"steady", "brief0"}, f"{name} of what runs")
        wait_until(lambda: scraped.ask("targets")["activeTargets"][0]["lastError"] == "", "scrape without an error")
        rules = [rule for group in scraped.ask("rules")["groups"] for rule in group["rules"]]
        assert len(rules) >= 7 and {rule["health"] for rule in rules} == {"ok"}
        running.stop()
    accounts = json.loads(vgpurun("history", "--by", "container", "--format", "json").stdout)
    names = [each["container"] for each in accounts]
    assert {"steady", "brief0", "brief1"} == set(names) and names.count("brief0") == 2
    (steady_account,) = (each for each in accounts if each["container"] == "steady")
    assert steady_account["memory_peak_bytes"] > 64 * MIB and steady_account["ran_seconds"] > 0
