"""The guard's loop: it looks, asks each duty what is to be done, writes that down, does it, and says so.

A duty is an object that says what is to be done; the loop alone does it. To add one: a subclass of Duty in
run.duties_of(), and a function for each verb of its own in hands.HANDS.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from vgpurun.errors import VgpurunError
from vgpurun.guard.snapshot import Snapshot
from vgpurun.guard.state import State
from vgpurun.inventory.guarded import Action, Done, is_launch

Kept = TypeVar("Kept")
Actions: TypeAlias = Generator[Action, bool, None]


class Duty:
    """Something that the guard sees to. `name` is the key of what it remembers across restarts."""

    name = ""

    def __init__(self, memory: dict[str, Any]) -> None:
        """`memory` is changed in place, and kept on the disk with each action and where `has_changed`."""
        self.memory = memory
        self.has_changed = False
        self.next_s: float | None = None  # of time.monotonic(), by when it wants to look again, if earlier than usual
        self.tick_s: float | None = None  # the same for tick()

    def look(self, snapshot: Snapshot) -> Actions:
        """Yield each thing that is to be done now; what comes back says whether it has been.

        What the duty remembers by then is written down before the action is done.
        """
        raise NotImplementedError

    def tick(self, now_s: float) -> None:
        """Do what needs no snapshot, by `tick_s`."""

    @property
    def hands(self) -> Mapping[str, "Hand"]:
        """Return what is done otherwise with it, by the verb."""
        return {}

    def close(self) -> None:
        """Leave behind nothing that needs a guard that runs."""


# Does what a verb says. Doing it again changes nothing. Raises VgpurunError.
Hand = Callable[[Action], None]


class Guard:
    """Looks again and again. `say` hears of each action, and once of each trouble."""

    def __init__(
        self,
        state: State,
        duties: Sequence[Duty],
        hands: Mapping[str, Hand],
        say: Callable[[str], None],
        tell: Callable[[Done], None],
    ) -> None:
        self._state = state
        self._duties = duties
        self._hands = hands
        self._say = say
        self._tell = tell
        self._troubles: dict[str, str] = {}

    def resume(self) -> None:
        """Do what a guard before this one had written down and not finished; each is in the record once."""
        for number in list(self._state.pending):
            self._carry_out(number, self._state.pending[number])

    def look(self, snapshot: Snapshot) -> None:
        """Let each duty act on what there is now."""
        for duty in self._duties:
            duty.next_s = None
            try:
                self._do_all(duty.look(snapshot))
                if duty.has_changed:
                    self._keep(self._state.write)
                    duty.has_changed = False
                self.note(duty.name, "")
            except Exception as error:  # a mistake in one duty ends neither the others nor in silence
                self.note(duty.name, f"the guard's duty '{duty.name}' failed: {_one_line(error)}")

    def tick(self, now_s: float) -> None:
        """Let duties do what is due."""
        for duty in self._duties:
            if duty.tick_s is not None and now_s >= duty.tick_s:
                try:
                    duty.tick(now_s)
                    self.note(f"{duty.name} in between", "")
                except VgpurunError as error:
                    self.note(f"{duty.name} in between", str(error))

    def next_s(self, at_latest_s: float) -> tuple[float, float]:
        """Return when the next refresh is due, and when the next tick or refresh."""
        refresh_at_s = min([at_latest_s, *(duty.next_s for duty in self._duties if duty.next_s is not None)])
        return refresh_at_s, min([refresh_at_s, *(duty.tick_s for duty in self._duties if duty.tick_s is not None)])

    def close(self) -> None:
        """End: what only a guard that runs can undo is undone."""
        for duty in self._duties:
            try:
                duty.close()
            except (VgpurunError, OSError) as error:
                self._say(f"warning: {error}")

    def _do_all(self, actions: Actions) -> None:
        with suppress(StopIteration):
            action = next(actions)
            while True:
                action = actions.send(self._do(action))

    def _do(self, action: Action) -> bool:
        number = self._keep(lambda: self._state.begin(action))
        return number is not None and self._carry_out(number, action)

    def _keep(self, write: Callable[[], Kept]) -> Kept | None:
        """Write something down. If that fails the action is not done, since it might be done twice."""
        try:
            kept = write()
        except OSError as error:
            self.note("state", f"the guard does nothing, since its state cannot be written: {error.strerror}")
            return None
        self.note("state", "")
        return kept

    def _carry_out(self, number: int, action: Action) -> bool:
        trouble = ""
        try:
            self._hands[action.verb](action)
        except (VgpurunError, OSError) as error:
            trouble = f"{action.verb} {subject(action)}: {error}"
        except KeyError:  # written down by a newer guard
            trouble = f"this guard does not know the verb '{action.verb}'"
        self.note(f"{action.verb} {action.container or action.pid}", trouble)
        done = self._keep(lambda: self._state.end(number, is_done=not trouble))
        if done:
            self._say(f"{action.verb} {subject(action)}: {action.words}")
            self._tell(done)
        return not trouble

    def note(self, source: str, trouble: str) -> None:
        """Say a trouble if it is news."""
        if trouble and self._troubles.get(source) != trouble:
            self._say(f"warning: {trouble}")
        if trouble:
            self._troubles[source] = trouble
        else:
            self._troubles.pop(source, None)


def subject(action: Action) -> str:
    """Describe the target of an action."""
    of_user = f" of {action.user}" if action.user else ""
    if is_launch(action.container):
        return f"{action.name}{of_user}"
    return f"container {action.name}{of_user}" if action.container else f"process {action.pid} ({action.name}){of_user}"


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
