"""The runtime_env plugin: on each node it prepares the start of workers whose job has the field `vgpurun`.

A job that comes by the hook has it too. The plugin runs in Ray's own agent, which has no limits, and so sees the GPUs
as they are. It does not know what a task will ask for: the worker writes that down itself (worker.py).
"""

import logging
import os
import re
from pathlib import Path
from typing import Any

from ray._private.ray_constants import WORKER_PROCESS_SETUP_HOOK_ENV_VAR as SETUP_HOOK
from ray._private.runtime_env.plugin import RuntimeEnvPlugin

from vgpurun import abi
from vgpurun.config import values as config
from vgpurun.console.messages import say
from vgpurun.errors import LimitError, NoDriverError, VgpurunError
from vgpurun.host import library, mps, simulation
from vgpurun.host.gpu import Gpu
from vgpurun.host.visible import survey_gpus
from vgpurun.limits import limits_file
from vgpurun.limits.nested import own_share
from vgpurun.ray.containers import with_limits
from vgpurun.ray.shares import FIELD, NODE_VARIABLE, SETUP, Node, read_wish
from vgpurun.storage import state
from vgpurun.util.atomic_file import atomic_file

_AFTER_OTHERS = 20  # Ray's own have 10: what they say of Python, and of a container, is known by then
_PACKAGE = Path(__file__).resolve().parent.parent
_RUNS_LOCAL = re.compile(r"(^|[\s/])vgpurun\s+local\s")


class LimitsPlugin(RuntimeEnvPlugin):  # type: ignore[misc]  # Ray may not be installed where types are checked
    """Makes the workers of a job start under limits that grant nothing yet."""

    name = FIELD
    priority = _AFTER_OTHERS

    @staticmethod
    def validate(runtime_env_dict: dict[str, Any]) -> None:
        """Check the field. Raises ValueError."""
        try:
            read_wish(runtime_env_dict[FIELD])
        except LimitError as error:
            raise ValueError(str(error)) from None

    def modify_context(self, uris: list[str], runtime_env: Any, context: Any, logger: logging.Logger) -> None:
        """Set the variables of the workers. Raises RuntimeError, and then the job's tasks fail with its words."""
        del uris
        try:
            self._prepare(runtime_env, context)
        except (VgpurunError, OSError) as error:
            logger.error("vgpurun: %s", error)
            raise RuntimeError(f"vgpurun: {error}") from None

    def _prepare(self, runtime_env: Any, context: Any) -> None:
        _check_command(runtime_env.get("py_executable") or "")
        root = state.root_folder()
        is_simulated = config.default("driver") == "sim"
        gpus = _gpus(is_simulated)
        preloaded = library.preloaded(os.environ)
        found = library.check(preloaded) if preloaded else library.find()
        library.check_host(found)
        state.make_lock_dir()
        state.sweep()
        given = {**os.environ, **context.env_vars}
        wish, own_hook = read_wish(runtime_env[FIELD]), context.env_vars.get(SETUP_HOOK, "")
        node = Node.within(own_share(), gpus, wish, "" if own_hook == SETUP else own_hook)
        variables = {
            **mps.keep_process_out(given),
            **(simulation.local_environment(library.find_simulated_driver(say), given) if is_simulated else {}),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # NVML's, so that Ray's numbers are those of one GPU for all
            "LD_PRELOAD": _joined(str(found.path), context.env_vars.get("LD_PRELOAD")),
            "PYTHONPATH": _joined(given.get("PYTHONPATH"), str(_importable(root))),
            abi.ENV_LIMITS_FILE: str(_granting_nothing(root)),
            NODE_VARIABLE: node.to_json(),
            SETUP_HOOK: SETUP,
        }
        context.env_vars |= variables
        if runtime_env.get("image_uri") or runtime_env.get("container"):
            places = (found.path, _PACKAGE, root, Path(abi.LOCK_DIR))
            context.py_executable = with_limits(context.py_executable, variables, places)


def _check_command(command: str) -> None:
    """Refuse a command that could start no worker, since Ray would try it for ever. Raises LimitError."""
    if _RUNS_LOCAL.search(command):
        raise LimitError(
            "runtime_env: py_executable runs vgpurun local, but on this node limits go by num_gpus; leave it out "
            f"(num_gpus=0.25 is 25 % of memory and time; {{'{FIELD}': {{'mem': ..., 'sm': ...}}}} lowers them)"
        )


def _gpus(is_simulated: bool) -> list[Gpu]:
    try:
        return survey_gpus(is_simulated).gpus
    except NoDriverError:  # a node without GPUs has tasks that ask for none
        return []


def _granting_nothing(root: Path) -> Path:
    """Return the limits file of a share without GPUs: a worker has that from its start until it has its own."""
    path = root / "ray" / "unassigned" / "etc" / "limits"
    state.make_readable(path.parent)
    with atomic_file(path) as half_made:
        half_made.write_bytes(limits_file.limits_bytes([]))
    return path


def _importable(root: Path) -> Path:
    """Return a folder with this package and nothing else, for a worker whose Python has none of its own."""
    folder = root / "ray" / "python"
    state.make_readable(folder)
    link = folder / "vgpurun"
    if not link.is_symlink() or link.readlink() != _PACKAGE:
        half_made = folder / f".vgpurun.{os.urandom(4).hex()}"
        half_made.symlink_to(_PACKAGE)
        half_made.replace(link)
    return folder


def _joined(*paths: str | None) -> str:
    return ":".join(path for path in paths if path)
