"""examples/monitoring: every metric that is named exists, and the tools that read these files are content with them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import CHECKOUT
from support.debian_packages import tool
from vgpurun.metrics.families import COUNTER, FAMILIES, GAUGE

FOLDER = CHECKOUT / "examples" / "monitoring"
SERVICES = (FOLDER / "vgpurun-exporter.service", CHECKOUT / "examples" / "vgpurun-guard.service")
KINDS = {family.name: family.kind for family in FAMILIES}
LABELS = {label for family in FAMILIES for label in family.scope.labels} | {"instance", "job"}
# A dashboard's names for the units that metrics' names end in.
UNITS = {"_bytes": {"bytes"}, "_ratio": {"percentunit"}, "_seconds": {"s"}}


def panels() -> list[dict[str, Any]]:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    queries = [
        variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"
    ]
    alerts = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    rules = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    page = (CHECKOUT / "docs" / "monitoring.md").read_text()
    shown = re.findall(r"(?m)^ {4}(.*vgpurun_.*)$", page)
    assert len(shown) >= 5
    return [target["expr"] for panel in panels() for target in panel["targets"]] + queries + rules + shown


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_exists_and_is_used_as_what_it_is(expression: str) -> None:
    names = set(re.findall(r"vgpurun_\w+", expression))
    assert names <= set(KINDS), names - set(KINDS)
    assert names or "up" in expression
    for name in names:
        counted = re.search(rf"(rate|increase)\({name}\b", expression) is not None
        assert counted == (KINDS[name] == COUNTER) or "label_values" in expression


def test_labels_in_the_dashboard_and_the_alerts_exist() -> None:
    for expression in expressions():
        used = re.findall(r"(\w+)=~?\"", expression) + re.findall(r"by \(([\w, ]+)\)", expression)
        assert {label.strip() for each in used for label in each.split(",")} <= LABELS, expression
    texts = (FOLDER / "alerts.yml").read_text()
    assert set(re.findall(r"\$labels\.(\w+)", texts)) <= LABELS


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_panels_have_the_units_of_their_metrics(panel: dict[str, Any]) -> None:
    if panel["type"] == "table":
        return  # its columns have units of their own
    unit = panel["fieldConfig"]["defaults"]["unit"]
    for target in panel["targets"]:
        names = re.findall(r"vgpurun_\w+", target["expr"])
        is_rate = "rate(" in target["expr"]
        ratio = "/" in target["expr"] or (is_rate and "gpu_seconds" in names[0])
        expected = {"percentunit"} if ratio else next((UNITS[end] for end in UNITS if names[0].endswith(end)), None)
        assert unit in (expected or {"short", "ops"}), target["expr"]


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in panels()]
    cells = [
        (place["x"] + column, place["y"] + line)
        for place in places
        for column in range(place["w"])
        for line in range(place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_names_follow_the_conventions() -> None:
    for family in FAMILIES:
        assert family.kind in (COUNTER, GAUGE)
        assert family.name.endswith("_total") == (family.kind == COUNTER)
        assert family.help.endswith((".", "1."))


@pytest.mark.parametrize(("check", "name"), [("rules", "alerts.yml"), ("config", "prometheus.yml")])
def test_promtool_is_content(check: str, name: str) -> None:
    done = subprocess.run(
        [tool("promtool", "prometheus"), "check", check, str(FOLDER / name)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_each_alert_fires_when_it_should_and_not_before() -> None:
    """promtool evaluates them on made series; each has a moment at which it fires, and one at which it does not."""
    done = subprocess.run(
        [tool("promtool", "prometheus"), "test", "rules", str(FOLDER / "alerts_test.yml")],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    tests = yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
    moments = [(each["alertname"], bool(each.get("exp_alerts"))) for test in tests for each in test["alert_rule_test"]]
    alerts = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    names = [rule["alert"] for group in alerts["groups"] for rule in group["rules"]]
    assert set(moments) == {(name, fires) for name in names for fires in (True, False)}


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_systemd_is_content_with_the_unit(tmp_path: Path, path: Path) -> None:
    text = path.read_text()
    unit = tmp_path / path.name
    unit.write_text(text.replace("/usr/local/bin/vgpurun", str(Path(sys.executable).with_name("vgpurun"))))
    done = subprocess.run(
        [tool("systemd-analyze", "systemd"), "verify", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert path.name not in done.stderr  # other units of this machine are its own affair


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_the_unit_starts_what_there_is(path: Path) -> None:
    from vgpurun.cli import cli

    line = re.search(r"(?m)^ExecStart=/usr/local/bin/vgpurun (\S+)(.*)$", path.read_text())
    known = {name for parameter in cli.commands[line[1]].params for name in parameter.opts}
    assert {word for word in line[2].split() if word.startswith("--")} <= known
