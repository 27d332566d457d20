"""The GPUs that a service asks for, in each way in which a Compose file can say it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

from vgpurun.cdi.specification import KIND
from vgpurun.compose.nodes import Item, Place, child, entry, items, text_of
from vgpurun.errors import ComposeError

INSERTED = "Compose inserts a value at each start, but a slice is made once; write the value here"
RESERVATIONS = ("deploy", "resources", "reservations", "devices")  # the keys that lead to them
_NVIDIA = "nvidia.com/gpu="
_DRIVERS = ("nvidia", "nvidia.cdi", "nvidia.runtime-hook")
_CAPABILITIES = {
    "gpu",
    "nvidia",
    "compute",
    "compat32",
    "graphics",
    "utility",
    "video",
    "display",
}  # NVIDIA's driver


@dataclass(frozen=True)
class Request:
    """A request for GPUs: where it stands, how many (`all` or a number, empty for those of `names`), and which."""

    place: Place
    line: int
    shown: str
    count: str
    names: Sequence[str] = ()

    @property
    def of_slice(self) -> bool:
        """Whether it names a slice of vgpurun's."""
        return any(name.startswith(f"{KIND}=") for name in self.names)


def requests(service: MappingNode) -> list[Request]:
    """Return a service's requests for GPUs. For Compose one without a count and names is for all."""
    return [*_reservations(service), *_gpus(service), *_devices(service)]


def chosen(found: Sequence[Request]) -> str | None:
    """Return what `--gpus` says for the GPUs of all requests; None for one GPU. Raises ComposeError."""
    counts = [each.count for each in found if each.count]
    names = list(dict.fromkeys(name.removeprefix(_NVIDIA) for each in found for name in each.names))
    for each in found:
        if "$" in each.count or any("$" in name for name in each.names):
            raise ComposeError(f"{each.line}: {each.shown}: {INSERTED}")
        if each.of_slice:
            raise ComposeError(f"{each.line}: {each.shown} has the limits of its slice; remove the other lines")
    if "all" in (*counts, *names):
        return "all"
    line = max((each.line for each in found), default=0)
    if len(counts) > 1 or (counts and names):
        raise ComposeError(f"{line}: GPUs are asked for more than once; write one request for all of them")
    if names:
        return f"device={','.join(names)}"
    if counts and not re.fullmatch("[1-9][0-9]*", counts[0]):
        raise ComposeError(f"{line}: '{counts[0]}' is not all or a number of GPUs")
    return counts[0] if counts and counts[0] != "1" else None


def names_of_variable(value: str) -> tuple[str, ...]:
    """Return the GPUs that NVIDIA_VISIBLE_DEVICES names; none and void are none."""
    return tuple(name for name in value.split(",") if name not in ("", "none", "void"))


def _reservations(service: MappingNode) -> Iterator[Request]:
    for item in items(child(service, *RESERVATIONS)):
        driver = text_of(child(item.value, "driver")) or ""
        capabilities = {text_of(each.value) for each in items(child(item.value, "capabilities"))}
        if driver in _DRIVERS or _by_cdi(item.value) or (not driver and capabilities & _CAPABILITIES):
            yield _request(item)


def _gpus(service: MappingNode) -> Iterator[Request]:
    """`gpus:` is `all`, or a list like that of reservations, where the capability goes without saying."""
    found = entry(service, "gpus")
    if found and isinstance(found.value, ScalarNode):
        text = text_of(found.value) or ""
        yield Request(found, found.line, f"gpus: {text}", text)
    for item in items(found.value if found else None):
        driver = text_of(child(item.value, "driver")) or "nvidia"
        if driver in _DRIVERS or _by_cdi(item.value):
            yield _request(item, "gpus: ")


def _devices(service: MappingNode) -> Iterator[Request]:
    """`devices:` takes names of CDI, and the files of GPUs."""
    for item in items(child(service, "devices")):
        text = text_of(item.value) or text_of(child(item.value, "source")) or ""
        if _is_cdi(text):
            yield Request(item, item.line, text, "", (text,))


def _request(item: Item, prefix: str = "") -> Request:
    ids, count = entry(item.value, "device_ids"), entry(item.value, "count")
    if ids and (names := [text_of(each.value) or "" for each in items(ids.value)]):
        return Request(item, ids.line, f"{prefix}device_ids: {', '.join(names)}", "", names)
    text = text_of(count.value) or "all" if count else "all"
    line = count.line if count else item.line
    return Request(item, line, f"{prefix}count: {text}", "all" if text.lower() in ("all", "-1") else text)


def _by_cdi(device: Node) -> bool:
    ids = items(child(device, "device_ids"))
    return text_of(child(device, "driver")) == "cdi" and any(_is_cdi(text_of(each.value) or "") for each in ids)


def _is_cdi(name: str) -> bool:
    return name.startswith((_NVIDIA, f"{KIND}="))
