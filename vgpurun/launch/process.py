"""Carries out a ProcessPlan: a process on this host under limits, without a container."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from vgpurun.console.messages import warn
from vgpurun.errors import CommandNotExecutableError, CommandNotFoundError, SliceError
from vgpurun.launch.local_cgroup import own_cgroup
from vgpurun.launch.plan import ProcessPlan, parent_link
from vgpurun.limits.usage_file import BrokenUsageError, read_counted
from vgpurun.storage import state, tenants
from vgpurun.storage.holders import is_locked, open_folder_lock, with_file
from vgpurun.storage.state import StateFolder
from vgpurun.util.process_identity import pid_namespace
from vgpurun.util.users import current_user

_FORWARDED = {
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGCONT,
}  # fmt: skip
_FROM_KERNEL = 0x80  # SI_KERNEL: a key of the terminal, which sends the signal to the command as well


def prepare_process(plan: ProcessPlan) -> StateFolder:
    """Make the state folder of a process to be run; from now on signals wait for it.

    Raises StateError, ProfileError for a folder for profiles that cannot be made, and SliceError for a share whose
    usage file this user cannot open.
    """
    _check_can_count(plan)
    state.make_lock_dir()
    state.sweep()
    if plan.profiling:
        plan.profiling.make_folder()
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_FORWARDED, signal.SIGCHLD})
    has_usage, links = plan.slice_folder is None, parent_link(plan.parents)
    folder = StateFolder.make(plan.state_folder, plan.state_files, _owner(plan), has_usage, links)
    if not plan.parents:
        tenants.make(plan.slice_folder or plan.state_folder, None if plan.slice_folder else os.geteuid())
    return folder


def _check_can_count(plan: ProcessPlan) -> None:
    for folder in filter(None, (plan.slice_folder, *plan.parents)):
        usage = folder / "run" / "usage"
        if not os.access(usage, os.R_OK | os.W_OK):
            raise SliceError(
                f"{usage} cannot be opened, in which this process has to count; log in again where you were just added "
                f"to a group of the slice's, else root lets you in: vgpurun slice update --users NAMES {folder.name}"
            )


def run_process(plan: ProcessPlan, folder: StateFolder) -> int:
    """Run the planned command and return its exit code, 128 and the signal's number when a signal ended it.

    The state folder is removed at the end. A process that outlives the command holds the folder's lock, and the folder
    stays until the next sweep after it. Raises CommandNotFoundError, CommandNotExecutableError, EnforceError and
    TogetherError.
    """
    try:
        with (
            plan.membership.joined() if plan.membership else nullcontext() as member,
            own_cgroup(plan.state_folder.name, plan.quotas) if plan.is_driver_held else nullcontext(),
        ):
            began_s = time.time()
            child = _start(plan, [folder.lock, *([] if member is None else [member])])
            _note_holders(folder, [os.getpid(), child])
            exit_code = _wait(child)
            for incident in plan.membership.incidents_since(began_s) if plan.membership else ():
                warn(incident)
    except BaseException:
        folder.remove()
        raise
    folder.close()
    state.sweep(has_tenants=False)  # already done at the start
    if left := _left_in(folder.path):
        _note_holders(folder, left)
    return exit_code


def _note_holders(folder: StateFolder, pids: Iterable[int]) -> None:
    with suppress(OSError):  # a full disk: other users take what runs here for ended
        folder.note_holders(pids)


def _left_in(folder: Path) -> set[int]:
    """Return the processes that hold a state folder, or use a GPU under its limits, once this one has let go of it."""
    with suppress(OSError, BrokenUsageError):
        lock = open_folder_lock(folder)
        try:
            left = with_file(os.fstat(lock)) - {os.getpid()} if is_locked(lock) else set[int]()
        finally:
            os.close(lock)
        with suppress(FileNotFoundError):  # a slice has that of its members
            left |= {pid for namespace, pid in read_counted(folder / "run" / "usage") if namespace == pid_namespace()}
        return left
    return set()


def _owner(plan: ProcessPlan) -> dict[str, object]:
    return {
        "engine": None,
        "pid": os.getpid(),
        "user": current_user(),
        "command": list(plan.command),
        "quota": plan.quota_json,
        **({"slice": str(plan.slice_folder)} if plan.slice_folder else {}),
        **({"parents": [str(parent) for parent in plan.parents]} if plan.parents else {}),
    }


def _start(plan: ProcessPlan, locks: Sequence[int]) -> int:
    environment = {**os.environ, **plan.environment}
    program = _find_program(plan.command[0], environment.get("PATH", os.defpath))
    for lock in locks:
        os.set_inheritable(lock, True)
    sys.stdout.flush()
    try:
        return os.posix_spawn(program, plan.command, environment, setsigmask=())
    except FileNotFoundError:
        raise CommandNotFoundError(f"{program}: no such command on this host") from None
    except OSError as error:
        raise CommandNotExecutableError(f"{program} cannot be executed: {error.strerror}") from None
    finally:
        for lock in locks:
            os.set_inheritable(lock, False)


def _find_program(name: str, path: str) -> str:
    """Look a command up on the PATH that it will have, as a shell does."""
    if "/" in name:
        return name
    found = shutil.which(name, path=path)
    if found is not None:
        return found
    if unusable := shutil.which(name, os.F_OK, path):
        raise CommandNotExecutableError(f"{unusable} cannot be executed: permission denied")
    raise CommandNotFoundError(f"'{name}': no such command on this host's PATH")


def _wait(child: int) -> int:
    while True:
        caught = signal.sigwaitinfo({*_FORWARDED, signal.SIGCHLD})
        if caught.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return 128 - code if code < 0 else code
        elif caught.si_code != _FROM_KERNEL:
            os.kill(child, caught.si_signo)
