"""The duty that holds containers to their memory limits where the library does not.

What counts is what NVML says that a container's processes hold. The library keeps programs that it sees to their limit,
but the driver takes memory for code and contexts that it can count only afterwards, and lets go of the rest in time: so
a container all of whose processes it counts has longer than one that has a process it does not see.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from vgpurun.guard.daemon import Actions, Duty
from vgpurun.guard.look import Contained, Look
from vgpurun.guard.state import State, about
from vgpurun.inventory.guarded import FREEZE, THAW, WARN
from vgpurun.limits.quota import show_size

MEMORY = "memory"
SLACK_RATIO = 0.05
# What a usage file may lag behind, with stream-ordered allocations, and a step of the driver's: below some 960 MiB this
# is more than 5 %.
LEAST_SLACK_BYTES = 48 << 20


class Sharing(NamedTuple):
    """Containers that share one memory limit of a GPU: one alone, or those of a slice."""

    key: str
    limit_bytes: int
    uuid: str
    number: str
    containers: Sequence[Contained]
    is_oversubscribed: bool


class MemoryDuty(Duty):
    """Acts on containers that hold more than their limit and 5 %. `policy` is off, warn, freeze or kill."""

    name = MEMORY

    def __init__(
        self, memory: dict[str, Any], state: State, policy: str, grace_s: float, counted_grace_s: float
    ) -> None:
        super().__init__(memory)
        self._stopped = state.stopped
        self._policy = policy
        self._grace_s = grace_s
        self._counted_grace_s = counted_grace_s
        self._over_since_s: dict[str, float] = {}
        self._unseen_since_s: dict[str, float] = {}
        self._recorded = {(each.container, each.run) for each in state.recorded if each.cause == MEMORY}
        # What has been acted on, or is an administrator's doing: bytes held then. Up to there it is one cause.
        self._settled: dict[str, int] = memory.setdefault("settled", {})
        self._limits: dict[str, int] = memory.setdefault("limits", {})

    def look(self, look: Look) -> Actions:
        """Yield what is to be done about each limit that is passed, and what can be undone."""
        shared = list(_limits_on(look))
        within = set()
        for each in shared:
            held = _held(look, each)
            if held is None:
                continue
            is_within = held <= each.limit_bytes
            self._follow_limit(each, held)
            if is_within:
                within.add(each.key)
                self._forget(each.key)
            elif self._policy != "off":
                yield from self._judge(look, each, held)
        yield from self._thawed(look, within)
        self._drop({each.key for each in shared}, look)

    def _follow_limit(self, each: Sharing, held: int) -> None:
        """A limit that is lowered below what is in use is the library's to hold: it refuses until there is room."""
        before = self._limits.get(each.key)
        if before == each.limit_bytes:
            return
        self._limits[each.key] = each.limit_bytes
        self.has_changed = True
        if before is not None and before > each.limit_bytes < held <= _most(before):
            self._settled[each.key] = max(held, self._settled.get(each.key, 0))

    def _judge(self, look: Look, each: Sharing, held: int) -> Actions:
        most = max(_most(each.limit_bytes), _most(self._settled.get(each.key, 0)))
        if held <= most:
            self._over_since_s.pop(each.key, None)
            self._unseen_since_s.pop(each.key, None)
            return
        offenders = [one for one in each.containers if look.unseen_of(one, each.uuid)]
        since_s = self._over_since_s.setdefault(each.key, look.now_s)
        if offenders:
            unseen_s = self._unseen_since_s.setdefault(each.key, look.now_s)
            due_s = min(unseen_s + self._grace_s, since_s + self._counted_grace_s)
        else:
            self._unseen_since_s.pop(each.key, None)
            due_s = since_s + self._counted_grace_s
        if each.is_oversubscribed and not offenders:
            return  # NVML may count what lies in host memory
        if look.now_s < due_s:
            self.next_s = min(self.next_s or due_s, due_s)
            return
        if self._recorded and all((one.id, one.run) in self._recorded for one in offenders or each.containers):
            self._recorded -= {(one.id, one.run) for one in offenders or each.containers}
            self._settle(each.key, held)  # by the guard whose state is lost
            return
        # Of a slice whose members are all seen nobody can say which one is at fault.
        verb = WARN if not offenders and len(each.containers) > 1 else self._policy
        for one in offenders or each.containers:
            if one.id in self._stopped and self._stopped[one.id].verb == FREEZE:
                continue
            unseen = look.unseen_of(one, each.uuid)
            before = self._settled.get(each.key)
            self._settled[each.key] = held
            if not (yield about(one, verb, MEMORY, _words(one, each, held, unseen), each.uuid)):
                self._settle(each.key, before)
        self._over_since_s.pop(each.key, None)
        self._unseen_since_s.pop(each.key, None)

    def _thawed(self, look: Look, within: set[str]) -> Actions:
        for id_, stopped in list(self._stopped.items()):
            container = look.containers.get(id_)
            if (stopped.verb, stopped.cause) != (FREEZE, MEMORY) or container is None:
                continue
            limited = {_key(container, uuid) for uuid, quota in container.quotas.items() if quota.memory_bytes}
            if limited <= within:
                yield about(container, THAW, MEMORY, "it is within its limits again")

    def _forget(self, key: str) -> None:
        self._over_since_s.pop(key, None)
        self._unseen_since_s.pop(key, None)
        if key in self._settled:
            self._settle(key, None)

    def _settle(self, key: str, held: int | None) -> None:
        if held is None:
            del self._settled[key]
        else:
            self._settled[key] = held
        self.has_changed = True

    def _drop(self, keys: set[str], look: Look) -> None:
        """Forget what is no more; what NVML did not tell of this time is."""
        for key in {*self._limits, *self._settled} - keys:
            uuid = key.rpartition(" ")[2]
            if uuid in look.held:
                self._limits.pop(key, None)
                self._forget(key)
                self.has_changed = True


