"""Looks after what is suspended, idles, or is over (`--for`): a thread of the host's daemon, `vgpurun guard`.

It finishes what was interrupted, brings back what asks for its GPUs when there is room, and does what --idle says.
What takes turns is left to swapping.py, but for what --idle says of it.
Where a program asks and there is no room, or a launch waits, it suspends idle programs that allow it.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vgpurun import abi
from vgpurun.admission.overdue import Ending, end_overdue, ending_soon
from vgpurun.admission.tickets import queue
from vgpurun.errors import EngineError, GpuError, NoEngineError, NoRoomError, VgpurunError
from vgpurun.host import gpus as devices
from vgpurun.host.checkpoints import Checkpoints
from vgpurun.host.folder_watch import NOT_WATCHED, FolderWatch
from vgpurun.host.gpus import Gpu
from vgpurun.limits import limits_file, usage_file
from vgpurun.limits.idle import IdlePolicy, read_idle
from vgpurun.limits.quota import Quota
from vgpurun.limits.update import is_being_changed, patience
from vgpurun.storage import holders, state
from vgpurun.storage.unchanged import Unchanged
from vgpurun.suspend import record, requests
from vgpurun.suspend.processes import belongs_to, find
from vgpurun.suspend.record import Phase, Record
from vgpurun.suspend.requests import Request
from vgpurun.suspend.resuming import bring_back
from vgpurun.suspend.swapping import LOCK_PATIENCE_S, Hears, Swapper
from vgpurun.suspend.targets import Target, of_containers, slices_and_processes
from vgpurun.suspend.transition import Wishes, finish, is_asked_for, suspend
from vgpurun.util.background import Background
from vgpurun.util.process_identity import ProcessIdentity, identify

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine, VgpurunContainer

INTERVAL_S = 0.05  # between refreshes of those that are suspended: a program waits
_FULL_INTERVAL_S = 1.0  # between refreshes of all others
_ASK_ENGINE_EVERY_S = 10.0
_NEWS_S = 5.0  # for how long after a launch the engine is asked at each refresh
_TRY_AGAIN_S = 1.0  # what failed
_ENGINE_TAKES_S = 0.2  # mostly; a look waits no longer for it, and asks the next time
_MAKES_WAY_AFTER_S = 10.0  # of idleness, or the time of its own policy if that is less


class _Limits(NamedTuple):
    """A target's GPUs, whether it takes turns, and whether the limits say that it is suspended, or on its way."""

    uuids: frozenset[str] = frozenset()
    takes_turns: bool = False
    is_marked: bool = False


class _Said(NamedTuple):
    """The words of a state folder's files: how it is suspended, what --idle says, and what its user asks for."""

    found: Record | None = None
    policy: IdlePolicy | None = None
    request: Request | None = None


