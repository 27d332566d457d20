"""The ResourceSlice of a node, on an API server that checks it as Kubernetes does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_server import ApiServer, check_policy
from vgpurun.errors import ClusterError
from vgpurun.host.gpus import Gpu
from vgpurun.kubernetes.dra import cluster as dra_cluster
from vgpurun.kubernetes.dra.cluster import Cluster
from vgpurun.kubernetes.dra.model import binary_quantity, semantic_version
from vgpurun.kubernetes.dra.publish import Publisher

MIB = 1 << 20
# Sizes as real ones: an H200's, one that is a round number, and one that is no whole MiB.
SIZES = (143771 * MIB, 80 * 1024 * MIB, 8 * 1024 * MIB + 4096)
GPUS = [
    Gpu(i, f"GPU-{i:08d}-AAAA-bbbb-cccc-dddddddddddd", "NVIDIA H200 " + "x" * 90, size, i, f"00000000:0{i}:00.0")
    for i, size in enumerate(SIZES)
]
VERSION = "580.159.04"


@pytest.fixture
def cluster(server: ApiServer, tmp_path: Path) -> Cluster:
    return Cluster(server.kubeconfig(tmp_path))


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36", "1.37"])
def test_every_gpu_is_a_device_that_claims_share(version: str, tmp_path: Path) -> None:
    with ApiServer(version).running() as server:
        assert Publisher(Cluster(server.kubeconfig(tmp_path)), "node-a").publish(GPUS, VERSION)
        (made,) = server.slices.values()
    assert made["metadata"]["ownerReferences"][0]["uid"] == "0000-node-a"
    assert made["spec"]["pool"] == {"name": "node-a", "generation": 1, "resourceSliceCount": 1}
    devices = made["spec"]["devices"]
    assert [each["name"] for each in devices] == [gpu.uuid.lower() for gpu in GPUS]
    assert all(each["allowMultipleAllocations"] for each in devices)
    first = devices[0]
    assert first["attributes"]["uuid"] == {"string": GPUS[0].uuid}
    assert first["attributes"]["driverVersion"] == {"version": "580.159.4"}
    assert first["attributes"]["index"] == {"int": 0}
    assert [each["capacity"]["memory"]["value"] for each in devices] == ["143771Mi", "80Gi", "8Gi"]
    assert first["capacity"]["compute"]["value"] == "100"


def test_it_is_written_only_when_something_has_changed(server: ApiServer, cluster: Cluster) -> None:
    assert Publisher(cluster, "node-a").publish(GPUS, VERSION)
    assert not Publisher(cluster, "node-a").publish(GPUS, VERSION)  # another process, too
    assert len(server.writes) == 1
    assert Publisher(cluster, "node-a").publish(GPUS[:2], VERSION)
    (made,) = server.slices.values()
    assert (len(made["spec"]["devices"]), made["spec"]["pool"]["generation"]) == (2, 2)
    assert Publisher(cluster, "node-a").publish(GPUS[:2], "590.1")
    assert made["metadata"]["name"] in server.slices  # it has been changed in its place
    assert len(server.writes) == 3


def test_what_is_known_to_be_published_is_not_asked_for(server: ApiServer, cluster: Cluster) -> None:
    publisher = Publisher(cluster, "node-a")
    publisher.publish(GPUS, VERSION)
    (known,) = server.slices.values()
    server.requests.clear()
    assert not publisher.publish(GPUS, VERSION, [known])
    assert not server.requests
    for stale in ([], [known, known], None):
        assert not publisher.publish(GPUS, VERSION, stale)
    assert server.requests["list", "resourceslices"] == 3
    assert publisher.publish(GPUS[:1], VERSION, [known])


def test_slices_of_older_generations_go_and_others_stay(server: ApiServer, cluster: Cluster) -> None:
    publisher = Publisher(cluster, "node-a")
    publisher.publish(GPUS, VERSION)
    (made,) = server.slices.values()
    old = made | {"metadata": made["metadata"] | {"name": "old"}}
    new = made | {"metadata": made["metadata"] | {"name": "new"}}
    new["spec"] = made["spec"] | {"pool": made["spec"]["pool"] | {"generation": 7}}
    elsewhere = made | {"metadata": made["metadata"] | {"name": "elsewhere"}}
    elsewhere["spec"] = made["spec"] | {"nodeName": "node-b"}
    server.slices = {"old": old, "new": new, "elsewhere": elsewhere}
    assert publisher.publish(GPUS, VERSION)
    assert set(server.slices) == {"new", "elsewhere"}
    assert not publisher.publish(GPUS, VERSION)


def test_gpus_that_are_gone_and_such_in_mig_mode_are_not_offered(server: ApiServer, cluster: Cluster) -> None:
    publisher = Publisher(cluster, "node-a")
    publisher.publish([GPUS[0], replace(GPUS[1], mig_enabled=True)], VERSION)
    (made,) = server.slices.values()
    assert [each["name"] for each in made["spec"]["devices"]] == [GPUS[0].uuid.lower()]
    publisher.publish([], VERSION)
    (made,) = server.slices.values()
    assert "devices" not in made["spec"]  # as the server prints an empty list
    assert not Publisher(cluster, "node-a").publish([], VERSION)
    publisher.publish(GPUS, VERSION)
    (made,) = server.slices.values()
    assert len(made["spec"]["devices"]) == len(GPUS)


def test_without_consumable_capacity_nothing_is_offered_at_any_time(tmp_path: Path) -> None:
    with ApiServer("1.34", has_shares=False).running() as server:
        with pytest.raises(ClusterError, match="DRAConsumableCapacity"):
            Publisher(Cluster(server.kubeconfig(tmp_path)), "node-a").publish(GPUS, VERSION)
        assert not server.slices and not server.writes


def test_one_of_several_servers_that_knows_no_shares(server: ApiServer, cluster: Cluster) -> None:
    """A dry run may be answered by another server than what follows it."""

    class Elsewhere(Cluster):
        def create_slice(self, body: dict[str, Any], is_dry: bool = False) -> dict[str, Any]:
            server.has_shares = is_dry
            return super().create_slice(body, is_dry)

    cluster.__class__ = Elsewhere
    with pytest.raises(ClusterError, match="DRAConsumableCapacity"):
        Publisher(cluster, "node-a").publish(GPUS, VERSION)
    assert not server.slices


def test_a_change_by_somebody_else_in_between_is_not_written_over(server: ApiServer, cluster: Cluster) -> None:
    Publisher(cluster, "node-a").publish(GPUS, VERSION)
    (made,) = cluster.slices("node-a")
    made["metadata"]["resourceVersion"] = "99"
    with pytest.raises(ClusterError, match="modified"):
        cluster.replace_slice(made["metadata"]["name"], made)


def test_an_unknown_node_and_a_server_that_is_gone_are_said_in_one_line(server: ApiServer, cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="node-x"):
        Publisher(cluster, "node-x").publish(GPUS, VERSION)
    server.stop()
    with pytest.raises(ClusterError, match="does not answer"):
        Publisher(cluster, "node-a").publish(GPUS, VERSION)


def test_a_server_that_hangs_is_asked_twice_at_most(
    server: ApiServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelet waits 45 s for a claim; were the API server given a minute, it would never hear why."""
    monkeypatch.setattr(dra_cluster, "_ANSWER_S", 1)
    server.answers_after_s = 10
    with pytest.raises(ClusterError, match="does not answer"):
        cluster.claim("lab", "share")
    assert server.asked <= 2


