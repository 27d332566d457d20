"""The policies of compute limits, and the priorities of containers that share a GPU."""

from collections.abc import Mapping
from enum import Enum

from vgpurun import abi
from vgpurun.errors import LimitError


class SmPolicy(Enum):
    """When the compute limit of a container holds."""

    HARD = abi.SM_HARD
    BURST = abi.SM_BURST
    OFF = abi.SM_OFF


class Priority(Enum):
    """Which container goes first when several share a GPU."""

    HIGH = abi.PRIORITY_HIGH
    LOW = abi.PRIORITY_LOW


SM_POLICIES = {policy.name.lower(): policy for policy in SmPolicy}
PRIORITIES = {priority.name.lower(): priority for priority in Priority}
_HAMI_POLICIES = {"force": SmPolicy.HARD, "default": SmPolicy.BURST, "disable": SmPolicy.OFF}
_HAMI_PRIORITIES = {"0": Priority.HIGH, "1": Priority.LOW}


def choose_policy(option: SmPolicy | None, environment: Mapping[str, str]) -> SmPolicy:
    """Return what --sm-policy says, else HAMi's variable, else that the limit holds always. Raises LimitError."""
    if option is not None:
        return option
    text = environment.get(abi.ENV_SM_POLICY, "").strip(" \t")
    policy = _HAMI_POLICIES.get(text.lower() or "force")
    if policy is None:
        raise LimitError(f"{abi.ENV_SM_POLICY}={text} is not one of {', '.join(_HAMI_POLICIES)}")
    return policy


def choose_priority(option: Priority | None, environment: Mapping[str, str]) -> Priority:
    """Return what --priority says, else HAMi's variable, else the high one. Raises LimitError."""
    if option is not None:
        return option
    text = environment.get(abi.ENV_PRIORITY, "").strip(" \t")
    priority = _HAMI_PRIORITIES.get(text or "0")
    if priority is None:
        raise LimitError(f"{abi.ENV_PRIORITY}={text} is neither 0 (high) nor 1 (low)")
    return priority
