"""The duty that holds a container to its share of a GPU's time when the library does not see all of its programs.

The container is stopped and let go on in turn (brakes.py). NVML says what share it has had in the last second; what
that was above or below the limit is kept as a balance, which the next periods make up for. Launches from before a
freeze still run, and are made up for in the same way.
"""

import math
import random
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

from vgpurun.errors import CgroupError
from vgpurun.guard.brakes import Brake
from vgpurun.guard.daemon import Actions, Duty
from vgpurun.guard.ended import LOOK_AGAIN_S, WINDOW_S, Ended
from vgpurun.guard.snapshot import Contained, Derived, Snapshot
from vgpurun.guard.state import State, about
from vgpurun.host.freezer import run_of
from vgpurun.inventory import guarded
from vgpurun.inventory.guarded import HOLD, RELEASE, WARN
from vgpurun.limits.policies import SmPolicy

COMPUTE = "compute"
LEAST_ON_S = 0.02  # of a period; less is spent on stopping it
_MARGIN_PERCENT = 2  # NVML counts whole percents
_REPAID_IN_S = 2.0
_MOST_SAVED_S, _MOST_OWED_S = 0.2, 30.0
_IDLE_S = 10.0  # after which a container that stays below its limit by itself is let go
_MOST_CHANGES = 64  # more than there are in a window
_FROZEN_RATE = 0.05  # the least part of a window thawed from which a rate can be told


class Use:
    """A container's use of one GPU's time, and its limit there."""

    def __init__(self, limit: float, measured_s: float, balance_s: float = 0.0) -> None:
        self.limit = limit
        self.measured_s = measured_s
        self.balance_s = balance_s
        self.rate = 1.0  # of the GPU's time that it uses while it is thawed

    def measure(self, share: float, limit: float, thawed_ratio: float, now_s: float) -> None:
        """Take what NVML says of the last second."""
        self.limit = limit
        elapsed_s = min(now_s - self.measured_s, WINDOW_S) or WINDOW_S
        self.measured_s = now_s
        self.balance_s = min(max(self.balance_s + (limit - share) * elapsed_s, -_MOST_OWED_S), _MOST_SAVED_S)
        if thawed_ratio >= _FROZEN_RATE:
            self.rate = min(max(share / thawed_ratio, limit), 1.0)

    def balance_at_s(self, now_s: float) -> float:
        """Return what it still has too much when it has used nothing since it was measured."""
        return min(0.0, self.balance_s + self.limit * (now_s - self.measured_s))

    def next_on_s(self, period_s: float) -> float:
        """Return for how long of the next period the container may run."""
        return period_s * (self.limit + self.balance_s / _REPAID_IN_S) / self.rate


