"""Tasks, actors and their children: what they find of a GPU of which Ray has given them a part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_node import NEWEST, OLDEST, TIMEOUT_S, UUIDS, ray_node

pytestmark = pytest.mark.timeout(TIMEOUT_S + 20)
OOM = "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.fixture(scope="module", params=[NEWEST, pytest.param(OLDEST, marks=pytest.mark.exhaustive)])
def found(request: pytest.FixtureRequest, built_library: Path) -> Iterator[dict[str, Any]]:
    with ray_node(request.param) as node:
        yield node.run("tasks.py")[0]


@pytest.mark.slow
class TestTasks:
    def test_a_task_has_its_part_of_the_memory_and_no_more(self, found: dict[str, Any]) -> None:
        for name, mib in (("task_0.5", 4096), ("task_0.25", 2048), ("task_1", 8192)):
            assert (found[name]["mib"], found[name]["had"]) == (mib, True)
        assert found["more"]["had"] == OOM

    def test_a_task_without_a_gpu_gets_none(self, found: dict[str, Any]) -> None:
        assert found["none"]["error"] in (OOM, "CUDA_ERROR_NO_DEVICE")  # the second by older versions of Ray

    def test_a_worker_follows_its_task_on_one_gpu_and_ends_before_one_on_another(self, found: dict[str, Any]) -> None:
        first, second = ({each["uuid"]: each["pid"] for each in found[name]} for name in ("first", "second"))
        assert set(first) == set(second) == set(UUIDS)
        assert {each["mib"] for each in found["second"]} == {6144}
        bound = {pid: uuid for uuid, pid in first.items()}
        assert all(bound.get(pid, uuid) == uuid for uuid, pid in second.items())

    def test_keys_of_a_placement_group_count_once(self, found: dict[str, Any]) -> None:
        assert [found[f"group_{index}"]["mib"] for index in (0, 1, -1)] == [4096, 4096, 2048]

    def test_an_actor_and_children_of_tasks(self, found: dict[str, Any]) -> None:
        assert [each["mib"] for each in found["actor"]] == [2048, 2048]
        assert found["child"]["mib"] == 2048
        assert [each["mib"] for each in found["nested"]] == [4096, 2048]


@pytest.mark.exhaustive  # the others have tasks of other parts
@pytest.mark.parametrize("version", [NEWEST, OLDEST])
def test_a_hundred_tasks_of_a_tenth(version: str, built_library: Path) -> None:
    with ray_node(version) as node:
        found, _ = node.run("hundred.py")
        assert len(found["hundred"]) == 100
        assert {mib for mib, _ in found["hundred"]} == {819}
        assert {uuid for _, uuid in found["hundred"]} == set(UUIDS)
