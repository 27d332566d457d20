"""Which walls hold a launch's memory limits: the library alone, or the driver's own limits as well (`--enforce`)."""

from collections.abc import Sequence
from pathlib import Path

from vgpurun.errors import EnforceError
from vgpurun.host import limits_device, memory_limits
from vgpurun.host.drivers import DeviceRequest, EngineFacts
from vgpurun.host.gpus import Gpu


def check_host(mode: str, gpus: Sequence[Gpu]) -> None:
    """Refuse `--enforce driver` where no GPU of the host can have it. Raises EnforceError."""
    if mode == "driver" and (missing := min((memory_limits.lacking([gpu]) for gpu in gpus), default="")):
        raise _refusal(missing)


def enforcing_device(
    mode: str, gpus: Sequence[Gpu], facts: EngineFacts, simulated_driver: Path | None, is_dry_run: bool
) -> DeviceRequest | None:
    """Return the device by which the engine has the driver's own limits set; None where the library holds alone.

    Root's launch makes the device where there is none yet. Raises EnforceError where `driver` cannot be.
    """
    if mode == "library":
        return None
    missing = memory_limits.lacking(gpus)
    is_simulated = simulated_driver is not None
    if not missing and facts.cdi_folders and not facts.is_rootless and facts.has_this_root:
        missing = "" if is_dry_run else _make_device(Path(facts.cdi_folders[-1]), simulated_driver)
    elif not missing:
        missing = limits_device.lacking_of_engine(facts, is_simulated)
    if missing and mode == "driver":
        raise _refusal(missing)
    return None if missing else DeviceRequest("cdi", (limits_device.device_name(is_simulated),))


def _make_device(folder: Path, simulated_driver: Path | None) -> str:
    """Make the device; return why it cannot be, or nothing."""
    try:
        limits_device.write_device(folder, simulated_driver)
    except EnforceError as error:
        return str(error)
    return ""


def _refusal(missing: str) -> EnforceError:
    return EnforceError(f"--enforce driver: {missing}; use auto, which takes what this host supports, or library")
