"""The effect of keys on the screen of `vgpurun top`, its graphs and its details."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import GIB, make_gpus

from vgpurun.cli.views import top as top_view
from vgpurun.cli.views.top import Row
from vgpurun.cli.views.top_details import details, graphs
from vgpurun.cli.views.top_graph import History, graph
from vgpurun.cli.views.top_keys import Action, Keys
from vgpurun.engine.client import VgpurunContainer
from vgpurun.engine.labels import Record
from vgpurun.host.gpus import GpuUse
from vgpurun.inventory.programs import Program
from vgpurun.inventory.usage import Report, Tenant, TenantDevice
from vgpurun.limits.quota import Quota
from vgpurun.limits.usage_file import DeviceReading

(GPU,) = make_gpus(1)


def tenant(name: str, paused: bool = False, kind: str = "container") -> Tenant:
    container = VgpurunContainer(name, name, "image", "running", Record("/none")) if kind == "container" else None
    reading = DeviceReading(GPU.uuid, allocated_bytes=GIB, refusals=3)
    device = TenantDevice(GPU, Quota(2 * GIB, 30, paused=paused), reading)
    return Tenant(
        kind, name, f"{'slice ' * (kind == 'slice')}{name}", "image", Path("/n", name), (device,), (), container
    )


def rows(*tenants: Tenant) -> list[Row]:
    programs = {GPU.uuid: {"a": [Program(4711, "alice", "python", GIB)]}}
    return top_view.rows(Report(((GPU, GpuUse(3 * GIB, 60, 54, None)),), tenants, programs), "gpu")


ROWS = rows(tenant("a"), tenant("b", paused=True), tenant("s", kind="slice"))


def press(keys: Keys, *typed: str) -> list[Action]:
    return [action for key in typed if (action := keys.press(key, ROWS, 10))]


def test_the_chosen_line_moves_and_stays_with_its_container() -> None:
    keys = Keys("gpu", 2.0)
    press(keys, "down", "j", "up")
    assert keys.row(ROWS) is ROWS[1]
    press(keys, "page down")
    assert keys.row(ROWS) is ROWS[-1]
    press(keys, "up", "up")
    assert keys.row(list(reversed(ROWS))) == ROWS[1] and keys.row(ROWS[:1]) is ROWS[0] and keys.row([]) is None


@pytest.mark.parametrize(
    ("moves", "question", "action"),
    [
        (("down", "x"), "stop container a?", Action(("stop", "a"))),
        (("down", "p"), "pause the GPU work of a?", Action(("pause", "--gpu", "a"))),
        (("down", "down", "p"), "unpause the GPU work of b?", Action(("unpause", "--gpu", "b"))),
        (("down", "u", *"--sm 5", "enter"), "update --sm 5 a?", Action(("update", "--sm", "5", "a"))),
        (
            ("page down", "u", *"--mem 1g", "enter"),
            "slice update --mem 1g s?",
            Action(("slice", "update", "--mem", "1g", "s")),
        ),
    ],
)
def test_what_changes_something_asks_first(moves: tuple[str, ...], question: str, action: Action) -> None:
    keys = Keys("gpu", 2.0)
    assert press(keys, *moves) == []
    assert question in keys.prompt
    assert press(keys, "n") == [] and keys.prompt == ""
    keys = Keys("gpu", 2.0)
    assert press(keys, *moves, "y") == [action]
    assert press(keys, "y") == [], "once"


@pytest.mark.parametrize("moves", [("x",), ("page down", "x"), ("page down", "p"), ("l",)])
def test_what_is_no_container_is_not_acted_on(moves: tuple[str, ...]) -> None:
    keys = Keys("gpu", 2.0)
    assert press(keys, *moves, "y") == []


def test_logs_need_no_question() -> None:
    assert press(Keys("gpu", 2.0), "down", "l") == [Action(("logs", "--tail", "200", "a"), shows_output=True)]


def test_a_filter_is_typed() -> None:
    keys = Keys("gpu", 2.0)
    press(keys, "/", *"qx", "backspace", "p")
    assert keys.prompt == "lines with: qp_" and keys.wanted == ""
    press(keys, "enter")
    assert keys.wanted == "qp" and keys.mode == "list"
    press(keys, "/", "x", "escape")
    assert keys.wanted == "qp"
    press(keys, "escape")
    assert keys.wanted == ""


def test_a_quote_that_is_not_closed_is_said() -> None:
    keys = Keys("gpu", 2.0)
    assert press(keys, "down", "u", *"--mem '1", "enter") == []
    assert "quotation" in keys.message


def test_graphs_have_the_newest_at_the_right() -> None:
    assert graph([0.0, 0.5, 1.0], 5, 2) == ["    █", "   ██"]
    assert graph([0.01, None, 2.0], 3, 1, ascii_only=True) == [". #"]
    history = History()
    for _ in range(3):
        history.add(ROWS)
    assert history.memory(ROWS[1]) == [0.5, 0.5, 0.5] and history.compute(ROWS[0]) == [0.6, 0.6, 0.6]
    history.add(ROWS[:1])
    assert history.memory(ROWS[1]) == []
    drawn = graphs(ROWS[0], history, 80, 8, 2.0, True)
    assert len(drawn) == 8 and all(len(line.plain) <= 80 for line in drawn)
    assert graphs(ROWS[0], history, 80, 3, 2.0, True) == []
    assert graphs(ROWS[0]._replace(name="a" * 80), history, 80, 8, 2.0, True)[1].plain.split()[0] == f"{'a' * 30}…:"


def test_details_name_programs_and_what_nvml_does_not_tell() -> None:
    found = "\n".join(details(ROWS[1]))
    assert "3 allocations" in found and "4711  alice" in found and "2 GiB, 30 %" in found
    whole = "\n".join(details(ROWS[0]))
    assert "54 C" in whole and "power        not told by NVML" in whole
