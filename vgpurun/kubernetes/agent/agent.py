"""The node agent: removes what dead pods have left, and tells the metrics which pod has what."""

from collections.abc import Callable
from pathlib import Path

from vgpurun.console.signals import Ending
from vgpurun.errors import KubernetesError, VgpurunError
from vgpurun.inventory.reservations import Holder
from vgpurun.kubernetes.agent.sweep import Sweeper
from vgpurun.kubernetes.agent.tenants import find_tenants
from vgpurun.kubernetes.checkpoint import FILE_NAME, read_holdings
from vgpurun.kubernetes.pods import read_containers
from vgpurun.kubernetes.state import all_folders
from vgpurun.storage import tenants

_LOOKS = 3  # so many looks find a folder unused before it goes


class Agent:
    """The agent of a node. `root` has the state folders; `say` is given a line for the log."""

    def __init__(self, root: Path, kubelet: Path, say: Callable[[str], None]) -> None:
        self._root = root
        self._socket = kubelet / "pod-resources" / "kubelet.sock"
        self._record = kubelet / "device-plugins" / FILE_NAME
        self._sweeper = Sweeper(root, _LOOKS)
        self._say = say
        self._trouble = ""

    def tenants(self) -> list[Holder]:
        """Return who holds parts of GPUs now, by their pods. Raises KubernetesError."""
        return find_tenants(self._root, read_containers(self._socket))

    def run(self, ending: Ending, interval_s: float) -> None:
        """Sweep every now and then until it is told to end; without kubelet's word nothing is removed."""
        while True:
            trouble = ""
            tenants.sweep_others()
            try:
                self._sweep()
            except VgpurunError as error:
                trouble = str(error)
            if trouble and trouble != self._trouble:
                self._say(f"warning: {trouble}")
            self._trouble = trouble
            if ending.wait(interval_s):
                return

    def _sweep(self) -> None:
        if not any(all_folders(self._root)):
            return
        if not self._record.exists():
            raise KubernetesError(f"kubelet's record {self._record} is not there, and nothing is removed without it")
        for folder in self._sweeper.look(read_containers(self._socket), read_holdings(self._record)):
            self._say(f"removed {folder}: its pod is gone")
