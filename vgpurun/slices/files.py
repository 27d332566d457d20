"""The files that a slice shares with its containers."""

from collections.abc import Callable, Sequence

from vgpurun.host import library, simulation
from vgpurun.host.drivers import DriverPlan
from vgpurun.host.gpus import Gpu
from vgpurun.limits.device_quotas import shared_files
from vgpurun.limits.model import DeviceQuota


def slice_files(
    quotas: Sequence[DeviceQuota],
    driver: str,
    reached: Sequence[Gpu],
    say: Callable[[str], None],
    is_movable: bool = False,
) -> dict[str, bytes]:
    """Return them by relative path. `driver` is host or sim, `reached` are the GPUs whose devices its programs have.

    Raises DriverError and LibraryError.
    """
    plan = DriverPlan("host")
    if driver == "sim":
        plan = simulation.plan_container(library.find_simulated_driver(say), reached)
    return shared_files(quotas, plan, is_movable=is_movable)
