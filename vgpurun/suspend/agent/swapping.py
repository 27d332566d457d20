"""Carries out the turns of programs with --swap: a thread of the guard, and one for each exchange.

turns.py decides whose turn it is, and each way in and out is an ordinary transition (transition.py).
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from vgpurun import abi
from vgpurun.errors import GpuError
from vgpurun.host.checkpoints import Checkpoints
from vgpurun.host.gpus import Gpu, read_use
from vgpurun.inventory.swap_counts import add_swap, note_held_up
from vgpurun.limits import limits_file
from vgpurun.limits.update import patience
from vgpurun.suspend.agent.troubles import Troubles, trouble_of
from vgpurun.suspend.agent.uses import Uses
from vgpurun.suspend.record import Record
from vgpurun.suspend.targets import Target
from vgpurun.suspend.transition import Wishes, is_asked_for, read, suspend, swap_in
from vgpurun.suspend.turns import Exchange, Group, Turns

INTERVAL_S = 0.05  # between refreshes of those that are suspended: a program waits


class Swapper:
    """The swapping of the host."""

    def __init__(self, gpus: Sequence[Gpu], libcuda: str, troubles: Troubles, uses: Uses) -> None:
        self._gpus = gpus
        self._libcuda = libcuda
        self._troubles = troubles
        self._uses = uses
        self._turns = Turns()
        self._targets: dict[str, Target] = {}
        self._moving: set[str] = set()
        self._held_up: set[str] = set()  # those recorded as waiting behind a share that stays
        self._stayed: set[str] = set()  # groups that did not leave in time: nobody comes back for them at once
        self._lock = threading.Lock()  # for the above, but for the files
        self._stopping = threading.Event()
        self._is_wanted = threading.Event()  # there are targets
        self._exchanges: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._run, name="turns", daemon=True)

    def start(self) -> None:
        """Begin to look, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more. Exchanges under way end first."""
        self._stopping.set()
        self._is_wanted.set()
        self._thread.join()
        for each in self._exchanges:
            each.join()

    def see(self, targets: Sequence[Target]) -> None:
        """Tell which there are that take turns."""
        with self._lock:
            self._stayed &= {each.id for each in targets}
            self._held_up |= {each.id for each in targets if each.id not in self._targets}
            self._targets = {each.id: each for each in targets}
        (self._is_wanted.set if targets else self._is_wanted.clear)()

    def _run(self) -> None:
        while self._is_wanted.wait() and not self._stopping.wait(INTERVAL_S):
            self.look()

    def look(self) -> None:
        """Begin the exchanges that are due. Raises nothing."""
        with self._lock:
            targets, moving = dict(self._targets), set(self._moving)
        groups = [group for each in targets.values() if (group := self._group(each, each.id in moving))]
        with self._lock:
            exchanges = self._turns.decide(groups, time.monotonic())
            for each in exchanges:
                self._moving |= {*each.out, *([each.into] if each.into else [])}
            over = {known for known in self._held_up - moving if self._turns.waits_since_s(known) is None}
            self._held_up -= over
        for waited in over & targets.keys():
            note_held_up(targets[waited].limits_folder, "")
        self._exchanges = [each for each in self._exchanges if each.is_alive()]
        for each in exchanges:
            thread = threading.Thread(target=self._carry_out, args=(each, targets), name="exchange")
            self._exchanges.append(thread)
            thread.start()

    def _group(self, target: Target, is_moving: bool) -> Group | None:
        """Return it as it is now, or None for one that takes no turns: it is suspended altogether, or has ended."""
        try:
            limits = limits_file.read_limits(target.limits_folder / "etc" / "limits") or []
        except OSError:
            return None
        states = {quota.suspended for _, quota in limits if quota.takes_turns}
        if not states or states == {abi.SUSPENDED}:
            return None
        gpus = frozenset(uuid for uuid, _ in limits)
        if states == {abi.NOT_SUSPENDED}:
            return Group(target.id, gpus, True, False, *self._uses.last_seen_s(target), is_moving)
        if states == {abi.SWAPPED}:
            return Group(target.id, gpus, False, is_asked_for(target, read(target)), is_moving=is_moving)
        return Group(target.id, gpus, False, False, is_moving=True)

    def _carry_out(self, exchange: Exchange, targets: dict[str, Target]) -> None:
        into = targets[exchange.into] if exchange.into else None
        leaves_alone = len(exchange.out) == 1 and self._stayed.isdisjoint(exchange.out)
        meanwhile = _Meanwhile(self._begin_to_come, into if leaves_alone else None)
        try:
            with patience(), Checkpoints(self._libcuda) as driver:
                wishes = Wishes(f"turn of {into.name}" if into else "another is there", is_swap=True)
                wishes = wishes._replace(when_locked=meanwhile.begin)
                gone = (self._go(targets[each], driver, wishes, each in exchange.idle) for each in exchange.out)
                trouble = next(filter(None, gone), "")
                has_come = meanwhile.end(not trouble)
                if into:
                    self._note_held_up(into, trouble)
                if into and not trouble and not has_come:
                    self._come(into, driver)
        finally:
            meanwhile.end(False)
            with self._lock:
                self._moving -= {*exchange.out, exchange.into}

    def _begin_to_come(self, into: Target, leaving: Record, may_go_on: Callable[[], bool]) -> bool:
        """Bring one back while another leaves, where there is room for both; return whether it has come.

        Both are within what those that take turns have reserved together: so nobody else's room is touched. The one
        that leaves is locked, and so gets no more meanwhile.
        """
        found = read(into)
        if found is None or not found.total_bytes or not self._has_room(found, leaving):
            return False
        with Checkpoints(self._libcuda) as driver:
            return self._come(into, driver, may_go_on)

    def _has_room(self, coming: Record, leaving: Record) -> bool:
        with self._lock:
            targets = list(self._targets.values())
        reserved_bytes: dict[str, int] = {}
        for each in targets:
            with suppress(OSError):
                for uuid, quota in limits_file.read_limits(each.limits_folder / "etc" / "limits") or ():
                    if quota.takes_turns:
                        reserved_bytes[uuid] = max(reserved_bytes.get(uuid, 0), quota.reserved_bytes or 0)
        needed = [gpu for gpu in self._gpus if coming.held_bytes.get(gpu.uuid)]
        try:
            uses = read_use(needed)
        except GpuError:
            return False
        return all(
            coming.held_bytes[gpu.uuid] + leaving.held_bytes.get(gpu.uuid, 0) <= reserved_bytes.get(gpu.uuid, 0)
            and coming.held_bytes[gpu.uuid] <= gpu.memory_bytes - use.memory_used_bytes
            for gpu, use in zip(needed, uses, strict=True)
        )

    def _go(self, target: Target, driver: Checkpoints, wishes: Wishes, is_idle: bool) -> str:
        """Return why it stays, or nothing."""

        def go() -> Record:
            return suspend(target, self._gpus, driver, wishes)

        found, took_s, trouble = self._done(target, go)
        (self._stayed.discard if found else self._stayed.add)(target.id)
        if found is None:
            return f"{target.name} keeps the GPU: {trouble}" if target.limits_folder.exists() else ""
        with self._lock:
            self._turns.went(target.id, time.monotonic(), took_s, is_idle)
        add_swap(target.limits_folder, found.total_bytes)
        return ""

    def _come(self, target: Target, driver: Checkpoints, may_go_on: Callable[[], bool] = lambda: True) -> bool:
        """Return whether it is there now, which is said where that has failed."""

        def come() -> Record | None:
            return swap_in(target, self._gpus, driver, may_go_on)

        found, took_s, _ = self._done(target, come)
        if found is None:
            return False
        now_s = time.monotonic()
        with self._lock:
            since_s = self._turns.waits_since_s(target.id)
            self._turns.came(target.id, now_s, took_s)
        add_swap(target.limits_folder, found.total_bytes, now_s - (now_s if since_s is None else since_s))
        return True

    def _note_held_up(self, target: Target, why: str) -> None:
        with self._lock:
            self._held_up.add(target.id)
        note_held_up(target.limits_folder, why.partition(";")[0])  # without the way out, which is the admin's

    def _done(self, target: Target, act: Callable[[], Record | None]) -> tuple[Record | None, float, str]:
        """Return what came of it, and how long it took; None where it has failed, which is said, and why."""
        began_s = time.monotonic()
        found: Record | None = None

        def keep() -> None:
            nonlocal found
            found = act()

        trouble = trouble_of(keep)
        if trouble:
            with self._lock:
                self._turns.failed(target.id, time.monotonic())
        self._troubles.take("turns", trouble and f"{target.name}: {trouble}", target)
        return found, time.monotonic() - began_s, trouble


class _Meanwhile:
    """A thread in which the next one begins to come while another leaves: its programs go on when that has left."""

    def __init__(self, come: Callable[[Target, Record, Callable[[], bool]], bool], into: Target | None) -> None:
        """Call `come` with these, in the thread; without a target never."""
        self._come = come
        self._into = into
        self._has_left = False
        self._has_come = False
        self._is_known = threading.Event()  # whether the other has left
        self._thread: threading.Thread | None = None

    def begin(self, leaving: Record) -> None:
        """Begin, beside one that is locked now. Raises nothing."""
        if self._into is not None:
            self._thread = threading.Thread(target=self._run, args=(self._into, leaving), name="meanwhile")
            self._thread.start()

    def end(self, has_left: bool) -> bool:
        """Say whether the other has left; wait, and return whether the next one has come."""
        if not self._is_known.is_set():
            self._has_left = has_left
            self._is_known.set()
        if self._thread is not None:
            self._thread.join()
        return self._has_come

    def _run(self, into: Target, leaving: Record) -> None:
        with patience():
            self._has_come = self._come(into, leaving, self._may_go_on)

    def _may_go_on(self) -> bool:
        self._is_known.wait()
        return self._has_left
