"""Does what --idle says of those that have not used their GPUs for so long: suspend them, warn, or stop them."""

import signal
from collections.abc import Callable, Sequence

from vgpurun.host.gpus import Gpu
from vgpurun.limits.idle import IdlePolicy
from vgpurun.storage import holders, state
from vgpurun.suspend.agent.transitions import Transitions
from vgpurun.suspend.agent.uses import Uses
from vgpurun.suspend.processes import find
from vgpurun.suspend.targets import Target
from vgpurun.util.background import ENGINE_TAKES_S, Background


class Idling:
    """The programs that idle. `say` hears of each once."""

    def __init__(self, gpus: Sequence[Gpu], uses: Uses, transitions: Transitions, say: Callable[[str], None]) -> None:
        self._gpus = gpus
        self._uses = uses
        self._transitions = transitions
        self._say = say
        self._said: set[str] = set()
        self._stops: dict[str, Background[None]] = {}  # under way

    def keep(self, targets: Sequence[Target]) -> None:
        """Forget every target that is not among these."""
        there = {each.id for each in targets}
        self._said &= there
        self._stops = {id_: each for id_, each in self._stops.items() if id_ in there}

    def see_to(self, target: Target, policy: IdlePolicy, now_s: float) -> None:
        """Do what the policy says, if it is time. Raises VgpurunError and OSError; then it is to be tried again."""
        idle_s = self._uses.idle_s(target, now_s)
        if idle_s < policy.after_s:
            self._said.discard(target.id)
            self._stops.pop(target.id, None)
        elif policy.action == "suspend":
            self._transitions.suspend_idle(target, f"idle for {idle_s:.0f} s")
        else:
            if target.id not in self._said:
                self._said.add(target.id)
                self._say(f"{policy.action} {target.name}: idle for {idle_s:.0f} s")
            if policy.action == "stop":
                self._stop(target)

    def _stop(self, target: Target) -> None:
        """Begin to stop it, or ask how that goes."""
        is_new = target.id not in self._stops
        stopping = self._stops.pop(target.id, None) or Background(lambda: stop(target, self._gpus))
        if stopping.has_ended(ENGINE_TAKES_S if is_new else 0):
            stopping.result()
            self._uses.begin_anew(target)  # if it is there still, it was started again
        else:
            self._stops[target.id] = stopping


def stop(target: Target, gpus: Sequence[Gpu]) -> None:
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
