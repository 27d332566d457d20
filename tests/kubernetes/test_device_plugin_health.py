"""GPUs with faults: what kubelet is told of them, and that nothing is placed on them."""

from __future__ import annotations

import pytest

from kubelet_double import Kubelet, RefusedError
from node_names import COMPUTE, MEMORY, UUIDS
from vgpurun.host.gpus import Gpu
from vgpurun.kubernetes import gpu_health


@pytest.fixture
def kubelet(node) -> Kubelet:
    node.start_plugin()
    node.kubelet.wait_for_resources(MEMORY, COMPUTE)
    return node.kubelet


def fault(node, line: str) -> None:
    with node.faults.open("a") as file:
        file.write(f"{line}\n")


def wait_for_health(kubelet: Kubelet, *expected: str) -> None:
    """Until exactly these GPUs' units are healthy, of both resources."""

    def healthy(resource: str) -> set[str]:
        return {unit.rpartition("_")[0] for unit in kubelet.plugins[resource].healthy}

    kubelet.wait_for(lambda: healthy(MEMORY) == healthy(COMPUTE) == set(expected), f"health of {expected}")


def test_a_gpu_is_lost_and_comes_back(node, kubelet: Kubelet) -> None:
    kubelet.admit("pod", {"c": {MEMORY: 2, COMPUTE: 20}})
    (lost,) = {each.rpartition("_")[0] for given in kubelet.containers["pod", "c"].values() for each in given.ids}
    (other,) = set(UUIDS) - {lost}
    fault(node, f"lost {lost}")
    wait_for_health(kubelet, other)
    assert len(kubelet.plugins[MEMORY].devices) == 16  # still listed, as unhealthy
    with pytest.raises(RefusedError, match=f"GPU {lost} cannot be used: the driver does not list it any more"):
        kubelet.allocate(MEMORY, [f"{lost}_7"])
    with pytest.raises(RefusedError, match="cannot be used"):
        kubelet.start_container("pod", "c")
    kubelet.admit("next", {"c": {MEMORY: 8, COMPUTE: 100}})
    assert all(each.startswith(other) for each in kubelet.containers["next", "c"][MEMORY].ids)
    fault(node, f"back {lost}")
    wait_for_health(kubelet, *UUIDS)
    kubelet.start_container("pod", "c")


@pytest.mark.parametrize("lost", [0, 1])
def test_faults_of_the_others_are_noticed_while_one_is_lost(node, kubelet: Kubelet, lost: int) -> None:
    other = UUIDS[1 - lost]
    fault(node, f"lost {UUIDS[lost]}")
    wait_for_health(kubelet, other)
    fault(node, f"xid {other} 79")
    wait_for_health(kubelet)
    fault(node, f"back {UUIDS[lost]}")
    wait_for_health(kubelet, UUIDS[lost])
    fault(node, f"xid {UUIDS[lost]} 48")
    wait_for_health(kubelet)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_plugin_that_starts_while_one_is_lost_offers_the_others(node, lost: int) -> None:
    other = UUIDS[1 - lost]
    fault(node, f"lost {UUIDS[lost]}")
    node.start_plugin()
    node.kubelet.wait_for_resources(MEMORY, COMPUTE)
    wait_for_health(node.kubelet, other)
    node.kubelet.admit("pod", {"c": {MEMORY: 2, COMPUTE: 20}})
    node.kubelet.start_container("pod", "c")
    assert f"warning: GPU {lost} cannot be used: GPU is lost" in node.log()


def test_an_xid_takes_the_gpu_away_until_the_plugin_starts_again(node, kubelet: Kubelet) -> None:
    fault(node, f"xid {UUIDS[0]} 31")  # a program's own fault
    fault(node, f"xid {UUIDS[1]} 79")
    wait_for_health(kubelet, UUIDS[0])
    with pytest.raises(RefusedError, match=f"GPU {UUIDS[1]} cannot be used: the driver has reported XID 79"):
        kubelet.allocate(MEMORY, [f"{UUIDS[1]}_0"])
    assert f"GPU {UUIDS[1]}: XID 79" in node.log()
    node.stop_plugins()
    node.start_plugin()
    wait_for_health(kubelet, *UUIDS)


def test_a_driver_that_does_not_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(gpu_health, "_BEGINS_IN_S", 0.1)
    monkeypatch.setattr(gpu_health, "watch", lambda *_: None)  # as a thread in which something has failed
    watch = gpu_health.FaultWatch(gpu_health.Health(), said.append)
    watch.include([Gpu(0, UUIDS[0], "A GPU", 8 << 30, 0, "0000:00:00.0")])
    watch.stop()
    assert said == ["warning: the NVIDIA driver does not answer; faults of the GPUs may not be noticed"]
