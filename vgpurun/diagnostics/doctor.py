"""Looks at everything on this host that limits and launches stand on: the findings behind `vgpurun doctor`.

Each check is a function that returns findings, and raises nothing: an error is a finding too.
"""

import errno
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ctypes import sizeof
from pathlib import Path
from typing import TYPE_CHECKING

from vgpurun import abi
from vgpurun.admission.capacity import GpuCapacity, capacities
from vgpurun.config import values as config
from vgpurun.diagnostics.cleaned import cleaned_by
from vgpurun.diagnostics.finding import FAILED, OK, WARNING, Finding, failed
from vgpurun.diagnostics.unusual import unusual_engine, unusual_gpus, unusual_host
from vgpurun.errors import DriverError, EngineError, GpuError, LibraryError, VgpurunError
from vgpurun.host import drivers, library, limits_device, memory_limits, mps
from vgpurun.host import gpus as devices
from vgpurun.host.drivers import EngineFacts
from vgpurun.host.gpus import Gpu, LostGpu, Survey
from vgpurun.inventory import guarded
from vgpurun.inventory.reservations import all_holders
from vgpurun.limits.quota import show_size
from vgpurun.storage import state
from vgpurun.util import extras

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine

_PRELOAD = Path("/etc/ld.so.preload")
_CONTROL_DEVICE = Path("/dev/nvidiactl")
_HAMI = ("/usr/local/vgpu", "/etc/vgpu")


def examine(found: Survey | GpuError, driver_mode: str) -> Iterator[Finding]:
    """Look at everything, one thing after the other. `found` is the error where there are no GPUs."""
    gpus = [] if isinstance(found, GpuError) else found.gpus
    is_simulated = driver_mode == "sim"
    yield from unusual_host()
    yield from unusual_gpus(gpus)
    if isinstance(found, GpuError):
        yield failed("driver", found)
    else:
        yield from check_driver(gpus, is_simulated)
        yield from map(check_lost, found.lost)
    yield from check_engine(gpus, driver_mode)
    yield from check_library()
    yield from check_files()
    yield from check_config()
    yield check_guard()
    yield check_extras()
    yield from check_host()
    yield from check_conflicts(gpus)


# ---- the GPUs ------------------------------------------------------------------------------------------------------


def check_driver(gpus: Sequence[Gpu], is_simulated: bool) -> Iterator[Finding]:
    """Find which driver this is, and whether its GPUs can be shared."""
    try:
        facts = devices.read_driver(gpus)
    except GpuError as error:
        yield failed("driver", error)
        return
    simulated = ", simulated" if is_simulated else ""
    yield Finding("driver", OK, f"version {facts.version} for CUDA {facts.cuda_version}{simulated}")
    for gpu, mode in zip(gpus, facts.compute_modes, strict=True):
        yield check_gpu(gpu, mode)
    if not is_simulated:
        yield check_nodes(gpus)
    yield check_compute_limits(gpus, is_simulated)


def check_gpu(gpu: Gpu, compute_mode: str) -> Finding:
    """Find whether containers can share a GPU."""
    name = f"GPU {gpu.number}"
    if gpu.mig_enabled:
        return Finding(
            name, WARNING, f"{gpu.name} is in MIG mode and has no instance: nothing can run on it",
            f"make instances (nvidia-smi mig -i {gpu.index} -cgi ... -C), or: nvidia-smi -i {gpu.index} -mig 0",
        )  # fmt: skip
    if compute_mode != "default":
        return Finding(
            name, FAILED, f"{gpu.name} is in compute mode '{compute_mode}': programs cannot share it",
            f"nvidia-smi -i {gpu.index} -c DEFAULT",
        )  # fmt: skip
    return Finding(name, OK, f"{gpu.name}, {gpu.memory_bytes >> 20} MiB")


def check_lost(gpu: LostGpu) -> Finding:
    """Return the finding for a GPU that the driver cannot reach."""
    return Finding(
        f"GPU {gpu.index}", FAILED, f"the driver cannot reach it: {gpu.reason}",
        "dmesg says why (XID); reset it (nvidia-smi -r) or restart the host",
    )  # fmt: skip


