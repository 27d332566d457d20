"""Clusters of several nodes, and what is cancelled, killed, tried again or asked for in odd amounts."""

from __future__ import annotations

import pytest
from ray_node import TIMEOUT_S, UUIDS, RayNode

pytestmark = pytest.mark.timeout(TIMEOUT_S + 20)
OOM = "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.mark.exhaustive
def test_each_node_gives_parts_of_its_own_gpus_and_one_may_be_lost(node: RayNode) -> None:
    found, _ = node.run("nodes.py")
    assert [(found[name]["mib"], found[name]["uuid"]) for name in ("first", "second")] == [(4096, gpu) for gpu in UUIDS]
    assert {each["uuid"] for each in found["spread"]} == set(UUIDS)
    assert {each["mib"] for each in (*found["spread"], found["full"])} == {8192}
    assert (found["lost"]["mib"], found["lost"]["uuid"]) == (2048, UUIDS[0]), "tried again on the node that is left"


@pytest.mark.exhaustive
def test_odd_amounts_and_what_is_tried_again_or_cancelled(node: RayNode) -> None:
    found, _ = node.run("attacks.py")
    amounts = (2, 0.333, 0.29, 0.57)  # Ray cuts to ten-thousandths of a binary number: 0.57 is 0.5699
    assert [found[f"asks_{amount}"]["mib"] for amount in amounts] == [8192, 2727, 2375, 4668]
    assert found["asks_0.01"]["error"] == OOM, "81 MiB are less than a context takes"
    assert found["too_small"][0] == "RayTaskError(ValueError)"
    assert "vgpurun: num_gpus=0.0099 is less than 1 % of a GPU" in found["too_small"][1]
    assert "must be whole numbers" in found["too_odd"].replace("', '", "")
    first, second = found["once"]
    assert (first["mib"], second["mib"]) == (4096, 4096)
    assert first["pid"] != second["pid"], "max_calls=1"
    before, tried_again, after = found["actor"]
    assert (before["had"], after["had"]) == (True, True)
    assert before["pid"] != tried_again["pid"] == after["pid"]
    assert {each["mib"] for each in (before, tried_again, after)} == {4096}
    assert found["again"]["had"] is True, "after a refusal"
    assert found["cancelled"] == ["TaskCancelledError"] * 2
    assert [each["had"] for each in found["after"]] == [True, True], "what the cancelled ones had"
