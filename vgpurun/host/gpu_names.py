"""GPUs as people name them: `--gpus`, and the numbers and UUIDs in lists and tables."""

import re
from collections.abc import Sequence

from vgpurun.errors import GpuError
from vgpurun.host.gpu import Gpu

_NAMES_HELP = "use indexes as nvidia-smi shows them, or UUIDs, with commas"
GPUS_HELP = "use all, a count, or device=0,1 with indexes as nvidia-smi shows them (0:1 for a MIG instance) or UUIDs"


def select_gpus(text: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that `--gpus` asks for, in NVML's order. Raises GpuError."""
    wanted = parse_gpus(text, gpus)
    return list(gpus[:wanted]) if isinstance(wanted, int) else wanted


def parse_gpus(text: str, gpus: Sequence[Gpu]) -> list[Gpu] | int:
    """Return the GPUs that `--gpus` names, in NVML's order, or how many it asks for. Raises GpuError."""
    wanted = text.strip().strip("\"'").strip()
    if wanted in ("all", "count=all"):
        chosen = list(gpus)
    elif re.fullmatch(r"(count=)?[0-9]{1,6}", wanted, re.ASCII):
        return _count(int(wanted.removeprefix("count=")), gpus)
    else:
        names = [name.strip() for name in wanted.removeprefix("device=").strip("\"'").split(",")]
        chosen = sorted({_named(name, gpus, text) for name in names}, key=lambda gpu: gpu.place)
    for gpu in chosen:
        if gpu.mig_enabled:
            raise GpuError(
                f"GPU {gpu.index} is in MIG mode and has no instance; make some "
                f"(nvidia-smi mig -i {gpu.index} -cgi ... -C), or choose another with --gpus"
            )
    return chosen


def of_same_kind(chosen: Sequence[Gpu], gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return those of the GPUs that are chosen, and all whole ones of the same kind as a whole one that is."""
    kinds = {gpu.name for gpu in chosen if gpu.mig_index is None}
    alike = [gpu for gpu in gpus if gpu.name in kinds and gpu.mig_index is None and not gpu.mig_enabled]
    return [gpu for gpu in gpus if gpu in chosen or gpu in alike]


def named_gpus(text: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that a list with commas names, where a number is no count, in NVML's order. Raises GpuError."""
    names = text.strip().removeprefix("device=").split(",")
    return sorted({_named(name.strip(), gpus, text, _NAMES_HELP) for name in names}, key=lambda gpu: gpu.place)


def match_gpu(name: str, gpus: Sequence[Gpu]) -> Gpu | None:
    """Return the GPU with that number, UUID or unambiguous start of a UUID, or None."""
    if re.fullmatch(r"[0-9]{1,6}(:[0-9]{1,6})?", name, re.ASCII):
        number = ":".join(str(int(part)) for part in name.split(":"))
        return next((gpu for gpu in gpus if gpu.number == number), None)
    found = _beginning_with(name, gpus)
    return found[0] if len(found) == 1 else None


def _beginning_with(name: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    return [gpu for gpu in gpus if len(name) > len("GPU-") and gpu.uuid.lower().startswith(name.lower())]


def unmatched(name: str, gpus: Sequence[Gpu]) -> str:
    """Say why `match_gpu` answers None to a name; with UUIDs only if the name looks like one."""
    begun = _beginning_with(name, gpus)
    if len(begun) > 1:
        return f"'{name}' is the beginning of several UUIDs: {_with_uuids(begun)}; write more of it"
    is_uuid = name[:4].upper() in ("GPU-", "MIG-")
    known = _with_uuids(gpus) if is_uuid else ", ".join(gpu.number for gpu in gpus)
    return f"no GPU '{name}' among {known}"


def _with_uuids(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"GPU {gpu.number} ({gpu.uuid})" for gpu in gpus)


def _count(count: int, gpus: Sequence[Gpu]) -> int:
    if not 1 <= count <= len(gpus):
        raise GpuError(f"--gpus {count}: this host has {len(gpus)} GPU{'s' * (len(gpus) > 1)}; {GPUS_HELP}")
    return count


def _named(name: str, gpus: Sequence[Gpu], text: str, way_out: str = GPUS_HELP) -> Gpu:
    gpu = match_gpu(name, gpus)
    if gpu is None:
        raise GpuError(f"--gpus '{text}': {unmatched(name, gpus)}; {way_out}")
    return gpu