class Agent:
    """The agent of the host. `say` hears of each thing that is done, and once of each trouble.

    `warn_of_end` tells what ends soon of that.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        libcuda: str,
        say: Callable[[str], None],
        warn_of_end: Callable[[Ending], None] = lambda _: None,
    ) -> None:
        self._gpus = gpus
        self._libcuda = libcuda
        self._say = say
        self._warn_of_end = warn_of_end
        self._warned_of: set[str] = set()  # what was warned of its end
        self._targets: list[Target] = []
        self._containers: list[VgpurunContainer] = []  # those that run
        self._limits = Unchanged("etc/limits", _limits_of, _Limits())
        # These files come, change and go by a change of the folder, so that one question tells of both.
        self._said = Unchanged[_Said](".", _said_in, _Said())
        self._changes = FolderWatch()
        self._facts: list[tuple[Target, _Limits, _Said]] = []
        self._facts_of: list[Target] | None = None  # None: look again
        self._in_question: list[Target] = []  # those that are to be seen to
        self._watched: dict[str, Target] = {}  # those that are suspended, or on their way
        self._owners: dict[int, tuple[ProcessIdentity | None, str]] = {}  # of processes that use a GPU: a target
        self._listed_s = self._refreshed_s = self._changed_s = self._noted_s = float("-inf")
        self._busy_s: dict[str, float] = {}  # when each was last seen to use a GPU, or first seen at all
        self._again_s: dict[str, float] = {}
        self._warned: set[str] = set()
        self._stops: dict[str, Background[None]] = {}  # of idle ones, under way
        self._answers: dict[str, tuple[Request, Background[str]]] = {}  # to what users ask for, under way
        self._ending: Background[None] | None = None  # of what is over
        self._troubles: dict[str, str] = {}
        self._engine: Engine | None = None
        self._swapper = Swapper(gpus, libcuda, Hears(self._hear_of_turns, self._use))
        self._with_policy: dict[str, Target] = {}  # those of which it matters when they were last in use
        self._folders: list[int] = []  # when each was changed
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="suspensions", daemon=True)

    def start(self) -> None:
        """Begin to look, in a thread."""
        self._thread.start()
        self._swapper.start()

    def stop(self) -> None:
        """Look no more. A transition under way ends first."""
        self._stopping.set()
        self._thread.join()
        for _, doing in self._answers.values():
            doing.result()
        self._swapper.stop()
        self._changes.close()

    def _run(self) -> None:
        while not self._stopping.wait(self._wait_s()):
            self.look()

    def _wait_s(self) -> float:
        all_s = self._refreshed_s + _FULL_INTERVAL_S - time.monotonic()
        return INTERVAL_S if self._watched else max(all_s, INTERVAL_S)

    def look(self) -> None:
        """Do what is to be done now. Raises nothing."""
        with patience(LOCK_PATIENCE_S):
            self._look()

    def _look(self) -> None:
        now_s = time.monotonic()
        looked_at = list(self._watched.values())
        if now_s - self._refreshed_s >= _FULL_INTERVAL_S:
            self._refreshed_s = now_s
            for step in (self._list, self._look_over, self._note_use, self._make_way_for_queue):
                self._hear_of(step.__name__, _trouble_of(step, now_s))
            looked_at = self._in_question
        for target in looked_at:
            if now_s >= self._again_s.get(target.id, 0) and not self._stopping.is_set():
                self._try(target, lambda target: self._see_to(target, now_s))

    def _try(self, target: Target, act: Callable[[Target], None]) -> None:
        trouble = _trouble_of(act, target)
        if trouble and not target.limits_folder.exists():
            trouble = ""  # it has ended meanwhile
        if trouble:
            self._again_s[target.id] = time.monotonic() + _TRY_AGAIN_S
        self._hear_of_target(target, trouble)

    def _hear_of_target(self, target: Target, trouble: str) -> None:
        self._hear_of(target.id, trouble and f"{target.name}: {trouble}")

    def _hear_of_turns(self, target: Target, trouble: str) -> None:
        self._hear_of(f"turns of {target.id}", trouble and f"{target.name}: {trouble}")

    def _hear_of(self, key: str, trouble: str) -> None:
        if trouble and self._troubles.get(key) != trouble:
            self._say(f"warning: {trouble}")
        self._troubles[key] = trouble

    def _see_to(self, target: Target, now_s: float) -> None:
        found, policy, request = self._said(target.limits_folder)
        if request is not None or target.id in self._answers:
            self._answer(target, request)
            return
        if found is not None:
            self._watched[target.id] = target
        else:
            self._watched.pop(target.id, None)
        if found is None:
            if self._limits(target.limits_folder).is_marked and not is_being_changed(target):
                self._finish(target)
            elif target.id in self._with_policy and policy:
                self._see_to_idle(target, policy, now_s)
        elif found.phase != Phase.SUSPENDED:
            if not is_being_changed(target):
                self._finish(target)
        elif not (found.is_swapped or found.is_held or is_being_changed(target)) and is_asked_for(target, found):
            self._wake(target, found)

    def _answer(self, target: Target, request: Request | None) -> None:
        """Begin to do what the user who started it asks for, or tell how that went: its programs may take long."""
        self._watched[target.id] = target
        if target.id not in self._answers:
            assert request is not None
            self._answers[target.id] = request, self._carry_out(target, request)
        asked, doing = self._answers[target.id]
        if not doing.has_ended(0):
            return
        del self._answers[target.id]
        trouble = doing.result()
        requests.answer(target.limits_folder, asked, trouble)
        self._say(f"{asked.verb} {target.name}: its user asks for it{trouble and f'; {trouble}'}")

    def _carry_out(self, target: Target, request: Request) -> Background[str]:
        def act() -> None:
            with patience(LOCK_PATIENCE_S), Checkpoints(self._libcuda) as driver:
                if request.verb == requests.RESUME:
                    bring_back(target, self._gpus, driver, self._engine)
                    return
                by = "vgpurun suspend"
                suspend(
                    target, self._gpus, driver, Wishes(by, request.is_held, lock_timeout_ms=request.lock_timeout_ms)
                )

        return Background(lambda: _trouble_of(act))

    def _finish(self, target: Target) -> None:
        with Checkpoints(self._libcuda) as driver:
            if finish(target, self._gpus, driver) is None:
                self._say(f"finish {target.name}: what was interrupted is undone; its programs go on")

    # ---- waking --------------------------------------------------------------------------------------------------

    def _wake(self, target: Target, found: Record) -> None:
        with Checkpoints(self._libcuda) as driver:
            for other in (None, *self._may_make_way(self._limits(target.limits_folder).uuids)):
                if other is not None and not self._suspend(other, f"room for {target.name}"):
                    continue
                with suppress(NoRoomError):
                    bring_back(target, self._gpus, driver, self._engine)
                    self._busy_s[target.id] = time.monotonic()
                    away_s = time.time() - found.since_s
                    self._say(f"resume {target.name}: its program asks for its GPU, after {away_s:.0f} s")
                    return
        self._again_s[target.id] = time.monotonic() + INTERVAL_S * 4

    def _make_way_for_queue(self, _: float) -> None:
        """Suspend one that idles for a launch that has waited the longest for its GPUs, and looks again by itself."""
        before: set[str] = set()
        for waiting in queue():
            if before.isdisjoint(waiting.uuids):
                for other in self._may_make_way(waiting.uuids):
                    if self._suspend(other, f"room for what waits: {waiting.asked}"):
                        return
            before |= waiting.uuids

    def _may_make_way(self, uuids: Set[str]) -> Iterator[Target]:
        """Yield those on these GPUs that are idle and may be suspended, the longest idle first."""
        now_s = time.monotonic()
        for other in sorted(self._targets, key=lambda each: self._busy_s.get(each.id, now_s)):
            limits, (_, policy, _) = self._limits(other.limits_folder), self._said(other.limits_folder)
            if policy is None or policy.action != "suspend" or limits.is_marked:
                continue
            if not uuids.isdisjoint(limits.uuids):
                idle_s = now_s - self._last_busy_s(other, now_s)
                if idle_s >= min(_MAKES_WAY_AFTER_S, policy.after_s):
                    yield other

    # ---- idleness ------------------------------------------------------------------------------------------------

    def _see_to_idle(self, target: Target, policy: IdlePolicy, now_s: float) -> None:
        idle_s = now_s - self._last_busy_s(target, now_s)
        if idle_s < policy.after_s:
            self._warned.discard(target.id)
            self._stops.pop(target.id, None)
        elif policy.action == "suspend":
            self._suspend(target, f"idle for {idle_s:.0f} s")
        else:
            if target.id not in self._warned:
                self._warned.add(target.id)
                self._say(f"{policy.action} {target.name}: idle for {idle_s:.0f} s")
            if policy.action == "stop":
                self._stop(target, now_s)

    def _suspend(self, target: Target, why: str) -> bool:
        """Return whether it has given something back: one without memory on a GPU has nothing to give."""
        is_away = False

        def act(target: Target) -> None:
            nonlocal is_away
            if not is_being_changed(target) and find(target.limits_folder, self._gpus):
                with Checkpoints(self._libcuda) as driver:
                    suspend(target, self._gpus, driver, Wishes(by=why, gives_way=True))
                self._say(f"suspend {target.name}: {why}")
                is_away = True

        self._try(target, act)
        return is_away

    def _stop(self, target: Target, now_s: float) -> None:
        """Begin to stop it, or ask how that goes. Raises VgpurunError and OSError; then it is tried again."""
        is_new = target.id not in self._stops
        stop = self._stops.pop(target.id, None) or Background(lambda: _stop(target, self._gpus))
        if stop.has_ended(_ENGINE_TAKES_S if is_new else 0):
            stop.result()
            self._busy_s[target.id] = now_s  # if it is there still, it was started again
        else:
            self._stops[target.id] = stop

    def _last_busy_s(self, target: Target, now_s: float) -> float:
        """By CLOCK_MONOTONIC: the last launch that the library measured, or use that NVML has seen.

        A launch that is still to come was before a reboot: the usage file is kept, and the clock begins anew.
        """
        usage = target.limits_folder / "run" / "usage"
        readings = usage_file.read_usage(usage, sorted(self._limits(target.limits_folder).uuids)) or []
        read_s = time.monotonic()
        launches_s = (each.last_launch_ns / 1e9 for each in readings)
        measured_s = max((launch_s for launch_s in launches_s if launch_s <= read_s), default=0)
        return min(now_s, max(measured_s, self._busy_s.setdefault(target.id, now_s)))

    def _use(self, target: Target) -> tuple[float, float]:
        return self._last_busy_s(target, time.monotonic()), self._noted_s

    def _note_use(self, now_s: float) -> None:
        """Nobody is idle on a GPU of which NVML does not tell what processes use."""
        with_policy = list(self._with_policy.values())
        trouble = ""
        for gpu in self._gpus if with_policy else ():
            try:
                used = devices.read_utilization(gpu, 2 * _FULL_INTERVAL_S)
            except GpuError as error:
                trouble = f"nothing is idle for certain: {error}"
                for target in with_policy:
                    if gpu.uuid in self._limits(target.limits_folder).uuids:
                        self._busy_s[target.id] = now_s
            else:
                for pid in (pid for pid, percent in used.items() if percent > 0):
                    self._busy_s[self._owner_of(pid, with_policy)] = now_s
        self._noted_s = now_s
        self._hear_of("", trouble)

    def _owner_of(self, pid: int, targets: Sequence[Target]) -> str:
        process = identify(pid)
        known, owner = self._owners.get(pid, (None, ""))
        if known is None or known != process:
            owner = next((each.id for each in targets if belongs_to(pid, each.limits_folder)), "")
            self._owners[pid] = process, owner
        return owner

    def _list(self, now_s: float) -> None:
        folders = [
            _changed_ns(root / kind) for root in state.visible_roots() for kind in (state.CONTAINERS, state.SLICES)
        ]
        if folders != self._folders:  # one that is about to start may wait for its first turn
            self._changed_s = now_s
        self._folders = folders
        if now_s - self._listed_s >= _ASK_ENGINE_EVERY_S or now_s - self._changed_s < _NEWS_S:
            self._listed_s = now_s
            try:
                self._engine = self._engine or _connect()
                self._containers = self._engine.containers(everything=False) if self._engine else []
            except EngineError:
                self._engine = None
            self._hear_of(end_overdue.__name__, _trouble_of(self._end_overdue))
            self._hear_of(ending_soon.__name__, _trouble_of(self._warn_of_ends))
            self._targets = [*of_containers(self._containers), *slices_and_processes()]
            self._watched = {each.id: each for each in self._targets if each.id in self._watched}
            # A container that is started again is as new: it was not idle while it did not run.
            self._busy_s = {each.id: self._busy_s.get(each.id, now_s) for each in self._targets}
            self._warned &= self._busy_s.keys()
            self._stops = {id_: each for id_, each in self._stops.items() if id_ in self._busy_s}
        self._owners = {pid: known for pid, known in self._owners.items() if known[0] and known[0].is_alive()}

    def _look_over(self, _: float) -> None:
        """Find those that take turns, those of which idleness matters, and those to be seen to: mostly few."""
        swapping, with_policy, in_question = [], {}, []
        if self._changes.changed() or self._facts_of is not self._targets:
            folders = [folder for each in self._targets for folder in (each.limits_folder, each.limits_folder / "etc")]
            are_watched = NOT_WATCHED not in [self._changes.add(folder) for folder in folders]  # before they are read
            self._facts = [
                (each, self._limits(each.limits_folder), self._said(each.limits_folder)) for each in self._targets
            ]
            self._facts_of = self._targets if are_watched else None
        for target, limits, said in self._facts:
            if limits.takes_turns:
                swapping.append(target)
            if limits.takes_turns or said.policy:
                with_policy[target.id] = target
            if any(said) or limits.is_marked or target.id in self._watched or self._troubles.get(target.id):
                in_question.append(target)
        self._with_policy, self._in_question = with_policy, in_question
        self._swapper.see(swapping)

    def _end_overdue(self) -> None:
        """End what is over, in a thread of its own: a container may take long to end."""
        if self._ending is None:
            engine, containers = self._engine, self._containers
            self._ending = Background(lambda: self._end(engine, containers))
        if self._ending.has_ended(_ENGINE_TAKES_S):
            ended, self._ending = self._ending, None
            ended.result()

    def _end(self, engine: "Engine | None", containers: "Sequence[VgpurunContainer]") -> None:
        for ended in end_overdue(engine, containers):
            self._say(f"stop {ended}: its time was over")

    def _warn_of_ends(self) -> None:
        soon = {each.id: each for each in ending_soon(self._containers)}
        for key in soon.keys() - self._warned_of:
            self._warn_of_end(soon[key])
        self._warned_of = set(soon)


def _trouble_of(act: Callable[..., None], *arguments: object) -> str:
    """Do something; return what went wrong. A mistake about one thing ends neither the others nor in silence."""
    try:
        act(*arguments)
    except (VgpurunError, OSError) as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ""


def _stop(target: Target, gpus: Sequence[Gpu]) -> None:
    """End it, which may take as long as its own --stop-timeout says, a day for one. Raises VgpurunError and OSError."""
    if target.id.isdecimal():
        _stop_local(target, gpus)
    elif not target.id.startswith("slice:"):
        from vgpurun.engine.containers import ContainerEngine

        ContainerEngine.connect().stop_in_time(target.id, None, None)


def _stop_local(target: Target, gpus: Sequence[Gpu]) -> None:
    """Send SIGTERM to `vgpurun local`, which passes it on, or where that has ended to what it has left.

    The folder may be a user's own, who can name any process in it: only those that are that user's are ended.
    """
    folder = target.limits_folder
    owner_uid = folder.lstat().st_uid
    uid = owner_uid if owner_uid != 0 else None  # root's may have become another user's
    named = holders.processes_in((state.read_owner(folder) or {}).get(holders.RECORD))
    if not any(each.signal(signal.SIGTERM, uid) for each in named if each.pid == int(target.id)):
        for each in set(named) | set(find(folder, gpus)):
            each.signal(signal.SIGTERM, uid)


def _connect() -> "Engine | None":
    from vgpurun.engine.client import Engine

    try:
        return Engine.connect()
    except NoEngineError:
        return None


def _changed_ns(folder: Path) -> int:
    with suppress(OSError):
        return folder.stat().st_mtime_ns
    return 0


def _limits_of(folder: Path) -> _Limits:
    limits: Sequence[tuple[str, Quota]] = ()
    with suppress(OSError):
        limits = limits_file.read_limits(folder / "etc" / "limits") or ()
    return _Limits(
        frozenset(uuid for uuid, _ in limits),
        any(quota.takes_turns for _, quota in limits),
        any(quota.suspended != abi.NOT_SUSPENDED for _, quota in limits),
    )


def _said_in(folder: Path) -> _Said:
    found = None
    with suppress(OSError):
        found = record.read(folder)
    return _Said(found, read_idle(folder), requests.read_request(folder))