def _limits_on(look: Look) -> Iterator[Sharing]:
    shared: dict[tuple[str, str], list[Contained]] = {}
    for container in look.containers.values():
        for uuid, quota in container.quotas.items():
            if quota.memory_bytes:
                shared.setdefault((_key(container, uuid), uuid), []).append(container)
    numbers = {gpu.uuid: gpu.number for gpu in look.gpus}
    for (key, uuid), containers in shared.items():
        quota = containers[0].quotas[uuid]
        if uuid in numbers and quota.memory_bytes:
            yield Sharing(key, quota.memory_bytes, uuid, numbers[uuid], containers, quota.virtual_bytes is not None)


def _key(container: Contained, uuid: str) -> str:
    return f"{f'slice {container.slice_name}' if container.slice_name else f'{container.id} {container.run}'} {uuid}"


def _held(look: Look, each: Sharing) -> int | None:
    """Return what the containers hold, without processes that are about to end; None where NVML does not tell."""
    if each.uuid not in look.held:
        return None
    held = look.held[each.uuid]
    pids = [pid for one in each.containers for pid in look.pids_of(one.id, each.uuid)]
    total = sum(held[pid] for pid in pids)
    if total <= _most(each.limit_bytes):  # mostly; else it is worth a look at each
        return total
    return sum(held[pid] for pid in pids if not look.is_ending(pid))


def _most(limit_bytes: int) -> int:
    return limit_bytes + max(int(limit_bytes * SLACK_RATIO), LEAST_SLACK_BYTES) if limit_bytes else 0


def _words(container: Contained, each: Sharing, held: int, unseen: Sequence[int]) -> str:
    of = "its slice holds" if container.slice_name else "it holds"
    why = f", {len(unseen)} of its processes not seen by the library" if unseen else ""
    return f"{of} {show_size(held)} of {show_size(each.limit_bytes)} on GPU {each.number}{why}"
