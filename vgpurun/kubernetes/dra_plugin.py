"""The life of the DRA plugin: it serves kubelet, and looks every now and then whether all is still as published."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from vgpurun.console.signals import Ending
from vgpurun.errors import GpuError, VgpurunError
from vgpurun.host.gpus import Gpu, list_gpus, read_driver
from vgpurun.kubernetes.dra_cluster import Cluster
from vgpurun.kubernetes.dra_devices import ClaimDevices, NodeDriver
from vgpurun.kubernetes.dra_driver import Driver
from vgpurun.kubernetes.dra_publish import Publisher
from vgpurun.kubernetes.dra_service import DraService, Sockets
from vgpurun.kubernetes.dra_state import Claims
from vgpurun.kubernetes.gpu_health import Health, watch
from vgpurun.kubernetes.probes import Pulse

# A pod whose claim was prepared this long ago, and that uses no GPU, is not about to start.
_LOST_AFTER_S = 600
_STUCK_AFTER_S = 900  # an API server that does not answer takes its time, too


class Plugin:
    """The DRA plugin of a node. `kubelet`, `cdi` and `root` are folders; `say` is given a line for the log."""

    def __init__(
        self,
        node: str,
        cluster: Cluster,
        node_driver: NodeDriver,
        library: Path,
        kubelet: Path,
        cdi: Path,
        root: Path,
        say: Callable[[str], None],
    ) -> None:
        self._say = say
        self._publisher = Publisher(cluster, node)
        self._driver = Driver(node, cluster, Claims(root), ClaimDevices(cdi, node_driver), library, list_gpus, say)
        self._sockets = Sockets(kubelet, DraService(self._driver, say), say)
        self._trouble = ""
        self.pulse = Pulse(_STUCK_AFTER_S)
        self._health = Health()
        self._is_watching = False
        self._is_over = threading.Event()

    def run(self, ending: Ending, interval_s: float) -> None:
        """Serve until it is told to end. Raises StateError and KubernetesError for what cannot be served at all."""
        self._driver.resume()
        self._sockets.open()
        try:
            while True:
                self._look()
                if ending.wait(interval_s):
                    return
                self._sockets.reopen_if_gone()
        finally:
            self._is_over.set()
            self._sockets.close()

    def _watch_faults(self, gpus: Sequence[Gpu]) -> None:
        """From the first look on: a GPU with a fault is no longer offered, and what runs on it is left alone."""
        if self._is_watching:
            return
        self._is_watching = True

        def keep_watching() -> None:
            try:
                watch(gpus, self._health, self._is_over.is_set, self._say)
            except GpuError as error:
                self._say(f"warning: faults of the GPUs are not noticed: {error}")

        threading.Thread(target=keep_watching, name="faults", daemon=True).start()

    def _look(self) -> None:
        """Publish what has changed. An API server that is away is said once, and asked again the next time."""
        trouble = ""
        try:
            found = list_gpus()
            version = read_driver(found).version
            self._watch_faults(found)
            gpus = [gpu for gpu in found if self._health.reason(gpu.uuid) is None]
        except GpuError as error:  # none are offered then, and kubelet is served all the same
            gpus, version, trouble = [], "", str(error)
        try:
            if self._publisher.publish(gpus, version):
                self._say(f"published {len(gpus)} GPU{'s' * (len(gpus) != 1)}")
            self._driver.release_lost(_LOST_AFTER_S)
        except VgpurunError as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            self._say(f"warning: {trouble}")
        self._trouble = trouble
        self.pulse.beat(self._sockets.registrar.is_registered and not trouble)
