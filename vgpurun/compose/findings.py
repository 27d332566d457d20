"""Finds what people write for a share of a GPU in a Compose file, and says that it does nothing.

nodes.py tells where in the file it stands, and rewrite.py puts something else there.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from yaml import MappingNode, Node, SequenceNode

from vgpurun import abi
from vgpurun.compose.nodes import Entry, child, entries, entry, items, text_of
from vgpurun.errors import LimitError
from vgpurun.limits import quota

MEMORY_KEYS = {
    "memory", "mem", "mem_limit", "memory_limit", "max_memory", "gpu_memory", "gpu_mem", "gpumem", "gpu_memory_limit",
    "vram", "vram_limit",
}  # fmt: skip
SM_KEYS = {"sm", "sm_limit", "compute", "cores", "gpu_cores", "gpucores", "gpu_percent", "utilization", "compute_limit"}
# Keys of a service, and of deploy.resources: there `memory` and `cpus` are the host's.
_GPU_ONLY = {name for name in MEMORY_KEYS | SM_KEYS if "gpu" in name or "vram" in name}
_MEMORY_VARIABLE = re.compile(
    rf"({abi.ENV_MEMORY_LIMIT}|{abi.ENV_WRAPPER_MEMORY}|(NVIDIA_)?(GPU|CUDA)_MEM(ORY)?(_LIMIT)?|VRAM_LIMIT)(_[0-9]+)?"
)
_SM_VARIABLE = re.compile(rf"({abi.ENV_SM_LIMIT}|{abi.ENV_ALNAIR_SM}|(GPU|CUDA)_SM_LIMIT)(_[0-9]+)?")
_OWN_VARIABLES = ("LD_PRELOAD", abi.ENV_USAGE_FILE)


@dataclass(frozen=True)
class Finding:
    """A line that does not do what it says. `node` is what stands in the file: an entry, or an item of a list."""

    line: int
    shown: str
    reason: str
    node: Entry | Node


@dataclass
class Service:
    """A service with something found. `memory` and `sm` are limits as they were written; `gpus` is for --gpus."""

    name: str
    node: MappingNode
    findings: list[Finding] = field(default_factory=list)
    memory: str | None = None
    sm: str | None = None
    device: MappingNode | None = None
    unreadable: list[str] = field(default_factory=list)

    @property
    def gpus(self) -> str | None:
        """Which GPUs it asks for, as --gpus takes it; None: one."""
        ids = [text for each in items(child(self.device, "device_ids")) if (text := text_of(each))]
        count = text_of(child(self.device, "count"))
        return f"device={','.join(ids)}" if ids else count if count not in (None, "1") else None


def services(root: MappingNode) -> list[Service]:
    """Return the services in which something is found, in their order."""
    written = entries(child(root, "services"))
    found = [_service(each.name, each.value) for each in written if isinstance(each.value, MappingNode)]
    return [each for each in found if each.findings]


def _service(name: str, node: MappingNode) -> Service:
    service = Service(name, node)
    resources = child(node, "deploy", "resources")
    devices = [each for each in items(child(resources, "reservations", "devices")) if isinstance(each, MappingNode)]
    service.device = next(iter(devices), None)
    for device in devices:
        of_options = [each for each in entries(child(device, "options")) if each.name in MEMORY_KEYS | SM_KEYS]
        _take(service, of_options, "options.", "options go to the driver, and NVIDIA's knows none")
        own = [each for each in entries(device) if each.name in MEMORY_KEYS | SM_KEYS]
        _take(service, own, "", "a device has no such key: docker compose refuses the file")
    for part in ("limits", "reservations"):
        own = [each for each in entries(child(resources, part)) if each.name in _GPU_ONLY]
        _take(service, own, f"deploy.resources.{part}.", "there is no such key: docker compose refuses the file")
    own = [each for each in entries(node) if each.name in _GPU_ONLY]
    _take(service, own, "", "a service has no such key: docker compose refuses the file")
    _take_variables(service)
    if service.findings:
        _take_rest(service)
    service.findings.sort(key=lambda finding: finding.line)
    return service


def _take(service: Service, found: list[Entry], prefix: str, reason: str) -> None:
    for each in found:
        text = text_of(each.value) or "..."
        finding = Finding(each.line, f"{prefix}{each.name}: {text}", f"does nothing: {reason}", each)
        _limit(service, finding, each.name in MEMORY_KEYS, text)


def _limit(service: Service, finding: Finding, is_memory: bool, text: str) -> None:
    service.findings.append(finding)
    try:
        if is_memory:
            quota.parse_limit(text)
            service.memory = service.memory or text
        else:
            quota.parse_sm(text)
            service.sm = service.sm or text.removesuffix("%")
    except LimitError as error:
        service.unreadable.append(f"{finding.line}: {error}")


def variables(node: Node) -> Iterator[tuple[str, str, int, Entry | Node]]:
    """Yield a service's variables: name, value, line and where they stand."""
    environment = child(node, "environment")
    for each in entries(environment):
        yield each.name, text_of(each.value) or "", each.line, each
    if isinstance(environment, SequenceNode):
        for item in environment.value:
            name, _, value = (text_of(item) or "").partition("=")
            yield name, value, item.start_mark.line + 1, item


def _take_variables(service: Service) -> None:
    """Without a library that reads them they are text; with one they hold, but not for a program that drops them."""
    found = list(variables(service.node))
    has_library = any(name == "LD_PRELOAD" and "libvgpu" in value for name, value, *_ in found)
    reason = (
        "holds for a program that keeps its variables, and for no other (env -i, su, ssh)"
        if has_library
        else "does nothing: no library in the container reads it"
    )
    for name, value, line, node in found:
        is_memory = _MEMORY_VARIABLE.fullmatch(name) is not None
        if is_memory or _SM_VARIABLE.fullmatch(name):
            _limit(service, Finding(line, f"{name}={value}", reason, node), is_memory, value)


def _take_rest(service: Service) -> None:
    """Find keys that only served the above, and are in the way of the device."""
    runtime = entry(service.node, "runtime")
    if runtime and text_of(runtime.value) == "nvidia":
        reason = "goes: the device brings the driver, with every runtime"
        service.findings.append(Finding(runtime.line, "runtime: nvidia", reason, runtime))
    for name, value, line, node in variables(service.node):
        if (name in _OWN_VARIABLES and ("vgpu" in value)) or name == "NVIDIA_VISIBLE_DEVICES":
            reason = "goes: the device says so"
            service.findings.append(Finding(line, f"{name}={value}", reason, node))
    for each in items(child(service.node, "volumes")):
        text = text_of(each) or ""
        if f":{abi.CONTAINER_DIR}/" in text or "/tmp/vgpulock" in text:
            service.findings.append(Finding(each.start_mark.line + 1, text, "goes: the device brings it", each))
