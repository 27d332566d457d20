"""The Grafana dashboard: what each panel asks, a real Prometheus answers while programs run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cuda_driver import Driver, byref, c_size_t, c_uint64
from support import CHECKOUT, own_gpu_config, wait_until
from support.prometheus_server import Prometheus, prometheus
from support.scraping import exporter, under_limits

pytestmark = pytest.mark.slow

pytest.importorskip("prometheus_client")
DASHBOARD = json.loads((CHECKOUT / "examples" / "monitoring" / "dashboard.json").read_text())
# Grafana puts these in the place of its variables when "All" is chosen, and scrapes come every second.
GRAFANA = {"$__rate_interval": "1m", **{f"${each['name']}": ".*" for each in DASHBOARD["templating"]["list"]}}


def compute() -> None:
    """Compute all the time, under limits, and be refused memory."""
    d = Driver.started()
    d.mem_alloc(64 << 20)
    kernel = d.kernel("busy_1ms")
    print("computes", flush=True)
    while True:
        d.result("cuMemAlloc_v2", byref(c_uint64()), c_size_t(4 << 30))
        for _ in range(20):
            d.launch(kernel)
        d.synchronize()


@pytest.fixture
def environment(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    return environment | {"VGPUSIM_CONFIG": own_gpu_config(tmp_path)}


@contextmanager
def computing(environment: dict[str, str]) -> Iterator[None]:
    with under_limits(environment, compute, sm=30) as process:
        assert process.stdout is not None and process.stdout.readline() == "computes\n"
        yield


def targets() -> list[tuple[str, str]]:
    """Each query, with the title of its panel, as Grafana sends it."""
    found = [(panel["title"], each["expr"]) for panel in DASHBOARD["panels"] for each in panel.get("targets", [])]
    return [(title, re.sub(r"\$\w+", lambda match: GRAFANA[match.group()], query)) for title, query in found]


def values_of(scraped: Prometheus, variable: dict[str, Any]) -> list[str]:
    """Return the values that a variable of the dashboard offers."""
    match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
    selector = re.sub(r"\$\w+", ".*", match[1])
    found: list[str] = scraped.ask(f"label/{match[2]}/values", **{"match[]": selector})
    return found


def test_every_panel_has_something_to_show(environment: dict[str, str], tmp_path: Path) -> None:
    with (
        computing(environment),
        exporter(environment, "--no-history") as running,
        prometheus(tmp_path, running.address) as scraped,
    ):
        queries = targets()
        assert len(queries) > 20
        empty = wait_for_all(scraped, queries)
        assert not empty
        for variable in DASHBOARD["templating"]["list"]:
            if variable["type"] == "query":
                assert values_of(scraped, variable), variable["name"]
        # Counters must have counted: a rate of 0 would be an answer, too.
        rates = [query for _, query in queries if "rate(" in query]
        assert len(rates) >= 4
        for query in rates:
            wait_until(lambda query=query: [each for each in scraped.now(query) if float(each["value"][1]) > 0], query)
        refused = wait_until(lambda: firing(scraped, "VgpurunMemoryRefused"), "alert of the refusals")
        assert refused["annotations"]["summary"].endswith("was refused GPU memory")


def firing(scraped: Prometheus, name: str) -> dict[str, Any] | None:
    found = (each for each in scraped.ask("alerts")["alerts"] if each["labels"]["alertname"] == name)
    return next((each for each in found if each["state"] == "firing"), None)


def wait_for_all(scraped: Prometheus, queries: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Wait until each has an answer; returns those that have none."""
    left = list(queries)

    def is_answered() -> bool:
        left[:] = [(title, query) for title, query in left if not scraped.now(query)]
        return not left

    try:
        wait_until(is_answered, "answer to every query")
    except AssertionError:
        return left
    return []
