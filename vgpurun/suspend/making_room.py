"""Makes room for a launch: running programs go to other GPUs, one after the other, as by `vgpurun move`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpurun.admission.capacity import GpuCapacity, capacities
from vgpurun.admission.request import Needs, Request, candidates
from vgpurun.errors import OptionError, SuspendError, VgpurunError
from vgpurun.host.checkpoints import Checkpoints
from vgpurun.host.gpus import Gpu, read_use
from vgpurun.inventory.reservations import Holder, all_holders
from vgpurun.limits.model import Limits
from vgpurun.suspend import relocation
from vgpurun.suspend.defragment import Move, Wanted, cheapest
from vgpurun.suspend.moving import check_move
from vgpurun.suspend.resuming import move_over
from vgpurun.suspend.targets import Target
from vgpurun.suspend.transition import Wishes, gpus_of
from vgpurun.util.process_identity import ProcessIdentity

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine


class RoomFor:
    """A launch that is to fit, and the moves after which it does, with the fewest bytes that have to be copied.

    It reserves nothing for the launch.
    """

    def __init__(
        self, mem: str | None, sm: str | None, gpus: str | None, host: Sequence[Gpu], engine: "Engine | None"
    ) -> None:
        """`mem`, `sm` and `gpus` are as for `run`. Raises VgpurunError for what never fits, whatever moves."""
        limits = Limits.read(mem, sm)
        if limits.memory and any(each.most is None for each in limits.memory.values):
            raise OptionError("--mem max is whatever is free; give a size such as 12g or 50%")
        request = Request(limits, gpus)
        chosen = candidates(request, host)
        needs = Needs(request, chosen)
        self.asked = " ".join(
            f"{name} {text}" for name, text in (("--mem", mem), ("--sm", sm), ("--gpus", gpus)) if text
        )
        self._host = host
        self._engine = engine
        self._capacities = capacities(host, read_use(host), all_holders(engine))
        self._wanted = Wanted(
            chosen, {each.gpu.uuid: needs.on(each) for each in self._capacities if each.gpu in chosen.all}
        )

    def moves(self, checkpoints: Checkpoints) -> list[Move]:
        """Return the moves, none where it fits already. Raises SuspendError where none help."""
        may_go = _Movable(self._host, checkpoints)
        moves = cheapest(self._wanted, self._capacities, may_go)
        if moves is None:
            raise SuspendError(
                f"no moves make room for {self.asked}{may_go.why_not()}; ask for less, or wait with run --wait"
            )
        return moves

    def move(self, move: Move, checkpoints: Checkpoints) -> bool:
        """Carry out a move; return whether it was needed: a program that has ended makes room as well.

        Raises VgpurunError.
        """
        target = _target(move.holder)
        try:
            onto = [move.new if gpu == move.old else gpu for gpu in gpus_of(target, self._host)]
            move_over(target, self._host, checkpoints, onto, self._engine, Wishes(by=f"vgpurun defrag {self.asked}"))
        except VgpurunError:
            if (target.limits_folder / "etc" / "limits").exists():
                raise
            return False
        return True

    def gpus_after(self, moves: Sequence[Move]) -> list[Gpu]:
        """Return the GPUs on which the launch fits after these moves."""
        state: dict[str, GpuCapacity] = {each.gpu.uuid: each for each in self._capacities}
        shares = {(share.holder.id, uuid): share for uuid, each in state.items() for share in each.shares}
        for move in moves:
            share = shares[move.holder.id, move.old.uuid]
            state[move.old.uuid] = state[move.old.uuid].without(move.holder.id)
            state[move.new.uuid] = state[move.new.uuid].with_share(share)
        return self._wanted.fitting(state)


class _Movable:
    """Answers whether a share may go to a GPU, as `move` would say; and keeps why not, for people."""

    def __init__(self, gpus: Sequence[Gpu], checkpoints: Checkpoints) -> None:
        self._gpus = gpus
        self._checkpoints = checkpoints
        self._known: dict[tuple[str, str], bool] = {}
        self._processes: dict[str, list[ProcessIdentity]] = {}
        self._reasons: dict[str, str] = {}

    def __call__(self, holder: Holder, onto: Gpu) -> bool:
        key = holder.id, onto.uuid
        if key not in self._known:
            self._known[key] = self._may_go(holder, onto)
        return self._known[key]

    def _may_go(self, holder: Holder, onto: Gpu) -> bool:
        target = _target(holder)
        if holder.id in self._reasons and holder.id not in self._processes:
            return False  # stays, wherever there is room
        try:
            if holder.id not in self._processes:
                self._processes[holder.id] = check_move(target, self._gpus, self._checkpoints, {})
            for old in gpus_of(target, self._gpus):
                relocation.check(target, self._processes[holder.id], self._gpus, {old.uuid: onto.uuid})
        except (VgpurunError, OSError) as error:
            self._reasons[holder.id] = str(error)
            return False
        return True

    def why_not(self) -> str:
        """Return the first reason why something stays, if any."""
        return "".join(f" ({reason})" for reason in list(self._reasons.values())[:1])


def _target(holder: Holder) -> Target:
    return Target(holder.id, holder.name, holder.folder)
