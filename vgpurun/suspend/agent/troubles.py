"""The agent's failures: it says each once, and tries again a little later."""

from collections.abc import Callable, Sequence

from vgpurun.errors import VgpurunError
from vgpurun.suspend.targets import Target

_TRY_AGAIN_S = 1.0


class Troubles:
    """The troubles that there are now. `say` hears of each."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._say = say
        self._clock = clock
        self._words: dict[tuple[str, str], str] = {}  # by target, or "", and by what is done
        self._again_s: dict[str, float] = {}

    def keep(self, targets: Sequence[Target]) -> None:
        """Forget the troubles with every target that is not among these."""
        there = {"", *(each.id for each in targets)}
        for key in [each for each in list(self._words) if each[0] not in there]:
            self._words.pop(key, None)  # another thread may have had it
        self._again_s = {id_: at_s for id_, at_s in self._again_s.items() if id_ in there}

    def take(self, act: str, trouble: str, target: Target | None = None) -> None:
        """Take note of a trouble, or by an empty one that there is none any more."""
        key = (target.id if target else "", act)
        if trouble and self._words.get(key) != trouble:
            self._say(f"warning: {trouble}")
        self._words[key] = trouble

    def step(self, act: Callable[..., None], *arguments: object) -> None:
        """Take a step of a look. Raises nothing."""
        self.take(act.__qualname__, trouble_of(act, *arguments))

    def attempt(self, target: Target, act: Callable[[Target], None]) -> None:
        """Do something about a target. Raises nothing; what fails for one that has ended meanwhile is no trouble."""
        trouble = trouble_of(act, target)
        if trouble and not target.limits_folder.exists():
            trouble = ""
        if trouble:
            self.put_off(target, _TRY_AGAIN_S)
        self.take("", trouble and f"{target.name}: {trouble}", target)

    def put_off(self, target: Target, span_s: float) -> None:
        """Leave a target alone for so long."""
        self._again_s[target.id] = self._clock() + span_s

    def may_try(self, target: Target, now_s: float) -> bool:
        """Whether a target is not left alone."""
        return now_s >= self._again_s.get(target.id, 0)

    def has(self, target: Target) -> bool:
        """Whether the last attempt has failed."""
        return bool(self._words.get((target.id, "")))


def trouble_of(act: Callable[..., None], *arguments: object) -> str:
    """Do something; return what went wrong. A mistake about one thing ends neither the others nor in silence."""
    try:
        act(*arguments)
    except (VgpurunError, OSError) as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ""