class Held:
    """A container that is held to its share, and how far it has been thawed of late."""

    def __init__(self, container: Contained, brake: Brake, now_s: float, before: Mapping[str, Use] = {}) -> None:
        """`before` is what it had when it was let go the last time."""
        self.container = container
        self._brake = brake
        self._before = before
        self.uses: dict[str, Use] = {}  # by the UUIDs of the GPUs on which it has to be held
        self.within_since_s = now_s
        self.is_thawed = True
        self.is_paused = False
        self.changes: list[tuple[float, bool]] = [(now_s - WINDOW_S, True)]
        self.period_began_s = self.due_s = now_s
        self.on_s = 0.0
        self.period_s = brake.period_s

    def measure(self, uuid: str, share: float, now_s: float) -> None:
        """Take what NVML says of the last second on one GPU."""
        limit = (self.container.quotas[uuid].sm_percent or 100) / 100
        use = self.uses.get(uuid)
        if use is None:
            balance_s = self._before[uuid].balance_at_s(now_s) if uuid in self._before else 0.0
            use = self.uses[uuid] = Use(limit, now_s - WINDOW_S, balance_s)
        use.measure(share, limit, self.thawed_ratio(now_s), now_s)
        self._follow_limits()
        if share > limit or not self.is_let_run():
            self.within_since_s = now_s

    def is_let_run(self) -> bool:
        """Whether it needs no holding now."""
        return self.on_s >= self.period_s

    def within_for_s(self) -> float:
        """Return for how long it has stayed below its limit by itself, until it was measured last.

        The guard may have stood still since then, and left it frozen.
        """
        return max(use.measured_s for use in self.uses.values()) - self.within_since_s

    def hold_on(self, uuids: Set[str]) -> None:
        """Hold it on these GPUs only."""
        self.uses = {uuid: use for uuid, use in self.uses.items() if uuid in uuids}
        self._follow_limits()

    def _follow_limits(self) -> None:
        """Take a longer period for a small share, of which the least part would be too much."""
        self.period_s = max(self._brake.period_s, LEAST_ON_S / min([use.limit for use in self.uses.values()]))

    def next_on_s(self) -> float:
        """Return for how long of the next period it may run: by the GPU that leaves it the least."""
        on_s = min(use.next_on_s(self.period_s) for use in self.uses.values())
        return 0.0 if on_s < LEAST_ON_S else min(on_s, self.period_s)

    def is_next_thawed(self, now_s: float) -> bool:
        """Return whether it is to run from now on, when it is due; where its period has ended the next one begins."""
        if now_s < self.period_began_s + self.period_s and self.is_thawed:
            return False
        self.period_began_s = now_s
        self.on_s = self.next_on_s()
        return self.on_s > 0

    def put_off(self, now_s: float) -> None:
        """Leave it as it is until the next period: it could not be stopped, or let go on."""
        self.period_began_s, self.on_s = now_s, self.period_s
        self.plan()

    def note(self, is_thawed: bool, now_s: float) -> None:
        """Take that it has been stopped, or let go on."""
        if is_thawed != self.is_thawed:
            self.is_thawed = is_thawed
            self.changes.append((now_s, is_thawed))
            del self.changes[:-_MOST_CHANGES]
        self.plan()

    def plan(self) -> None:
        """Work out when its period ends, or before that its part of the period; never while it is paused."""
        period_s = self.period_s
        for_s = self.on_s if self.is_thawed and self.on_s < period_s else period_s
        self.due_s = math.inf if self.is_paused else self.period_began_s + for_s

    def follow_pause(self, now_s: float) -> None:
        """Leave it frozen while the engine says that it is paused, and go on after that.

        Raises CgroupError.

        What the engine says may be seconds old, so it has to be known still that this froze it.
        """
        was_paused, self.is_paused = self.is_paused, self.container.is_paused
        if not (self.is_paused or was_paused):
            return
        self.period_began_s, self.on_s = now_s - self.period_s, 0.0  # the next period begins at once
        self.plan()
        if self.is_paused:
            self._brake.stop(self.container)
        self.note(not self._brake.is_stopped(self.container), now_s)  # the engine may have changed it

    def has_ended(self) -> bool:
        """Whether it has: what is at its cgroup's path by now is a later start of it, or nothing."""
        return run_of(self.container.cgroup) != self.container.run

    def thawed_ratio(self, now_s: float) -> float:
        """Return for which part of the last second it was not stopped."""
        began_s, total_s, until_s = now_s - WINDOW_S, 0.0, now_s
        for at_s, is_thawed in reversed(self.changes):
            if is_thawed:
                total_s += max(until_s - max(at_s, began_s), 0.0)
            until_s = at_s
            if at_s <= began_s:
                break
        return total_s / WINDOW_S


