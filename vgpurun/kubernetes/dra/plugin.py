"""The life of the DRA plugin: it serves kubelet, and looks every now and then whether all is still as published."""

import time
from collections.abc import Callable
from pathlib import Path

from vgpurun.console.signals import Ending
from vgpurun.errors import GpuError, VgpurunError
from vgpurun.host.gpus import Gpu, LostGpu, list_gpus, read_driver, survey, usable
from vgpurun.kubernetes.dra.cluster import Cluster
from vgpurun.kubernetes.dra.devices import ClaimDevices, NodeDriver
from vgpurun.kubernetes.dra.driver import Driver
from vgpurun.kubernetes.dra.health import HealthService
from vgpurun.kubernetes.dra.publish import Publisher
from vgpurun.kubernetes.dra.service import DraService, Sockets
from vgpurun.kubernetes.dra.state import Claims
from vgpurun.kubernetes.dra.watch import SliceWatch
from vgpurun.kubernetes.gpu_health import FaultWatch, Health
from vgpurun.kubernetes.locks import only_one
from vgpurun.kubernetes.pods import read_containers
from vgpurun.kubernetes.probes import Pulse
from vgpurun.storage import tenants

# A pod whose claim was prepared this long ago, and that uses no GPU, is not about to start.
_LOST_AFTER_S = 600
_STEP_S = 0.5  # changes are noticed after it, and the API server is asked no more often
_AGAIN_S = 5.0  # until what has failed is tried again
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
        self._watch = SliceWatch(cluster, node, say)
        self._health = Health()
        self._faults = FaultWatch(self._health, say)
        self._known: dict[str, Gpu] = {}
        devices = ClaimDevices(cdi, node_driver)
        self._driver = Driver(node, cluster, Claims(root), devices, library, list_gpus, say, self._health.reason)
        self._sockets = Sockets(
            kubelet,
            DraService(self._driver, say),
            lambda: HealthService(node, self._health, lambda: usable(list(self._known.values()))),
            say,
        )
        self._pod_resources = kubelet / "pod-resources" / "kubelet.sock"
        self._trouble = ""
        self._lost: list[LostGpu] = []
        self.pulse = Pulse(_STUCK_AFTER_S)

    def run(self, ending: Ending, interval_s: float) -> None:
        """Serve until it is told to end. Raises StateError and KubernetesError for what cannot be served at all."""
        with only_one(self._sockets.plugin_folder, ending.wait, self.pulse, self._say) as is_mine:
            if is_mine:
                self._serve(ending, interval_s)

    def _serve(self, ending: Ending, interval_s: float) -> None:
        self._driver.resume()
        self._sockets.open()
        self._watch.start()
        try:
            self._look_until(ending, interval_s)
        finally:
            self._watch.stop()
            self._sockets.close()
            self._faults.stop()

    def _look_until(self, ending: Ending, interval_s: float) -> None:
        look_at_s = time.monotonic()
        while True:
            if (has_news := self._watch.has_news.is_set()) or time.monotonic() >= look_at_s:
                self._watch.has_news.clear()
                self._look(has_news)
                look_at_s = time.monotonic() + (min(interval_s, _AGAIN_S) if self._trouble else interval_s)
            self.pulse.beat(self._sockets.registrar.is_registered and not self._trouble)
            if ending.wait(min(interval_s, _STEP_S)):
                return
            self._sockets.reopen_if_gone()

    def _look(self, has_news: bool) -> None:
        """Publish what has changed. An API server that is away is said once, and asked again the next time.

        `has_news`: it may be another one, or have been started with other options.
        """
        tenants.sweep_others()
        trouble = ""
        try:
            found, lost = survey()
            self._say_new_of(lost)
            version = read_driver(found).version
            self._known = self._known | {gpu.uuid: gpu for gpu in found}
            self._faults.include(list(self._known.values()))
            gpus = [gpu for gpu in found if self._health.reason(gpu.uuid) is None]
        except GpuError as error:  # none are offered then, and kubelet is served all the same
            gpus, version, trouble = [], "", str(error)
        try:
            if self._publisher.publish(gpus, version, self._watch.slices(), checks_shares=has_news):
                self._say(f"published {len(gpus)} GPU{'s' * (len(gpus) != 1)}")
            self._driver.release_lost(_LOST_AFTER_S, self._claims_of_pods)
            self._driver.restore_tenants()
        except VgpurunError as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            self._say(f"warning: {trouble}")
        self._trouble = trouble

    def _claims_of_pods(self) -> set[tuple[str, str]]:
        """Return the claims, by namespace and name, that pods of this node have. Raises KubernetesError."""
        return {claim for each in read_containers(self._pod_resources) for claim in each.claims}

    def _say_new_of(self, lost: list[LostGpu]) -> None:
        for each in lost:
            if each not in self._lost:
                self._say(f"warning: {each}")
        self._lost = lost
