"""The files that a slice shares with its containers."""

from collections.abc import Callable, Sequence

from vgpurun.host import library, simulation
from vgpurun.host.drivers import DriverPlan
from vgpurun.host.gpus import Gpu, of_same_kind
from vgpurun.limits.device_quotas import shared_files
from vgpurun.limits.model import DeviceQuota


def slice_files(
    quotas: Sequence[DeviceQuota], driver: str, gpus: Sequence[Gpu], is_movable: bool, say: Callable[[str], None]
) -> dict[str, bytes]:
    """Return them by relative path. `driver` is host or sim, `gpus` are all of it. Raises DriverError, LibraryError."""
    plan = DriverPlan("host")
    if driver == "sim":
        chosen = [each.gpu for each in quotas]
        reached = of_same_kind(chosen, gpus) if is_movable else chosen
        plan = simulation.plan_container(library.find_simulated_driver(say), reached)
    return shared_files(quotas, plan, is_movable=is_movable)
