"""The files that a slice shares with its containers."""

from collections.abc import Callable, Sequence

from vgpurun.host import library, simulation
from vgpurun.host.drivers import DriverPlan
from vgpurun.limits.device_quotas import shared_files
from vgpurun.limits.model import DeviceQuota


def slice_files(quotas: Sequence[DeviceQuota], driver: str, say: Callable[[str], None]) -> dict[str, bytes]:
    """Return them by relative path. `driver` is host or sim. Raises DriverError and LibraryError."""
    plan = DriverPlan("host")
    if driver == "sim":
        plan = simulation.plan_container(library.find_simulated_driver(say), [each.gpu for each in quotas])
    return shared_files(quotas, plan)