def check_nodes(gpus: Sequence[Gpu]) -> Finding:
    """Find whether this user may open the device nodes."""
    try:
        nodes = drivers.device_nodes(gpus)
    except DriverError as error:
        return failed("device nodes", error)
    closed = [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    if closed:
        return Finding(
            "device nodes", WARNING, f"this user may not use {', '.join(closed)}",
            "programs of `vgpurun local` need them; join their group, or: chmod 666",
        )  # fmt: skip
    return Finding("device nodes", OK, f"{len(nodes)} in /dev")


def check_compute_limits(gpus: Sequence[Gpu], is_simulated: bool) -> Finding:
    """Find what will hold compute limits, as far as that shows without a program on the GPU."""
    name = "compute limits"
    if not (is_simulated or _CONTROL_DEVICE.exists()):
        return Finding(
            name, WARNING, f"launches are held, less exactly: there is no {_CONTROL_DEVICE}",
            "docs/compute.md says what holds then",
        )  # fmt: skip
    words = "held by the GPU's own scheduler, where the driver lets it (vgpurun verify --sm 50)"
    if any(gpu.mig_index is not None for gpu in gpus):
        words += "; on MIG instances launches are held, less exactly"
    return Finding(name, OK, words)


# ---- the engine ----------------------------------------------------------------------------------------------------


def check_engine(gpus: Sequence[Gpu], driver_mode: str) -> Iterator[Finding]:
    """Find whether the engine answers, and what depends on it."""
    from vgpurun.engine.containers import ContainerEngine

    try:
        engine = ContainerEngine.connect()
        facts = engine.facts()
        yield Finding("engine", OK, f"{engine.version()} at {engine.address.url}")
    except EngineError as error:
        found = failed("engine", error)
        remedies = [found.remedy, "`vgpurun local` needs no engine"]
        yield Finding(found.name, found.status, found.words, "; ".join(filter(None, remedies)))
        if gpus:
            yield from check_reservations(gpus, None)
        return
    if gpus:
        yield from check_reservations(gpus, engine)
    if gpus:
        yield check_memory_limits(gpus, facts, driver_mode == "sim")
    if driver_mode == "sim":
        yield Finding("driver in containers", OK, "the simulated one, bound from this host")
    elif gpus:
        yield from check_driver_in_containers(gpus, facts, driver_mode)


def check_reservations(gpus: Sequence[Gpu], engine: "Engine | None") -> Iterator[Finding]:
    """Find GPUs that are overcommitted: `docker start` and restarts by the engine do not ask for room."""
    try:
        found = capacities(gpus, devices.read_use(gpus), all_holders(engine))
    except VgpurunError as error:
        yield failed("reservations", error)
        return
    for capacity in found:
        reserved_bytes, percent = capacity.reserved_bytes, capacity.reserved_sm_percent
        if reserved_bytes > capacity.gpu.memory_bytes or percent > 100:
            yield Finding(
                f"GPU {capacity.gpu.number}, reservations", WARNING,
                f"{show_size(reserved_bytes)} of {show_size(capacity.gpu.memory_bytes)} and {percent} % of its time "
                "are reserved by what runs there",
                "stop one (vgpurun ps); start containers again with `vgpurun start`, which looks for room",
            )  # fmt: skip
    yield from check_turns(found)


def check_turns(found: Sequence[GpuCapacity]) -> Iterator[Finding]:
    """Find whether a guard gives turns (--swap), and host memory has room for those that wait."""
    in_turns = [share for capacity in found for share in capacity.shares if share.quota.takes_turns]
    if not in_turns:
        return
    if not guarded.is_running():
        yield Finding(
            "turns", WARNING, "no guard runs to give turns: of those with --swap on a GPU, all but one wait",
            "start it as root: vgpurun guard",
        )  # fmt: skip
    most_bytes = sum(share.quota.reserved_bytes or 0 for share in in_turns) - sum(each.turns_bytes for each in found)
    host_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if most_bytes > host_bytes:
        yield Finding(
            "turns", WARNING, f"those that wait for their turn (--swap) may hold {show_size(most_bytes)}, and this "
            f"host has {show_size(host_bytes)} of memory", "lower some --mem: without room there, no turn ends",
        )  # fmt: skip


def check_memory_limits(gpus: Sequence[Gpu], facts: EngineFacts, is_simulated: bool) -> Finding:
    """Find which walls hold memory limits here. The library alone, as on most hosts, is no warning."""
    name = "memory limits"
    if missing := memory_limits.lacking(gpus):
        return Finding(name, OK, f"held by the library in each program; not by the driver: {missing}")
    if missing := limits_device.lacking_of_engine(facts, is_simulated):
        words, _, remedy = missing.partition(", ")
        return Finding(name, WARNING, f"the driver has limits of its own, but {words}", remedy)
    return Finding(name, OK, f"held by the library, and by the driver ({memory_limits.backend()}) whatever is loaded")


def check_driver_in_containers(gpus: Sequence[Gpu], facts: EngineFacts, driver_mode: str) -> Iterator[Finding]:
    """Find how containers get the driver."""
    try:
        plan = drivers.plan_driver(driver_mode, gpus, facts)
    except DriverError as error:
        yield failed("driver in containers", error)
        return
    how = {
        "cdi": "by the engine, through CDI",
        "toolkit": "by the engine, through the NVIDIA Container Toolkit",
        "mount": "bound from this host; the engine has neither CDI devices nor the NVIDIA Container Toolkit",
    }
    yield Finding("driver in containers", OK, how[plan.mode])
    yield from unusual_engine(facts, plan.mode, _has_cgroup2())


# ---- what is ours --------------------------------------------------------------------------------------------------


def check_library() -> Iterator[Finding]:
    """Find whether there is a library that fits this host, or a way to build it."""
    if (distrusted := library.distrusted()) is not None:
        path, way_out = distrusted
        yield Finding("shared library", WARNING, f"none is used: others than root can write in {path}", way_out)
    lacking, _, way_out = library.why_not_built_here().partition("; ")
    try:
        found = library.find()
        library.check_host(found)
    except LibraryError as error:
        words = str(error).partition("; ")[0]
        if os.environ.get("VGPURUN_LIBRARY"):
            yield Finding("library", FAILED, words)
        elif lacking:
            yield Finding("library", FAILED, words if lacking == words else f"{words}; to build it, {lacking}", way_out)
        else:
            yield Finding("library", WARNING, words, "vgpurun build; by root it is for all users")
        return
    glibc = library.show_version(found.glibc)
    yield Finding("library", OK, f"{found.path}, version {found.version}, glibc {glibc} or newer")
    for verb, parts in (("vgpurun verify", [library.VERIFIER]), ("--driver sim", library.SIMULATED_DRIVER)):
        if lacking and (missing := library.missing(parts)):
            yield Finding(verb, WARNING, f"{missing[0]} is not built yet, and {lacking}", way_out)


def check_files() -> Iterator[Finding]:
    """Find whether launches can make their folders."""
    root = state.root_folder()
    place = next(each for each in (root, *root.parents) if each.exists())
    try:
        # A launch makes such a folder, and takes the room of its file; root may write anywhere, but not in /proc.
        with (
            tempfile.TemporaryDirectory(prefix=".vgpurun-", dir=place) as made,
            (Path(made) / "usage").open("xb") as file,
        ):
            os.posix_fallocate(file.fileno(), 0, sizeof(abi.Usage))
        yield Finding("state folder", OK, str(root))
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        yield Finding(
            "state folder", FAILED, f"nothing can be made in {place}: {error.strerror}",
            ("make room there, or " if is_full else "") + "set VGPURUN_STATE_DIR to a folder of yours",
        )  # fmt: skip
    yield check_tenants_folder(Path(abi.LOCK_DIR))


def check_tenants_folder(path: Path) -> Finding:
    """Find whether all users can show each other that they are at work."""
    name, again = "tenants folder", f"rm -r {path}; mkdir -m 1777 {path}"
    try:
        status = path.lstat()
    except OSError:
        return Finding(name, OK, f"{path} will be made by the first launch")
    if not stat.S_ISDIR(status.st_mode):
        return Finding(name, FAILED, f"{path} is not a folder{' but a link' * path.is_symlink()}", again)
    if status.st_mode & 0o777 != 0o777:
        return Finding(
            name, FAILED, f"{path} has mode {stat.S_IMODE(status.st_mode):04o}: others are not seen",
            f"as its owner or root: chmod 1777 {path}",
        )  # fmt: skip
    if not status.st_mode & stat.S_ISVTX:
        return Finding(name, WARNING, f"{path} lets users remove each other's files", f"chmod +t {path}")
    if status.st_uid not in (0, os.geteuid()):
        return Finding(name, WARNING, f"{path} belongs to user {status.st_uid}", f"as root: chown root {path}")
    if file := cleaned_by(path):
        return Finding(
            name, WARNING, f"{path} is cleaned up by systemd ({file}): containers with --restart may not come back",
            f"as root: echo 'd {path} 1777 root root' >/etc/tmpfiles.d/vgpurun.conf",
        )  # fmt: skip
    return Finding(name, OK, f"{path}, open to all")


def check_config() -> Iterator[Finding]:
    """Find mistakes in the configuration."""
    mistakes = config.load().mistakes
    for error in mistakes.values():
        found = failed("configuration", error)
        yield Finding(
            found.name, found.status, found.words, found.remedy or "correct it; until then launches are refused"
        )
    if not mistakes:
        files = [str(path) for path in (config.ADMIN_FILE, config.user_file()) if os.path.lexists(path)]
        yield Finding("configuration", OK, ", ".join(files) or "none; the built-in values")


def check_extras() -> Finding:
    """Find which optional parts are missing. Most hosts need none, so that is no fault."""
    lacking = {extra: words for extra, (words, _) in extras.OF_ANY_HOST.items() if extras.lacking(extra)}
    if not lacking:
        return Finding("optional parts", OK, "report, history, exporter and convert have all that they need")
    said = "; ".join(f"{words}: {extras.installing(extra)}" for extra, words in lacking.items())
    return Finding("optional parts", OK, f"not installed: {said}")


def check_guard() -> Finding:
    """Find whether a guard runs. Without one, limits do not hold for programs that the library does not see."""
    if not guarded.is_running():
        return Finding("guard", OK, "none runs: programs past the library are not stopped (vgpurun guard)")
    frozen = [id_ for id_, each in guarded.stopped().items() if each.verb == guarded.FREEZE]
    if frozen:
        launches = [id_ for id_ in frozen if guarded.is_launch(id_)]
        containers = len(frozen) - len(launches)
        words = [f"{containers} container{'s' * (containers > 1)}"] if containers else []
        words += [f"process {', '.join(launches)} of vgpurun local"] if launches else []
        return Finding(
            "guard", WARNING, f"it runs, and has frozen {' and '.join(words)}",
            "vgpurun ps -a shows which, vgpurun history --by action why; vgpurun update, or vgpurun thaw",
        )  # fmt: skip
    return Finding("guard", OK, "it runs")


# ---- the host ------------------------------------------------------------------------------------------------------


def check_host() -> Iterator[Finding]:
    """Find what the kernel's own walls mean for containers."""
    yield Finding("cgroups", OK, f"version {2 if _has_cgroup2() else 1}")
    if _read("/sys/fs/selinux/enforce") == "1":
        yield Finding(
            "SELinux", WARNING, "enforcing: containers may not read what vgpurun mounts into them",
            "run with --security-opt label=disable where a container says 'permission denied' on /.vgpurun",
        )  # fmt: skip
    else:
        yield Finding("SELinux", OK, "not enforcing")
    apparmor = _read("/sys/module/apparmor/parameters/enabled") == "Y"
    yield Finding("AppArmor", OK, "enabled; docker's own profile allows what is needed" if apparmor else "not enabled")


def check_conflicts(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Find what else limits or preloads the same programs."""
    yield check_preloads()
    found = [path for path in _HAMI if Path(path).exists()]
    if found:
        yield Finding(
            "HAMi-core", WARNING, f"{', '.join(found)} is here: two libraries would limit the same programs",
            "run containers without HAMi's mounts and variables",
        )  # fmt: skip
    else:
        yield Finding("HAMi-core", OK, "not here")
    if (pid := mps.find_daemon()) is not None:
        yield Finding(
            "MPS", WARNING, f"the daemon runs (process {pid}); limited programs are kept out of it",
            f"{mps.STOP}" + (", so that all share the GPU by time slices" if gpus else ""),
        )  # fmt: skip
    else:
        yield Finding("MPS", OK, "no daemon runs")


def check_preloads() -> Finding:
    """Find libraries that every program of this host loads."""
    others = [name for name in re.split(r"[\s:]+", _read(str(_PRELOAD))) if name and "libvgpu" not in name]
    if others:
        return Finding(
            "other preloads", WARNING, f"{_PRELOAD} loads {', '.join(others)} into every program of this host",
            "if limits of `vgpurun local` do not hold, try without it",
        )  # fmt: skip
    if Path(_PRELOAD).exists() and "libvgpu" in _read(str(_PRELOAD)):
        return Finding(
            "other preloads", FAILED, f"{_PRELOAD} of this host loads a libvgpu: host programs would be limited too",
            f"remove that line from {_PRELOAD}",
        )  # fmt: skip
    return Finding("other preloads", OK, f"none in {_PRELOAD}")


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(errors="replace").strip()
    return ""


def _has_cgroup2() -> bool:
    return Path("/sys/fs/cgroup/cgroup.controllers").exists()
