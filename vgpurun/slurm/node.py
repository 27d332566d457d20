"""A node's work at a job's beginning and end: the slice `slurm-JOBID` comes and goes.

    <slice>/slurm/job        which run of which user's job it is of, what that asked for and was given; the SPANK plugin
                             and the PAM module compare
    <slice>/slurm/library    a link to libvgpu.so
    <root>/slurm/JOBID       why a job has no share; the plugin shows it and lets no task of the job start

Slurm drains a node whose prolog or epilog fails, so neither does: the tasks of a job without its share fail instead.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vgpurun.admission.removing import remove
from vgpurun.errors import SliceError, SlurmError
from vgpurun.host import library
from vgpurun.host.gpus import Gpu
from vgpurun.host.visible import visible_gpus
from vgpurun.limits import usage_file
from vgpurun.limits.model import DeviceQuota, quotas_to_json
from vgpurun.limits.usage_file import DeviceReading
from vgpurun.options.mount_targets import PRELOAD_FILES
from vgpurun.slices import store
from vgpurun.slices.files import slice_files
from vgpurun.slices.store import Slice
from vgpurun.slurm import conf, orphans
from vgpurun.slurm.job import is_on, shares_of
from vgpurun.slurm.share import Asked, job_quotas
from vgpurun.storage import state, tenants
from vgpurun.util import users
from vgpurun.util.atomic_file import atomic_file

PREFIX = "slurm-"
_PRELOAD_FILES = tuple(map(Path, PRELOAD_FILES))
CONTAINER_FOLDER = Path("/.vgpurun")


class Job(NamedTuple):
    """A job on this node, as Slurm's hooks name it. `restarts` tells a requeued job from its earlier run."""

    id: str
    node: str
    uid: int
    restarts: str
    asked: Asked
    nodes: int = 1

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Job":
        """Take it from the environment of a prolog or an epilog. Raises SlurmError."""
        number, uid = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_JOB_UID", "")
        if not number.isdecimal() or not uid.isdecimal():
            raise SlurmError("no SLURM_JOB_ID and SLURM_JOB_UID: this is for slurmd to run, as Prolog and Epilog")
        return cls(
            number,
            environment.get("SLURMD_NODENAME", ""),
            int(uid),
            environment.get("SLURM_JOB_RESTART_COUNT", "0"),
            Asked.of(environment),
            int(environment.get("SLURM_JOB_NUM_NODES", "1")),
        )

    @property
    def slice_name(self) -> str:
        """The name of its slice."""
        return f"{PREFIX}{self.id}"

    def record(self, quotas: Sequence[DeviceQuota]) -> str:
        """Return the content of <slice>/slurm/job. Slurm may give the id to another job one day."""
        words = (f"restarts={self.restarts}", f"uid={self.uid}", f"mem={self.asked.memory}", f"sm={self.asked.sm}")
        return "\n".join((*words, f"quotas={quotas_to_json(quotas)}", ""))


class Ended(NamedTuple):
    """A job whose share is gone: what it had used, and the processes that had outlived it."""

    slice_name: str
    readings: Sequence[DeviceReading]
    killed: Sequence[int]
    cut_off: Sequence[str]


def prepare(job: Job, driver: str) -> Slice | None:
    """Make the slice of a job, or keep that of this run of it; None for a job that needs none.

    Raises VgpurunError for one that gets none, which is then written down for the plugin.
    """
    with suppress(FileNotFoundError):
        refusal(job.id).unlink()
    try:
        return _prepare(job, driver)
    except Exception as error:
        _refuse(job.id, str(error))
        raise


def _prepare(job: Job, driver: str) -> Slice | None:
    gres_conf = conf.slurm_conf().with_name("gres.conf")
    shares = shares_of(job.id, job.node, gres_conf)
    if not shares:
        return None
    lines = conf.gres_lines(gres_conf, job.node) if gres_conf.exists() else []
    gpus = visible_gpus(driver == "sim")
    quotas = job_quotas(shares, job.asked, gpus, lines)
    with suppress(SliceError):
        found = store.find(job.slice_name)
        # Its limits may have been changed since: vgpurun slice update.
        if _record(found) == job.record(quotas):
            return found
        end(found)
    return _make(job, quotas, driver, gpus) if quotas else None


