"""Knows this node's ResourceSlices without asking, and notices at once when one is gone.

Kubelet deletes them whenever kubelet starts.
"""

import threading
from collections.abc import Callable
from typing import Any

from vgpurun.errors import ClusterError
from vgpurun.kubernetes.dra.cluster import Cluster

_AGAIN_S = 5.0  # until an API server that has not let it listen is asked again
_NEXT_S = 0.5  # from the end of a watch, which the API server ends every now and then, to the next one


class SliceWatch:
    """Listens in the background. `say` is given a line when the API server does not let it."""

    def __init__(self, cluster: Cluster, node: str, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._node = node
        self._say = say
        self._said = ""
        self._over = threading.Event()
        self._slices: dict[str, dict[str, Any]] | None = None  # replaced as a whole: another thread reads it
        self.has_news = threading.Event()  # set when a slice was deleted, or may have been while nobody listened

    def start(self) -> None:
        """Listen until stop()."""
        threading.Thread(target=self._run, name="slices", daemon=True).start()

    def slices(self) -> list[dict[str, Any]] | None:
        """Return the slices as the API server has told of them; None while it does not."""
        slices = self._slices
        return None if slices is None else list(slices.values())

    def stop(self) -> None:
        """Listen no more; a watch that is open is left to its end."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            trouble = ""
            try:
                self._listen()
            except ClusterError as error:
                self._slices = None
                trouble = f"warning: the deletion of this node's ResourceSlice may be noticed late: {error}"
            if trouble and trouble != self._said:
                self._say(trouble)
            self._said = trouble
            self._over.wait(_AGAIN_S if trouble else _NEXT_S)

    def _listen(self) -> None:
        with self._cluster.watching_slices(self._node) as events:
            slices: dict[str, dict[str, Any]] = {}
            self._slices = slices  # existing slices come first
            self.has_news.set()
            for event in events:
                self._slices = slices = _after(slices, event)
                if event["type"] == "DELETED":
                    self.has_news.set()


def _after(slices: dict[str, dict[str, Any]], event: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the slices, by their names, after what an event tells of one of them."""
    name = event["object"]["metadata"]["name"]
    others = {each: found for each, found in slices.items() if each != name}
    return others if event["type"] == "DELETED" else {**others, name: event["object"]}
