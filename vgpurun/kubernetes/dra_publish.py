"""Keeps the ResourceSlice of this node as its GPUs are; what has not changed is not written again."""

from collections.abc import Sequence
from typing import Any, Protocol

from vgpurun.errors import ClusterError
from vgpurun.host.gpus import Gpu
from vgpurun.kubernetes.dra_model import API_VERSION, slice_spec


class Slices(Protocol):
    """The part of dra_cluster.Cluster that is needed here."""

    def node_uid(self, node: str) -> str: ...  # noqa: D102
    def slices(self, node: str) -> list[dict[str, Any]]: ...  # noqa: D102
    def create_slice(self, body: dict[str, Any]) -> dict[str, Any]: ...  # noqa: D102
    def replace_slice(self, name: str, body: dict[str, Any]) -> dict[str, Any]: ...  # noqa: D102
    def delete_slice(self, name: str) -> None: ...  # noqa: D102


class Publisher:
    """Publishes the GPUs of one node."""

    def __init__(self, cluster: Slices, node: str) -> None:
        self._cluster = cluster
        self._node = node

    def publish(self, gpus: Sequence[Gpu], driver_version: str) -> bool:
        """Make the API server have these GPUs in one slice. Returns whether that needed a change.

        Raises ClusterError, also where the cluster would hand out whole GPUs since it knows no shares of them.
        """
        found = sorted(self._cluster.slices(self._node), key=_generation)
        current = found.pop() if found else None
        wanted = slice_spec(self._node, gpus, driver_version, _generation(current) + 1)
        has_changed = current is None or not _is_as(current, wanted)
        if current is None:
            _check_shares(self._cluster, self._cluster.create_slice(self._new(wanted)))
        elif has_changed:
            body = {**current, "spec": wanted}
            _check_shares(self._cluster, self._cluster.replace_slice(current["metadata"]["name"], body))
        for old in found:  # what another plugin has left: of an older generation, so nobody uses it any more
            self._cluster.delete_slice(old["metadata"]["name"])
        return has_changed or bool(found)

    def _new(self, spec: dict[str, Any]) -> dict[str, Any]:
        """A slice that goes when its node does."""
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self._node,
            "uid": self._cluster.node_uid(self._node),
            "controller": True,
        }
        metadata = {"generateName": f"{self._node}-gpu.vgpurun.io-", "ownerReferences": [owner]}
        return {"apiVersion": API_VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _generation(found: dict[str, Any] | None) -> int:
    """The generation of a slice's pool."""
    return int(found["spec"]["pool"]["generation"]) if found else 0


def _is_as(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a slice has what is wanted, its generation aside."""
    pool = {**wanted["pool"], "generation": _generation(found)}
    return bool(found["spec"] == {**wanted, "pool": pool})


def _check_shares(cluster: Slices, made: dict[str, Any]) -> None:
    """A server without the feature drops what it does not know, and a claim would get a GPU to itself."""
    devices = made["spec"].get("devices") or []
    if all(each.get("allowMultipleAllocations") for each in devices):
        return
    cluster.delete_slice(made["metadata"]["name"])
    raise ClusterError(
        "the API server does not keep shares of devices; turn on the feature gate DRAConsumableCapacity "
        "(Kubernetes 1.34; on by default from 1.36)"
    )
