"""The GPUs that a command works with: this host's or the simulated ones. Warns of those that are out of reach."""

from typing import TYPE_CHECKING

from vgpurun.console.messages import say, warn
from vgpurun.errors import DriverError, GpuError, LibraryError, NoDriverError

if TYPE_CHECKING:
    from vgpurun.host.gpus import Gpu, Survey  # slow to import


def activate_simulation() -> None:
    """Make this process see the simulated GPUs. Raises GpuError, DriverError and LibraryError."""
    from vgpurun.host import library, simulation

    simulation.activate(library.find_simulated_driver(say))


def libcuda(is_simulated: bool) -> str:
    """Return the name of the driver's library, or of the simulated one's. Raises LibraryError."""
    from vgpurun.host.library import find_simulated_driver

    return str(find_simulated_driver(say) / "libcuda.so.1") if is_simulated else "libcuda.so.1"


def visible_gpus(is_simulated: bool) -> "list[Gpu]":
    """Return the GPUs of this host, or the simulated ones; say which the driver cannot reach.

    Raises GpuError, DriverError and LibraryError.
    """
    return warned_of(survey_gpus(is_simulated)).gpus


def warned_of(found: "Survey") -> "Survey":
    """Say which GPUs the driver cannot reach."""
    for each in found.lost:
        warn(str(each))
    return found


def survey_gpus(is_simulated: bool) -> "Survey":
    """Return the GPUs of this host, or the simulated ones. Raises GpuError, DriverError and LibraryError."""
    from vgpurun.host.gpus import survey

    if not is_simulated:
        return survey()
    activate_simulation()
    try:
        return survey()
    except NoDriverError:
        raise GpuError("the simulated GPU does not start, for the reason above") from None


def gpus_if_any(is_simulated: bool) -> "list[Gpu]":
    """Return the GPUs of this host; without any, say so and return none. Raises OptionError."""
    try:
        return visible_gpus(is_simulated)
    except (GpuError, DriverError, LibraryError) as error:
        warn(f"the GPUs are not shown: {error}")
        return []