def _make(job: Job, quotas: Sequence[DeviceQuota], driver: str, gpus: Sequence[Gpu]) -> Slice:
    libvgpu = library.find_library(is_dry_run=False)
    library.check_host(libvgpu)
    make_mount_points()
    files = slice_files(quotas, driver, gpus, lambda _: None)
    for file in _PRELOAD_FILES:
        with suppress(FileNotFoundError):  # the host's own preloads stay preloaded
            files["etc/ld.so.preload"] += file.read_bytes()
    files["slurm/job"] = job.record(quotas).encode()
    place = store.slices_folder() / job.slice_name
    links = {"slurm/library": str(libvgpu.path), "slurm/presence": str(tenants.presence_file(place))}
    user = users.name_of(job.uid)
    return store.make(job.slice_name, quotas, files, driver, user=user, links=links, writer=job.uid)


def make_mount_points() -> None:
    """Make the places at which the plugin puts a job's files, in its own view of them. Raises SlurmError."""
    try:
        for folder in ("etc", "run", "tenants"):
            state.make_readable(CONTAINER_FOLDER / folder)
        files = ("libvgpu.so", "run/usage", "run/presence")
        for file in (*(CONTAINER_FOLDER / name for name in files), *_PRELOAD_FILES):
            if not file.exists():
                file.touch(0o644)
                file.chmod(0o644)
    except OSError as error:
        raise SlurmError(f"{error.filename}: {error.strerror}; the files of a job's share have no place here") from None


def end_job(job: str) -> Ended | None:
    """End what a job has left on this node, and its slice; None where it had none. Raises VgpurunError."""
    with suppress(FileNotFoundError):
        refusal(job).unlink()
    try:
        found = store.find(f"{PREFIX}{job}")
    except SliceError:
        return None
    return end(found)


def end(found: Slice) -> Ended:
    """End what still runs in a slice, and remove it. Raises SliceError and StateError."""
    killed = orphans.kill(found, found.name.removeprefix(PREFIX))
    readings = usage_file.read_usage(found.usage, [uuid for uuid, _ in found.quotas]) or []
    return Ended(found.name, readings, killed, remove(found, None, force=True))


def sweep(node: str) -> Iterator[Ended]:
    """End the slices of jobs that slurmctld no longer has on this node. Raises SlurmError where it does not answer."""
    for found in store.slices():
        job = found.name.removeprefix(PREFIX)
        # The slice is older than the answer: a job that begins has its slice later.
        if found.name != job and job.isdecimal() and not is_on(job, node):
            with suppress(SliceError):  # its epilog was faster
                yield end(found)
    for path in _refusals().glob("*"):
        job = path.name.lstrip(".").partition(".")[0]  # a killed prolog leaves a half-made .JOBID.*
        if job.isdecimal() and not is_on(job, node):
            with suppress(OSError):  # a folder is none of ours
                path.unlink()
    store.sweep()  # a killed prolog's leftovers
    tenants.sweep()


def refusal(job: str) -> Path:
    """Return where it is written why a job has no share."""
    return _refusals() / job


def _refusals() -> Path:
    return state.host_root() / "slurm"


def _refuse(job: str, reason: str) -> None:
    """On a full disk there is place for an empty file yet, which is enough for the plugin."""
    path = refusal(job)
    with suppress(OSError):
        state.make_readable(path.parent)
        try:
            with atomic_file(path, is_flushed=False) as half_made:
                half_made.write_text(f"{' '.join(reason.split())}\n")
                half_made.chmod(0o644)
        except OSError:
            path.touch()
            path.chmod(0o644)


def _record(found: Slice) -> str:
    try:
        return (found.folder / "slurm" / "job").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def node_name() -> str:
    """Return this node's name: what slurmd says, or the host's."""
    return os.environ.get("SLURMD_NODENAME") or conf.host()
