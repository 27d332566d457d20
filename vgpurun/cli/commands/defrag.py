"""`vgpurun defrag`: running programs make room for a launch by going to other GPUs."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from vgpurun.cli.common import EngineCommand, GpuNames, host_driver_option, option
from vgpurun.cli.placing import engine_if_any
from vgpurun.console.messages import say
from vgpurun.console.signals import Signals
from vgpurun.errors import OptionError, SuspendError, VgpurunError
from vgpurun.host.gpu_names import GPUS_HELP
from vgpurun.host.visible import libcuda, visible_gpus
from vgpurun.limits.quota import show_size
from vgpurun.util.threads import ENDING

if TYPE_CHECKING:
    from vgpurun.admission.capacity import GpuCapacity
    from vgpurun.host.checkpoints import Checkpoints
    from vgpurun.host.gpus import Gpu
    from vgpurun.inventory.reservations import Holder
    from vgpurun.suspend.defragment import Move, Wanted
    from vgpurun.suspend.processes import Process
    from vgpurun.suspend.targets import Target

_GROUP = "Launch"


@click.command(cls=EngineCommand, name="defrag", options_metavar="[OPTIONS]")
@option("--mem", metavar="SIZE", group=_GROUP, help="The memory limit of the launch that is to fit, as for run.")
@option("--sm", metavar="PERCENT", group=_GROUP, help="Its compute limit.")
@option("--gpus", metavar="GPUS", type=GpuNames(), group=_GROUP, help=f"Its GPUs: {GPUS_HELP.removeprefix('use ')}.")
@option("--dry-run", is_flag=True, group="Moves", help="Print the moves, and do nothing.")
@option(
    "--format", "output_format", type=click.Choice(["text", "json"]), default="text", show_default=True,
    group="Moves", help="How to print them.",
)  # fmt: skip
@host_driver_option("Moves")
def defrag(mem: str | None, sm: str | None, gpus: str | None, dry_run: bool, output_format: str, driver: str) -> None:
    """Move what runs to other GPUs so that a launch fits, with the fewest bytes that have to be copied.

    What may be moved is moved as by vgpurun move, one after the other. It reserves nothing for the launch.
    """
    from vgpurun.host.checkpoints import Checkpoints
    from vgpurun.suspend.coming_back import move_over
    from vgpurun.suspend.defragment import cheapest
    from vgpurun.suspend.transition import Wishes, gpus_of

    if mem is None and sm is None:
        raise OptionError("say what is to fit: --mem, --sm or both")
    click.get_current_context().ensure_object(Signals).take(ENDING)  # a move that is ended is undone
    found, library = visible_gpus(driver == "sim"), libcuda(driver == "sim")
    engine = engine_if_any()
    asked = " ".join(f"{name} {text}" for name, text in (("--mem", mem), ("--sm", sm), ("--gpus", gpus)) if text)
    wanted, capacities = _look(mem, sm, gpus, found, engine)
    with Checkpoints(library) as checkpoints:
        may_go = _Movable(found, checkpoints)
        moves = cheapest(wanted, capacities, may_go)
        if moves is None:
            raise SuspendError(
                f"no moves make room for {asked}{may_go.why_not()}; ask for less, or wait with run --wait"
            )
        if output_format == "json":
            click.echo(json.dumps(_to_json(moves)))
        for move in moves:
            line = f"{move.holder.name}: GPU {move.old.number} -> GPU {move.new.number}"
            if not dry_run:
                wishes, target = Wishes(by=f"vgpurun defrag {asked}"), _target(move.holder)
                try:
                    onto = [move.new if gpu == move.old else gpu for gpu in gpus_of(target, found)]
                    move_over(target, found, checkpoints, onto, engine, wishes)
                except VgpurunError:
                    if (target.limits_folder / "etc" / "limits").exists():
                        raise
                    say(f"{target.name} has ended, and so makes room as well")
                    continue
            if output_format == "text":
                click.echo(f"{line}, {show_size(move.held_bytes)}{'' if dry_run else ' moved'}")
    _say_where(wanted, capacities, moves, dry_run, asked)


def _look(
    mem: str | None, sm: str | None, gpus: str | None, found: "Sequence[Gpu]", engine: Any
) -> "tuple[Wanted, list[GpuCapacity]]":
    """Return what is wanted, and what each GPU has. Raises VgpurunError for what never fits, whatever moves."""
    from vgpurun.admission.capacity import capacities
    from vgpurun.admission.request import Needs, Request, candidates
    from vgpurun.host.gpus import read_use
    from vgpurun.inventory.reservations import all_holders
    from vgpurun.limits.model import Limits, check_limits, is_max
    from vgpurun.suspend.defragment import Wanted

    limits = Limits(mem, sm)
    check_limits(limits)
    if mem is not None and is_max(mem):
        raise OptionError("--mem max is whatever is free; give a size such as 12g or 50%")
    request = Request(limits, gpus)
    chosen = candidates(request, found)
    now = capacities(found, read_use(found), all_holders(engine))
    needs = Needs(request, chosen)
    return Wanted(chosen, {each.gpu.uuid: needs.on(each) for each in now if each.gpu in chosen.all}), now


class _Movable:
    """Answers whether a share may go to a GPU, as `move` would say; and keeps why not, for people."""

    def __init__(self, gpus: "Sequence[Gpu]", checkpoints: "Checkpoints") -> None:
        self._gpus = gpus
        self._checkpoints = checkpoints
        self._known: dict[tuple[str, str], bool] = {}
        self._processes: dict[str, list[Process]] = {}
        self._reasons: dict[str, str] = {}

    def __call__(self, holder: "Holder", onto: "Gpu") -> bool:
        key = holder.id, onto.uuid
        if key not in self._known:
            self._known[key] = self._look(holder, onto)
        return self._known[key]

    def _look(self, holder: "Holder", onto: "Gpu") -> bool:
        from vgpurun.suspend import relocation
        from vgpurun.suspend.moving import check_move
        from vgpurun.suspend.transition import gpus_of

        target = _target(holder)
        if holder.id in self._reasons and holder.id not in self._processes:
            return False  # it stays, wherever there is room
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


def _target(holder: "Holder") -> "Target":
    from vgpurun.suspend.targets import Target

    return Target(holder.id, holder.name, holder.folder)


def _say_where(
    wanted: "Wanted", capacities: "Sequence[GpuCapacity]", moves: "Sequence[Move]", dry_run: bool, asked: str
) -> None:
    state = {each.gpu.uuid: each for each in capacities}
    shares = {(share.holder.id, uuid): share for uuid, each in state.items() for share in each.shares}
    for move in moves:
        share = shares[move.holder.id, move.old.uuid]
        state[move.old.uuid] = state[move.old.uuid].without(move.holder.id)
        state[move.new.uuid] = state[move.new.uuid].with_share(share)
    numbers = ",".join(gpu.number for gpu in wanted.fitting(state))
    say(f"{asked} {'would fit' if dry_run and moves else 'fits'} on GPU {numbers}{'' if moves else ' as it is'}")


def _to_json(moves: "Sequence[Move]") -> Mapping[str, Any]:
    return {
        "moves": [
            {
                "id": each.holder.id,
                "name": each.holder.name,
                "from_gpu": each.old.number,
                "from_uuid": each.old.uuid,
                "to_gpu": each.new.number,
                "to_uuid": each.new.uuid,
                "memory_bytes": each.held_bytes,
            }
            for each in moves
        ],
        "memory_bytes": sum(each.held_bytes for each in moves),
    }