class ComputeDuty(Duty):
    """Holds containers to their share. `policy` is off, warn or hold.

    `holds_all`: those of which the library sees all processes, too.
    """

    name = COMPUTE

    def __init__(
        self, memory: dict[str, Any], state: State, policy: str, brake: Brake, holds_all: bool = False
    ) -> None:
        super().__init__(memory)
        self._brake = brake
        self._holds_all = holds_all
        self._state = state
        self._policy = policy
        self._limited = Derived(_limited)
        self._held: dict[str, Held] = {}
        self._measured_s: dict[str, float] = {}
        self._gone = Ended()
        self._let_go: dict[tuple[str, str], Mapping[str, Use]] = {}  # by container and run
        done = [*(each.action for each in guarded.actions()), *state.pending.values()]
        self._warned = {(each.container, each.run) for each in done if (each.verb, each.cause) == (WARN, COMPUTE)}

    def look(self, snapshot: Snapshot) -> Actions:
        """Yield the begin and the end of each holding, and measure meanwhile."""
        yield from self._ended(snapshot)
        if self._policy == "off":
            return
        limited = self._limited(snapshot)
        restless = self._gone.come_and_go(snapshot, limited)
        self._brake.follow(snapshot, {id_ for id_, _ in restless})
        for gpu in snapshot.gpus:
            if gpu.uuid not in snapshot.held or gpu.uuid not in limited:
                continue
            are_short_lived = any(uuid == gpu.uuid for _, uuid in restless)
            is_held = any(gpu.uuid in held.uses for held in self._held.values())
            is_due = snapshot.now_s >= self._measured_s.get(gpu.uuid, 0) + WINDOW_S
            if are_short_lived:
                self.next_s = snapshot.now_s + LOOK_AGAIN_S * random.uniform(0.5, 1.5)  # in step with none
            if not (are_short_lived or is_held or is_due):
                continue
            self._measured_s[gpu.uuid] = snapshot.now_s
            utilization = snapshot.utilization(gpu)
            is_used = any(utilization.values())
            if not (is_used or are_short_lived or self._state.stopped) and self._gone.is_quiet(gpu.uuid):
                continue
            percents: dict[str, float] = {}  # by slice, or container
            for container in limited[gpu.uuid]:
                self._gone.follow(snapshot, container, gpu.uuid, utilization)
                percent = sum(utilization.get(pid, 0.0) for pid in snapshot.pids_of(container.id, gpu.uuid))
                percent += self._gone.percent(snapshot, container.id, gpu.uuid)
                percents[_limited_as(container)] = percents.get(_limited_as(container), 0.0) + percent
            for container in limited[gpu.uuid]:
                percent = min(percents[_limited_as(container)], 100.0)
                yield from self._judge(snapshot, container, gpu.uuid, gpu.number, percent, utilization)
        self._gone.drop(snapshot)
        self._let_go = {
            key: uses for key, uses in self._let_go.items()
            if any(use.balance_at_s(snapshot.now_s) < 0 for use in uses.values())
        }  # fmt: skip

    def _judge(self, snapshot: Snapshot, container: Contained, uuid: str, number: str, percent: float,
               utilization: Any) -> Actions:  # fmt: skip
        held = self._held.get(container.id)
        limit_percent = container.quotas[uuid].sm_percent or 100
        if held is not None and uuid in held.uses:
            held.measure(uuid, percent / 100, snapshot.now_s)
            self._brake.watch(container, uuid, utilization, held.thawed_ratio(snapshot.now_s), snapshot.now_s)
            return
        is_held = container.id in self._state.stopped and self._state.stopped[container.id].verb == HOLD
        was_held = is_held and held is None
        if not was_held and (percent <= limit_percent + _MARGIN_PERCENT or container.is_paused):
            return
        if container.id in self._state.stopped and not is_held:
            return  # frozen for something else
        unseen = [pid for pid in snapshot.unseen_of(container, uuid) if utilization.get(pid, 0.0) > 0 or was_held]
        count = len(unseen) + self._gone.unseen(snapshot, container.id, uuid)
        if not count and not self._holds_all:
            return
        whose = "it uses" if not container.slice_name else f"slice {container.slice_name} uses"
        words = f"{whose} {percent:.0f} % of GPU {number}, its limit is {limit_percent} %"
        words += f", and the library does not see {count} of its processes" if count else ""
        if held is not None:
            held.measure(uuid, percent / 100, snapshot.now_s)
        elif was_held:  # by a guard before this one
            self._begin(container, uuid, snapshot.now_s, percent)
        elif self._policy == WARN:
            if (container.id, container.run) not in self._warned:
                self._warned.add((container.id, container.run))
                yield about(container, WARN, COMPUTE, words, uuid)
        elif not container.cgroup.is_frozen() and (yield about(container, HOLD, COMPUTE, words, uuid)):
            self._begin(container, uuid, snapshot.now_s, percent)

    def _begin(self, container: Contained, uuid: str, now_s: float, percent: float) -> None:
        before = self._let_go.pop((container.id, container.run), {})
        held = self._held[container.id] = Held(container, self._brake, now_s, before)
        held.is_thawed = not self._brake.is_stopped(container)
        held.changes = [(now_s - WINDOW_S, held.is_thawed)]
        held.measure(uuid, percent / 100, now_s)
        held.plan()
        held.follow_pause(now_s)
        self.tick_s = now_s

    def _ended(self, snapshot: Snapshot) -> Actions:
        for id_, stopped in list(self._state.stopped.items()):
            if stopped.verb == HOLD and id_ not in self._held and id_ in snapshot.containers:
                container = snapshot.containers[id_]
                if container.is_paused:
                    continue
                if self._policy != HOLD:
                    yield about(container, RELEASE, COMPUTE, "containers are not held any more")
                elif snapshot.silent.isdisjoint(container.quotas) and not any(
                    self._has_unseen(snapshot, container, uuid) for uuid in container.quotas
                ):
                    yield about(container, RELEASE, COMPUTE, "the programs that the library does not see are gone")
        for id_, held in list(self._held.items()):
            now = self._state.stopped.get(id_)
            current = snapshot.containers.get(id_)
            if now is None or now.verb != HOLD:
                self._drop(id_)  # it has ended, or is frozen for something else
                continue
            if current is None:
                continue
            held.container = current
            with suppress(CgroupError):  # it ended just now
                held.follow_pause(snapshot.now_s)
            if held.is_paused or not held.uses.keys() <= snapshot.held.keys():
                continue
            unseen = {uuid for uuid in held.uses if self._has_unseen(snapshot, current, uuid)}
            limited = {uuid for uuid in unseen if _is_limited(current, uuid)}
            if not unseen:
                yield from self._release(current, "the programs that the library does not see are gone")
            elif not limited or held.within_for_s() > _IDLE_S:
                yield from self._release(current, "it keeps to its share")
            else:
                held.hold_on(limited)
        self.tick_s = min((held.due_s for held in self._held.values()), default=None)

    def _has_unseen(self, snapshot: Snapshot, container: Contained, uuid: str) -> bool:
        """Whether a process is there that is to be held, or is expected: mostly one that the library does not see."""
        if self._holds_all and snapshot.pids_of(container.id, uuid):
            return True
        return bool(snapshot.unseen_of(container, uuid)) or self._gone.are_short_lived(snapshot, container, uuid)

    def _release(self, container: Contained, words: str) -> Actions:
        if (yield about(container, RELEASE, COMPUTE, words)):
            self._let_go[container.id, container.run] = self._drop(container.id)

    def _drop(self, container: str) -> Mapping[str, Use]:
        """Hold it no more; return what it had."""
        held = self._held.pop(container)
        self._brake.release(container)
        return held.uses

    def tick(self, now_s: float) -> None:
        """Freeze and thaw what is held, each at its time.

        Raises CgroupError, after all had their turn.
        """
        next_thawed = {}
        for id_, held in list(self._held.items()):
            if now_s >= held.due_s:
                if self._brake.freezes(held.container) and held.has_ended():
                    self._drop(id_)
                else:
                    next_thawed[id_] = held.is_next_thawed(now_s)
        troubles = self._switch(next_thawed)
        for id_, is_thawed in next_thawed.items():
            if id_ in troubles:
                self._held[id_].put_off(now_s)
            else:
                self._held[id_].note(is_thawed, now_s)
        self.tick_s = min((held.due_s for held in self._held.values()), default=None)
        for trouble in troubles.values():
            raise trouble

    def _switch(self, next_thawed: Mapping[str, bool]) -> Mapping[str, CgroupError]:
        """Stop and let go on what is not so yet; return what went wrong, by container."""
        stopping, going = (
            [self._held[id_].container for id_, each in next_thawed.items()
             if each is is_thawed and self._held[id_].is_thawed is not is_thawed]
            for is_thawed in (False, True)
        )  # fmt: skip
        return self._brake.turn(stopping, going) if stopping or going else {}

    def close(self) -> None:
        """Let all go on that is held: nobody would thaw it. The next guard finds them again.

        Raises CgroupError, after all had their turn.
        """
        troubles: list[CgroupError] = []
        for held in self._held.values():
            if not held.is_paused and not held.has_ended():
                try:
                    self._brake.go(held.container)
                except CgroupError as error:
                    troubles.append(error)
        if troubles:
            raise troubles[0]


def _limited_as(container: Contained) -> str:
    """Return what shares its limit: all that have joined its slice without limits of their own, or itself."""
    return f"slice {container.slice_name}" if container.slice_name else container.id


def _limited(snapshot: Snapshot) -> Mapping[str, Sequence[Contained]]:
    """Return the containers that a limit holds all the time, by GPU."""
    found: dict[str, list[Contained]] = {}
    for container in snapshot.containers.values():
        for uuid in container.quotas:
            if _is_limited(container, uuid):
                found.setdefault(uuid, []).append(container)
    return found


def _is_limited(container: Contained, uuid: str) -> bool:
    """Whether a limit holds all the time."""
    quota = container.quotas.get(uuid)
    return quota is not None and bool(quota.sm_percent) and quota.sm_policy is SmPolicy.HARD
