"""A real Prometheus that scrapes one exporter every second."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support import CHECKOUT, wait_until
from support.debian_packages import tool
from support.scraping import free_port

ALERTS = CHECKOUT / "examples" / "monitoring" / "alerts.yml"


class Prometheus:
    """A Prometheus that answers."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def ask(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(f"{self._url}{path}?{urllib.parse.urlencode(parameters)}", timeout=20) as answer:
            answered = json.load(answer)
        assert answered["status"] == "success", answered
        return answered["data"]

    def is_ready(self) -> bool:
        try:
            return bool(self.times('up{job="vgpurun"} == 1'))
        except OSError:
            return False

    def now(self, query: str) -> list[Any]:
        """Return what a dashboard would show at this moment."""
        found: list[Any] = self.ask("query", query=query)["result"]
        return found

    def times(self, selector: str) -> set[float]:
        """The times of all samples of the last minutes; all samples of one scrape have one time."""
        base, _, condition = selector.partition(" == ")
        samples = [sample for series in self.now(f"{base}[10m]") for sample in series["values"]]
        return {time_s for time_s, value in samples if not condition or value == condition}


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """Start one, with the alerts of examples/monitoring; it must have nothing to complain of."""
    program, port = tool("prometheus", "prometheus"), free_port()
    config = folder / "prometheus.yml"
    config.write_text(
        f"""
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [{ALERTS}]
scrape_configs:
  - job_name: vgpurun
    static_configs: [{{targets: ["{target}"]}}]
"""
    )
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb", "--log.level=warn"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=log)
        try:
            made = Prometheus(port)
            wait_until(made.is_ready, "scrape")
            yield made
        finally:
            process.kill()
            process.wait()
    complaints = [line for line in (folder / "log").read_text().splitlines() if "level=warn" in line]
    assert not [line for line in complaints if "sample" in line or "scrape" in line], complaints