def test_the_kernel_asks_after_a_server_that_an_idle_watch_hears_nothing_of(cluster: Cluster) -> None:
    """Nobody else would: a load balancer, say, may have forgotten the connection."""
    port = int(cluster._server.rpartition(":")[2])
    with cluster.watching_slices("node-a"):
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        timers = [row[5].split(":") for row in rows if int(row[2].rpartition(":")[2], 16) == port and row[3] == "01"]
    assert [kind for kind, _ in timers] == ["02"]  # that of keepalive, in ticks of 10 ms
    assert all(int(ticks, 16) <= 15 * 100 for _, ticks in timers)


def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    for text in (None, "nonsense: [", "apiVersion: v1\nkind: Config\n"):
        path = tmp_path / "config"
        if text is not None:
            path.write_text(text)
        with pytest.raises(ClusterError, match="--kubeconfig"):
            Cluster(str(path))


@pytest.mark.parametrize("size_bytes", [*(size // MIB * MIB for size in SIZES), 1 << 40, 3 << 30, MIB, 0, 4097])
def test_sizes_are_written_as_the_server_writes_them(size_bytes: int) -> None:
    from kubernetes.utils.quantity import parse_quantity

    text = binary_quantity(size_bytes)
    assert parse_quantity(text) == size_bytes
    number = text.rstrip("KMGTPi")
    assert size_bytes == 0 or int(number) % 1024 or text.endswith("Pi"), "a larger suffix would have done"


@pytest.mark.parametrize(
    ("text", "version"),
    [("580.159.04", "580.159.4"), ("470.82", "470.82.0"), ("0.0.0", "0.0.0"), ("N/A", None), ("1.2.3.4", None)],
)
def test_versions_of_drivers(text: str, version: str | None) -> None:
    assert semantic_version(text) == version


def test_the_servers_rules_are_really_checked() -> None:
    good = {"default": "8Gi", "validRange": {"min": "1Mi", "step": "1Mi"}}
    check_policy(8 * 1024 * MIB, good)  # type: ignore[arg-type]
    for bad in ({"default": "9Gi"}, {"default": "1"}, {"validRange": {"min": "0", "step": "3Mi"}}):
        with pytest.raises(ValueError, match="requestPolicy"):
            check_policy(8 * 1024 * MIB, good | bad)  # type: ignore[arg-type]
