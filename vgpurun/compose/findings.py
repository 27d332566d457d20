"""Finds what people write for a share of a GPU in a Compose file, and says that it does nothing.

requests.py has the GPUs themselves, and rewrite.py puts a slice's device in the place of both.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ruamel.yaml.nodes import CollectionNode, MappingNode, Node

from vgpurun import abi
from vgpurun.compose.nodes import Place, child, entries, entry, items, text_of
from vgpurun.compose.requests import INSERTED, RESERVATIONS, Request, chosen, names_of_variable, requests
from vgpurun.errors import ComposeError, LimitError
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
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_NO_OPTIONS = "options go to the driver, and NVIDIA's knows none"


@dataclass(frozen=True)
class Finding:
    """A line that does not do what it says, or that goes with such a one, and where it stands."""

    shown: str
    reason: str
    place: Place

    @property
    def line(self) -> int:
        """Its line, from 1."""
        return self.place.line


@dataclass(frozen=True)
class Target:
    """The place of a slice's device, in the file as it was read.

    `node` is a request for GPUs, which becomes that device, if `missing` is None; else the device goes into it, below
    these keys, which are missing.
    """

    node: CollectionNode
    missing: Sequence[str] | None


@dataclass
class Service:
    """A service of a file. `memory` and `sm` are limits as they were written; `gpus` is for --gpus, None for one GPU.

    `target` is where the slice's device goes. `unreadable` says what to change by hand, after the line.
    """

    name: str
    node: MappingNode
    requests: Sequence[Request]
    target: Target
    findings: list[Finding] = field(default_factory=list)
    memory: str | None = None
    sm: str | None = None
    gpus: str | None = None
    unreadable: list[str] = field(default_factory=list)

    @property
    def limits(self) -> tuple[str | None, ...]:
        """Its slice's."""
        return self.memory, self.sm, self.gpus


def services(root: MappingNode) -> list[Service]:
    """Return all services in their order, also those in which nothing is found."""
    written = entries(child(root, "services"))
    found = [_service(each.name, each.value) for each in written if isinstance(each.value, MappingNode)]
    for each in found:
        if each.findings:
            _refuse_inherited(each, found)
    return found


def base_of(service: Service) -> str | None:
    """Return the name of the service that a service extends, if that one is in the same file."""
    extends = child(service.node, "extends")
    is_elsewhere = child(extends, "file") is not None
    return None if is_elsewhere else text_of(extends) or text_of(child(extends, "service"))


def _refuse_inherited(service: Service, found: Sequence[Service]) -> None:
    """Refuse `extends`, by which Compose may add whole GPUs of another service."""
    where = entry(service.node, "extends")
    base = next((each for each in found if each.name == base_of(service)), None)
    if where and not (base and not base.requests and not base.findings and not entry(base.node, "extends")):
        service.unreadable.append(f"{where.line}: extends: another service may bring whole GPUs; write its lines here")


def _service(name: str, node: MappingNode) -> Service:
    found = requests(node)
    service = Service(name, node, found, _target(node, found))
    resources = child(node, "deploy", "resources")
    no_key = "there is no such key: docker compose refuses the file"
    asked = [each.place.value for each in found]
    for device in (each for each in items(child(node, *RESERVATIONS)) if each.value in asked):
        _take(service, _options(device.value), "options.", _NO_OPTIONS)
        _take(service, _limits(device.value), "", "a device has no such key: docker compose refuses the file")
    for device in (each for each in items(child(node, "gpus")) if each.value in asked):
        _take(service, _options(device.value), "gpus: options.", _NO_OPTIONS)
        _take(service, _limits(device.value), "gpus: ", "there is no such key: docker compose drops it")
    for part in ("limits", "reservations"):
        _take(service, _limits(child(resources, part), _GPU_ONLY), f"deploy.resources.{part}.", no_key)
    _take(service, _limits(node, _GPU_ONLY), "", "a service has no such key: docker compose refuses the file")
    _take_variables(service)
    if service.findings:
        _take_gpus(service)
        _take_rest(service)
    service.findings.sort(key=lambda finding: finding.line)
    return service


def _target(service: MappingNode, found: Sequence[Request]) -> Target:
    in_place = child(service, *RESERVATIONS)
    for each in found:
        if each.place.parent is in_place and isinstance(each.place.value, MappingNode):
            return Target(each.place.value, None)
    node: CollectionNode = service
    missing = list(RESERVATIONS)
    while missing and isinstance(inner := child(node, missing[0]), CollectionNode):
        node = inner
        missing.pop(0)
    return Target(node, missing)


