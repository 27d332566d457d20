"""Keeps the ResourceSlice of this node as its GPUs are; what has not changed is not written again."""

from collections.abc import Sequence
from typing import Any

from vgpurun.errors import ClusterError
from vgpurun.host.gpus import Gpu
from vgpurun.kubernetes.dra.cluster import Cluster
from vgpurun.kubernetes.dra.model import API_VERSION, slice_spec


class Publisher:
    """Publishes the GPUs of one node."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self._cluster = cluster
        self._node = node

    def publish(
        self,
        gpus: Sequence[Gpu],
        driver_version: str,
        known: Sequence[dict[str, Any]] | None = None,
        checks_shares: bool = False,
    ) -> bool:
        """Make the API server have these GPUs in one slice. Returns whether that needed a change.

        `known` are this node's slices where a watch tells of them: if they are as they should be, nothing is asked.
        Raises ClusterError, also where the cluster would hand out whole GPUs since it knows no shares of them. A slice
        keeps its shares when that feature is turned off; `checks_shares` asks whether a new one would have them.
        """
        try:
            is_known = not checks_shares and self._is_published(known or (), gpus, driver_version)
            return not is_known and self._publish(gpus, driver_version, checks_shares)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ClusterError(f"a ResourceSlice cannot be read: {type(error).__name__} {error}") from None

    def _is_published(self, known: Sequence[dict[str, Any]], gpus: Sequence[Gpu], driver_version: str) -> bool:
        return len(known) == 1 and _is_as(known[0], slice_spec(self._node, gpus, driver_version, _generation(known[0])))

    def _publish(self, gpus: Sequence[Gpu], driver_version: str, checks_shares: bool) -> bool:
        found = sorted(self._cluster.slices(self._node), key=_generation)
        wanted = slice_spec(self._node, gpus, driver_version, _generation(found[-1] if found else None) + 1)
        if checks_shares or not found:
            self._check_shares(self._cluster.create_slice(self._new(wanted), is_dry=True), found)
        current = found.pop() if found else None
        has_changed = current is None or not _is_as(current, wanted)
        if current is None:
            made = self._cluster.create_slice(self._new(wanted))
            self._check_shares(made, [made])
        elif has_changed:
            made = self._cluster.replace_slice(current["metadata"]["name"], {**current, "spec": wanted})
            self._check_shares(made, [made])
        self._delete(found)  # another plugin's leftovers: of an older generation, so nobody uses them any more
        return has_changed or bool(found)

    def _check_shares(self, kept: dict[str, Any], slices: Sequence[dict[str, Any]]) -> None:
        """A server without the feature drops what it does not know, and a claim would get a GPU to itself."""
        if all(each.get("allowMultipleAllocations") for each in kept["spec"].get("devices") or []):
            return
        self._delete(slices)
        raise ClusterError(
            "the API server does not keep shares of devices; turn on the feature gate DRAConsumableCapacity "
            "(Kubernetes 1.34; on by default from 1.36)"
        )

    def _delete(self, slices: Sequence[dict[str, Any]]) -> None:
        for each in slices:
            self._cluster.delete_slice(each["metadata"]["name"])

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
