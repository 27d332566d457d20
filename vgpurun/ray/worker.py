"""The code that runs in a worker: before each task, and before an actor is made, it writes down what Ray has given it.

The worker has started under a limits file that grants nothing (plugin.py), and gets one of its own before anything asks
CUDA or NVML. The library keeps to that file from the first call on; its content changes with the tasks. CUDA keeps to
the GPUs that it found first: a worker that uses it already cannot serve a task on others, and ends.
"""

import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vgpurun import abi
from vgpurun.errors import GpuError, LimitError, VgpurunError
from vgpurun.limits.limits_file import limits_bytes, write_limits
from vgpurun.limits.quota import Quota
from vgpurun.ray.containers import allow_fields
from vgpurun.ray.shares import NODE_VARIABLE, Node, fractions, gpu_of, limits_of
from vgpurun.storage import state, tenants
from vgpurun.storage.state import StateFolder
from vgpurun.util.users import current_user

_NO_LIMITS = (
    "this worker has no limits, and gets no GPU: its node needs RAY_RUNTIME_ENV_PLUGINS, and its driver "
    "RAY_RUNTIME_ENV_HOOK"
)
_PATCHED = "set_visible_accelerator_ids"  # in ray._private.utils: Ray calls it before each task and each actor
_BEGINS = "record_task_log_start"  # in Ray's worker: called next, and its exceptions are the task's errors


def setup() -> None:
    """Get this worker's own limits file, and have it written before each task.

    Raises LimitError where limits would not hold: the worker ends then, before any task. Raises StateError.
    """
    from ray._private import utils, worker

    allow_fields()
    told = os.environ.get(NODE_VARIABLE)
    original = getattr(utils, _PATCHED, None)
    if original is None:
        raise LimitError(f"this Ray has no ray._private.utils.{_PATCHED}, by which tasks get their limits")
    if not hasattr(worker.global_worker, _BEGINS):
        raise LimitError(f"this Ray's worker has no {_BEGINS}, by which tasks are refused")
    if told is None:
        setattr(utils, _PATCHED, _refusing(original, worker.global_worker))
        return
    node = Node.from_json(told)
    limits = _Limits(node, worker.global_worker)
    setattr(utils, _PATCHED, _limiting(original, worker.global_worker, limits))
    if node.hook:
        _run_own_hook(node.hook)


class _Limits:
    """The limits file of this worker."""

    def __init__(self, node: Node, worker: Any) -> None:
        if not _maps(Path(os.environ["LD_PRELOAD"].partition(":")[0])):
            raise LimitError("libvgpu.so is not loaded in this worker, so that no limit would hold")
        if _maps(Path(os.environ[abi.ENV_LIMITS_FILE])):
            raise LimitError("something has used CUDA or NVML in this worker before its limits were there")
        self._node = node
        self._worker = worker
        self._last = [(gpu.uuid, Quota(memory_bytes=0)) for gpu in node.gpus]
        self._seen = frozenset(gpu.uuid for gpu in node.gpus)  # the GPUs that CUDA would find
        state.sweep(has_tenants=False)
        nothing = limits_bytes(self._last, has_parent=bool(node.parents))
        self._folder = StateFolder.make(state.new_folder_path("ray"), {"etc/limits": nothing}, _owner(node))
        if node.parents:  # others on the GPU see the outermost share
            from vgpurun.limits.nested import PARENT

            (self._folder.path / PARENT).symlink_to(node.parents[0])
        else:
            tenants.make(self._folder.path, os.geteuid())
            os.environ[abi.ENV_PRESENCE_FILE] = str(tenants.presence_file(self._folder.path))
        self._file = self._folder.path / "etc" / "limits"
        atexit.register(_in_this_process(self._folder.remove))
        os.environ[abi.ENV_LIMITS_FILE] = str(self._file)
        os.environ[abi.ENV_USAGE_FILE] = str(self._folder.path / "run" / "usage")

    def write(self) -> None:
        """Write the limits of the task that Ray is about to start.

        Raises LimitError, and then nothing is granted; GpuError and OSError, and then this worker can have no task.
        """
        visible = self._worker.original_visible_accelerator_ids.get("GPU")
        shares: dict[str, float] = {}
        for number, fraction in fractions(self._worker.core_worker.resource_ids()).items():
            shares[gpu_of(number, visible, self._node.gpus).uuid] = fraction
        try:
            limits = limits_of(shares, self._node)
        except LimitError:
            self._grant(limits_of({}, self._node))
            raise
        if shares and frozenset(shares) != self._seen:
            if _maps(self._file):
                raise GpuError("CUDA is in use in this worker, on other GPUs than its next task has")
            self._seen = frozenset(shares)
        self._grant(limits)

    def _grant(self, limits: list[tuple[str, Quota]]) -> None:
        if limits != self._last:
            write_limits(self._file, limits)
            self._last = limits


def _owner(node: Node) -> dict[str, Any]:
    return {
        "engine": None,
        "pid": os.getpid(),
        "user": current_user(),
        "command": ["ray", "worker", os.environ.get("RAY_JOB_ID", "")],
        **({"parents": node.parents} if node.parents else {}),
    }


def _limiting(original: Callable[[], Any], worker: Any, limits: _Limits) -> Callable[[], Any]:
    def write_limits_first() -> Any:
        try:
            limits.write()
        except LimitError as error:
            _refuse(worker, error)
        except (VgpurunError, OSError) as error:
            _end(error)
        return original()

    return write_limits_first


def _refusing(original: Callable[[], Any], worker: Any) -> Callable[[], Any]:
    """For a worker that has not been started under limits: its node has no plugin, or its job has no limits."""

    def refuse_shares() -> Any:
        if fractions(worker.core_worker.resource_ids()):
            _refuse(worker, LimitError(_NO_LIMITS))
        return original()

    return refuse_shares


def _refuse(worker: Any, error: LimitError) -> None:
    """Let the task that is about to start, or the actor, fail with these words; no other worker could do better."""

    def fail(*_: Any) -> None:
        delattr(worker, _BEGINS)
        raise ValueError(f"vgpurun: {error}")  # a driver may have no vgpurun, and so none of its errors

    setattr(worker, _BEGINS, fail)


def _end(error: Exception) -> None:
    """End this worker before its task begins: Ray tries the task again in another, as often as max_retries says."""
    print(f"vgpurun: {error}; this worker ends", file=sys.stderr, flush=True)
    os._exit(1)


def _maps(path: Path) -> bool:
    """Whether this process has a file mapped: the library, or the limits file that it keeps to.

    The kernel names a file by where it really is, whatever links led there.
    """
    real = os.path.realpath(path)
    return f" {real}\n" in Path("/proc/self/maps").read_text("utf-8", "surrogateescape")


def _in_this_process(act: Callable[[], None]) -> Callable[[], None]:
    """Return what does it in this process, and nothing in one that is forked of it."""
    pid = os.getpid()
    return lambda: act() if os.getpid() == pid else None


def _run_own_hook(hook: str) -> None:
    from ray._private.runtime_env.setup_hook import load_and_execute_setup_hook

    if (error := load_and_execute_setup_hook(hook)) is not None:
        raise RuntimeError(error)