_Written = tuple[str, str, Place]  # a name, its text, and where both stand


def _limits(node: Node | None, names: Iterable[str] = MEMORY_KEYS | SM_KEYS) -> list[_Written]:
    return [(each.name, text_of(each.value) or "...", each) for each in entries(node) if each.name in names]


def _options(device: Node) -> list[_Written]:
    found = [each for each in _pairs(child(device, "options")) if each[0] in MEMORY_KEYS | SM_KEYS]
    return [(name, text or "...", place) for name, text, place in found]


def _pairs(node: Node | None) -> Iterator[_Written]:
    """Yield what a mapping says, or a list of NAME=VALUE. A value that Compose has from elsewhere is empty."""
    for each in entries(node):
        yield each.name, text_of(each.value) or "", each
    for item in items(node):
        name, _, value = (text_of(item.value) or "").partition("=")
        yield name, value, item


def _take(service: Service, found: Iterable[_Written], prefix: str, reason: str) -> None:
    for name, text, place in found:
        finding = Finding(f"{prefix}{name}: {text}", f"does nothing: {reason}", place)
        _limit(service, finding, name in MEMORY_KEYS, text)


def _limit(service: Service, finding: Finding, is_memory: bool, text: str) -> None:
    service.findings.append(finding)
    if "$" in text or not text:
        service.unreadable.append(f"{finding.line}: {finding.shown}: {INSERTED}")
        return
    try:
        if is_memory:
            quota.parse_limit(text)
            service.memory = service.memory or text
        else:
            quota.parse_sm(text)
            service.sm = service.sm or text.removesuffix("%")
    except LimitError as error:
        service.unreadable.append(f"{finding.line}: {error}")


def _take_variables(service: Service) -> None:
    """Without a library that reads them they are text; with one they hold, but not for a program that drops them."""
    found = list(_pairs(child(service.node, "environment")))
    has_library = any(name == "LD_PRELOAD" and "libvgpu" in value for name, value, _ in found)
    reason = (
        "holds for a program that keeps its variables, and for no other (env -i, su, ssh)"
        if has_library
        else "does nothing: no library in the container reads it"
    )
    for name, value, place in found:
        is_memory = _MEMORY_VARIABLE.fullmatch(name) is not None
        if is_memory or _SM_VARIABLE.fullmatch(name):
            _limit(service, Finding(f"{name}={value}", reason, place), is_memory, value)


def _take_gpus(service: Service) -> None:
    """Find the whole GPUs, beside which a slice would limit nothing."""
    for each in service.requests:
        if each.place.value is not service.target.node:
            service.findings.append(Finding(each.shown, "goes: the slice has its own GPUs", each.place))
    try:
        service.gpus = chosen(service.requests or _visible(service.node))
    except ComposeError as error:
        service.unreadable.append(str(error))


def _visible(service: MappingNode) -> list[Request]:
    """Return what NVIDIA's runtime is asked for, which counts where Compose asks for nothing."""
    return [
        Request(place, place.line, f"{name}={value}", "", names_of_variable(value))
        for name, value, place in _pairs(child(service, "environment"))
        if name == _VISIBLE and names_of_variable(value)
    ]


def _take_rest(service: Service) -> None:
    """Find keys that only served the above, and are in the way of the device."""
    runtime = entry(service.node, "runtime")
    if runtime and text_of(runtime.value) == "nvidia":
        reason = "goes: the device brings the driver, with every runtime"
        service.findings.append(Finding("runtime: nvidia", reason, runtime))
    for name, value, place in _pairs(child(service.node, "environment")):
        if (name in _OWN_VARIABLES and ("vgpu" in value)) or name == _VISIBLE:
            service.findings.append(Finding(f"{name}={value}", "goes: the device says so", place))
    for item in items(child(service.node, "volumes")):
        text = text_of(item.value) or ""
        if f":{abi.CONTAINER_DIR}/" in text or "/tmp/vgpulock" in text:
            service.findings.append(Finding(text, "goes: the device brings it", item))
    for item in items(child(service.node, "devices")):
        text = text_of(item.value) or text_of(child(item.value, "source")) or ""
        if re.match("/dev/nvidia[0-9]", text):
            service.unreadable.append(f"{item.line}: {text} is a whole GPU beside the slice; remove it")
        elif text.startswith("/dev/nvidia"):
            service.findings.append(Finding(text, "goes: the device brings it", item))
