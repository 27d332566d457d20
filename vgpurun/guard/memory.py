"""The duty that holds containers to their memory limits where the library does not.

A container's memory is what NVML says that its processes hold. The library keeps programs that it sees to their limit,
but what the driver takes for code and contexts it can count only afterwards. So a container whose processes are all
counted may hold more, and for longer, than one with a process that the library does not see.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from vgpurun.guard.daemon import Actions, Duty
from vgpurun.guard.hands import is_ending
from vgpurun.guard.snapshot import Contained, Derived, Snapshot
from vgpurun.guard.state import State, about
from vgpurun.inventory.guarded import FREEZE, KILL, THAW, WARN, is_launch
from vgpurun.limits.quota import Quota, show_size

MEMORY = "memory"
SLACK_RATIO = 0.05
# The lag that a usage file may have, with stream-ordered allocations, and a step of the driver's: below some 960 MiB
# this is more than 5 %.
LEAST_SLACK_BYTES = 48 << 20
# More than the driver takes by itself on any GPU for a context, or for code and stacks that kernels need.
DRIVER_BYTES = 1 << 30
_FORGOTTEN_S = 10.0  # after which a limit that was passed was another time
_LOOK_STANDS_FOR_S = 0.5  # the time between two looks: what is found at one alone, has been so for as long


class Sharing(NamedTuple):
    """Containers that share one memory limit of a GPU: one alone, or those of a slice. `holder` is that in words."""

    key: str
    holder: str
    limit_bytes: int
    most_bytes: int
    uuid: str
    number: str
    containers: Sequence[Contained]
    is_oversubscribed: bool


class Spell:
    """Sums for how long something has been so, over short breaks: a look tells of a moment, and others are between."""

    def __init__(self) -> None:
        self._last_s = float("-inf")
        self._total_s = 0.0

    def note(self, now_s: float) -> None:
        """Take that it is so now."""
        since_s = now_s - self._last_s
        self._total_s = self._total_s + min(since_s, _LOOK_STANDS_FOR_S) if self.is_recent(now_s) else 0.0
        self._last_s = now_s

    def is_recent(self, now_s: float) -> bool:
        """Whether it was so of late: then it goes on."""
        return now_s - self._last_s <= _FORGOTTEN_S

    def left_s(self, grace_s: float) -> float:
        """Return how much longer it may be so; nothing where it has been for its time of grace."""
        return max(0.0, round(grace_s - self._total_s, 6))


class Over:
    """A limit that is passed: since when, by which processes, and how long containers had unseen ones meanwhile.

    Their time of grace is the container's, not a process's: at each look those that pass the limit may be others.
    """

    def __init__(self) -> None:
        self._began_s: float | None = None  # None: at the last look it was not passed
        self._since_s: dict[int, float] = {}
        self._unseen: dict[str, Spell] = {}  # by container: a process of it is not seen by the library
        self._left_s: float | None = None

    def follow(self, snapshot: Snapshot, each: Sharing, grace_s: float) -> list[Contained]:
        """Take what there is now; return the containers that have had processes unseen for the time of grace."""
        if self._began_s is None:
            self._began_s = snapshot.now_s
        pids = [pid for one in each.containers for pid in snapshot.pids_of(one.id, each.uuid)]
        self._since_s = {pid: self._since_s.get(pid, snapshot.now_s) for pid in pids}
        left_s = {}
        for one in each.containers:
            if snapshot.unseen_of(one, each.uuid):
                spell = self._unseen.setdefault(one.id, Spell())
                spell.note(snapshot.now_s)
                left_s[one.id] = spell.left_s(grace_s)
        self._left_s = min(left_s.values(), default=None)
        return [one for one in each.containers if left_s.get(one.id) == 0]

    def end(self) -> None:
        """Take that the limit is not passed now: only what is not seen is remembered."""
        self._began_s = None
        self._since_s.clear()

    def is_recent(self, now_s: float) -> bool:
        """Whether something of it is to be remembered."""
        return any(each.is_recent(now_s) for each in self._unseen.values())

    def steady_bytes(self, snapshot: Snapshot, each: Sharing, grace_s: float) -> int:
        """Return what is held for good, nothing before the time of grace; of a new process not what a context takes.

        Many processes that each make a context, and are refused it, may together hold much all the time.
        """
        if self._began_s is None or snapshot.now_s < self._began_s + grace_s:
            return 0
        held = snapshot.held[each.uuid]
        return sum(
            held[pid] if snapshot.now_s >= since_s + grace_s else max(0, held[pid] - DRIVER_BYTES)
            for pid, since_s in self._since_s.items()
            if not snapshot.is_ending(pid)
        )

    def next_s(self, now_s: float) -> float | None:
        """Return when the first container with an unseen process is due, or None where there is none."""
        return None if self._left_s is None else now_s + self._left_s


class MemoryDuty(Duty):
    """Acts on containers that hold more than their limit and 5 %. `policy` is off, warn, freeze or kill."""

    name = MEMORY

    def __init__(
        self, memory: dict[str, Any], state: State, policy: str, grace_s: float, counted_grace_s: float
    ) -> None:
        super().__init__(memory)
        self._state = state
        self._policy = policy
        self._grace_s = grace_s
        self._counted_grace_s = counted_grace_s
        self._over: dict[str, Over] = {}
        self._killed: set[str] = set()  # in this look; what they hold is about to go
        self._limits: dict[str, int] = {}
        self._limits_on = Derived(lambda snapshot: list(_limits_on(snapshot)))
        # The GPUs, and whether launches: what is found on one at first was there before this guard.
        self._looked_at: set[tuple[str, bool]] = set()
        self._quiet: object = None  # what a look has found where all were within their limits
        self._recorded = {(each.container, each.run) for each in state.recorded if each.cause == MEMORY}
        # Bytes held when it was acted on, by the guard or an administrator. Up to there it is one cause.
        self._settled: dict[str, int] = memory.setdefault("settled", {})

    def look(self, snapshot: Snapshot) -> Actions:
        """Yield what is to be done about each limit that is passed, and what can be undone."""
        shared = self._limits_on(snapshot)
        seen = (shared, snapshot.held, snapshot.are_listed)
        if seen == self._quiet and not self._state.stopped:
            return
        within = set()
        self._killed.clear()
        for each in shared:
            if self._killed:
                each = each._replace(containers=[one for one in each.containers if one.id not in self._killed])
            held = _held(snapshot, each)
            if held is None:
                continue
            if self._limits.get(each.key) != each.limit_bytes:
                self._follow_limit(snapshot, each, held)
            if held <= each.limit_bytes:
                within.add(each.key)
                self._forget(each.key)
            elif self._policy != "off":
                yield from self._judge(snapshot, each, held)
        yield from self._thawed(snapshot, within)
        keys = {each.key for each in shared}
        self._drop(keys, snapshot)
        kinds = (True, False) if snapshot.are_listed else (True,)
        self._looked_at |= {(uuid, are_launches) for uuid in snapshot.held for are_launches in kinds}
        self._quiet = seen if within == keys else None

    def _follow_limit(self, snapshot: Snapshot, each: Sharing, held: int) -> None:
        """Let the library hold a limit that is lowered below what is in use: it refuses until there is room.

        The same goes for what a guard that starts finds counted; any that comes later has to stay within its limit.
        """
        before = self._limits.get(each.key)
        self._limits[each.key] = each.limit_bytes
        if held <= each.most_bytes:
            return
        is_lowered = before is not None and before > each.limit_bytes and held <= _most(before)
        is_first = (each.uuid, all(one.is_launch for one in each.containers)) not in self._looked_at
        is_found = is_first and not any(snapshot.unseen_of(one, each.uuid) for one in each.containers)
        if is_lowered or is_found:
            self._settle(each.key, max(held, self._settled.get(each.key, 0)))

    def _judge(self, snapshot: Snapshot, each: Sharing, held: int) -> Actions:
        most = max(each.most_bytes, _most(self._settled.get(each.key, 0)))
        if held <= most:
            if each.key in self._over:
                self._over[each.key].end()
            return
        over = self._over.setdefault(each.key, Over())
        offenders = over.follow(snapshot, each, self._grace_s)
        steady_bytes = over.steady_bytes(snapshot, each, self._counted_grace_s)
        is_counted_due = not each.is_oversubscribed and steady_bytes > most + DRIVER_BYTES
        if not offenders and not is_counted_due:
            self.next_s = min(filter(None, (self.next_s, over.next_s(snapshot.now_s))), default=None)
            return
        del self._over[each.key]
        accused = offenders or each.containers
        if {(one.id, one.run) for one in accused} <= self._recorded:  # by the guard whose state is lost
            self._recorded -= {(one.id, one.run) for one in accused}
            self._settle(each.key, held)
            return
        # All members of a slice are seen here, and nobody can say which one is at fault.
        verb = WARN if not offenders and len(each.containers) > 1 else self._policy
        for one in accused:
            stopped = self._state.stopped.get(one.id)
            if one.cgroup.is_frozen() and (stopped is None or stopped.verb == FREEZE):
                continue  # by this duty, or by the engine: it takes no more
            before = self._settled.get(each.key)
            self._settled[each.key] = held
            if not (yield about(one, verb, MEMORY, _words(snapshot, one, each, held), each.uuid)):
                self._settle(each.key, before)
            elif verb == KILL:
                self._killed.add(one.id)

    def _thawed(self, snapshot: Snapshot, within: set[str]) -> Actions:
        for id_, stopped in list(self._state.stopped.items()):
            container = snapshot.containers.get(id_)
            if (stopped.verb, stopped.cause) != (FREEZE, MEMORY) or container is None:
                continue
            limited = {key for key, *_ in _limits_of(container)}
            if limited <= within and not container.is_paused and not is_ending(container.cgroup):
                yield about(container, THAW, MEMORY, "it is within its limits again")

    def _forget(self, key: str) -> None:
        if key in self._over:
            self._over[key].end()
        if key in self._settled:
            self._settle(key, None)

    def _settle(self, key: str, held: int | None) -> None:
        if held is None:
            del self._settled[key]
        else:
            self._settled[key] = held
        self.has_changed = True

    def _drop(self, keys: set[str], snapshot: Snapshot) -> None:
        """Forget what is no more; what NVML did not tell of this time is."""
        self._over = {key: over for key, over in self._over.items() if key in keys or over.is_recent(snapshot.now_s)}
        for key in {*self._limits, *self._settled} - keys:
            uuid = key.rpartition(" ")[2]
            if uuid in snapshot.held and (snapshot.are_listed or is_launch(key.partition(" ")[0])):
                self._limits.pop(key, None)
                self._forget(key)


def _limits_on(snapshot: Snapshot) -> Iterator[Sharing]:
    numbers = {gpu.uuid: gpu.number for gpu in snapshot.gpus}
    shared: dict[str, Sharing] = {}
    members: dict[str, list[Contained]] = {}
    for container in snapshot.containers.values():
        for key, holder, uuid, quota in _limits_of(container):
            limit_bytes = quota.memory_bytes or 0
            if uuid in numbers:
                those = members.setdefault(key, [])
                those.append(container)
                shared[key] = Sharing(
                    key, holder, limit_bytes, _most(limit_bytes), uuid, numbers[uuid], those,
                    quota.virtual_bytes is not None,
                )  # fmt: skip
    yield from sorted(shared.values(), key=lambda each: each.holder != "it")  # first those that pass their own


def _limits_of(container: Contained) -> Iterator[tuple[str, str, str, Quota]]:
    """Yield the memory limits that a container is held to, its own before those around it."""
    own = f"slice {container.slice_name}" if container.slice_name else f"{container.id} {container.run}"
    for name, quotas in {own: container.quotas, **container.around}.items():
        kind = name.partition(" ")[0]
        holder = "it" if kind == container.id else f"its {kind}"
        for uuid, quota in quotas.items():
            if quota.memory_bytes:
                yield f"{name} {uuid}", holder, uuid, quota


def _held(snapshot: Snapshot, each: Sharing) -> int | None:
    """Return what the containers hold, without processes that are about to end; None where NVML does not tell."""
    if each.uuid not in snapshot.held:
        return None
    held = snapshot.held[each.uuid]
    pids = [pid for one in each.containers for pid in snapshot.pids_of(one.id, each.uuid)]
    total = sum([held[pid] for pid in pids])
    if total <= each.most_bytes:  # mostly; else it is worth a look at each
        return total
    return sum(held[pid] for pid in pids if not snapshot.is_ending(pid))


def _most(limit_bytes: int) -> int:
    return limit_bytes + max(int(limit_bytes * SLACK_RATIO), LEAST_SLACK_BYTES) if limit_bytes else 0


def _words(snapshot: Snapshot, container: Contained, each: Sharing, held: int) -> str:
    unseen = snapshot.unseen_of(container, each.uuid)
    why = f", and the library does not see {len(unseen)} of its processes" if unseen else ""
    return f"{each.holder} holds {show_size(held)} of {show_size(each.limit_bytes)} on GPU {each.number}{why}"
