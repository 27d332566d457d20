"""The parameters that a claim or a device class may give the driver beside memory and compute.

opaque:
  driver: gpu.vgpurun.io
  parameters: {apiVersion: gpu.vgpurun.io/v1, kind: GpuConfig, smPolicy: burst, priority: low}

With `together: true` all containers of the claim work at the same time (together.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vgpurun.errors import ClaimError
from vgpurun.kubernetes.dra.model import DRIVER
from vgpurun.limits.policies import PRIORITIES, SM_POLICIES, Priority, SmPolicy

API_VERSION = f"{DRIVER}/v1"
KIND = "GpuConfig"


class GpuConfig(NamedTuple):
    """When a compute limit holds, which container goes first, and whether all of a claim work at the same time."""

    sm_policy: SmPolicy = SmPolicy.HARD
    priority: Priority = Priority.HIGH
    together: bool = False


def config_of(entries: Sequence[Mapping[str, Any]], request: str) -> GpuConfig:
    """Return what the configuration of an allocation says for a request, which may be named request/subrequest.

    The entries of the device class come first, those of the claim go over them, one key at a time. Raises ClaimError
    for parameters of ours that are not understood; those of other drivers are not ours to read.
    """
    config = GpuConfig()
    for entry in sorted(entries, key=lambda entry: entry.get("source") != "FromClass"):
        opaque = entry.get("opaque")
        if not isinstance(opaque, Mapping) or opaque.get("driver") != DRIVER:
            continue
        names = entry.get("requests") or []
        if not names or request in names or request.partition("/")[0] in names:
            config = _over(config, opaque.get("parameters"))
    return config


def _over(config: GpuConfig, parameters: Any) -> GpuConfig:
    """A configuration with the keys of some parameters in the place of its own."""
    if not isinstance(parameters, Mapping):
        raise ClaimError(
            f"the parameters for {DRIVER} are not an object; write apiVersion: {API_VERSION}, kind: {KIND}"
        )
    given = dict(parameters)
    version, kind = given.pop("apiVersion", None), given.pop("kind", None)
    if (version, kind) != (API_VERSION, KIND):
        raise ClaimError(
            f"the parameters for {DRIVER} are {kind} of {version}; write apiVersion: {API_VERSION}, kind: {KIND}"
        )
    if "smPolicy" in given:
        config = config._replace(sm_policy=_one_of("smPolicy", given.pop("smPolicy"), SM_POLICIES))
    if "priority" in given:
        config = config._replace(priority=_one_of("priority", given.pop("priority"), PRIORITIES))
    if "together" in given:
        config = config._replace(together=_true_or_false("together", given.pop("together")))
    if given:
        raise ClaimError(f"{KIND} has no '{next(iter(given))}'; it has smPolicy, priority and together")
    return config


def _one_of(key: str, value: Any, values: Mapping[str, Any]) -> Any:
    if not isinstance(value, str) or value not in values:
        raise ClaimError(f"{KIND}: {key} '{value}' is not one of {', '.join(values)}")
    return values[value]


def _true_or_false(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ClaimError(f"{KIND}: {key} '{value}' is not true or false")
    return value
