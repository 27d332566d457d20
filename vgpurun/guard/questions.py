"""Questions that other users may hold up, by a file on a server that does not answer: the guard waits for none long."""

from collections.abc import Callable, Hashable, Set
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Generic, TypeVar

from vgpurun.util.threads import Helper

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")

_TAKES_S = 0.5  # at most, for an answer


class _Asker(Generic[Answer]):
    """Asks one question after the other in a thread of its own: to start one for each would cost ten times as much."""

    def __init__(self) -> None:
        self._questions: SimpleQueue[tuple[Callable[[], Answer], Future[Answer]] | None] = SimpleQueue()
        self._last: Future[Answer] | None = None
        Helper(self._run).start()

    @property
    def is_held_up(self) -> bool:
        """Whether the last question has no answer yet."""
        return self._last is not None and not self._last.done()

    def ask(self, question: Callable[[], Answer]) -> Future[Answer]:
        """Begin to ask a question."""
        self._last = Future()
        self._questions.put((question, self._last))
        return self._last

    def end(self) -> None:
        """End after the last question."""
        self._questions.put(None)

    def _run(self) -> None:
        while (asked := self._questions.get()) is not None:
            question, answer = asked
            try:
                answer.set_result(question())
            except Exception as error:  # is raised where the answer is asked for
                answer.set_exception(error)


class Questions(Generic[Key, Answer]):
    """Asks in another thread. `note` hears of each question that gets no answer, under `what`, and of its end."""

    def __init__(self, note: Callable[[str, str], None], what: str) -> None:
        self._note = note
        self._what = what
        self._asker: _Asker[Answer] | None = None
        self._asking: dict[Key, Future[Answer]] = {}

    def keep(self, keys: Set[Key]) -> None:
        """Forget all questions but these."""
        self._asking = {key: each for key, each in self._asking.items() if key in keys}

    def ask(self, key: Key, question: Callable[[], Answer], otherwise: Answer, trouble: str) -> Answer:
        """Return the answer, or without one something else, as `trouble` says. Raises what the question raises."""
        asked = self._asking.pop(key, None) or self._begin(question)
        if wait([asked], _TAKES_S / (1 + len(self._asking)) ** 2).done:  # many that hang hold nobody up
            self._note(f"{self._what} {key}", "")
            return asked.result()
        self._asking[key] = asked
        self._note(f"{self._what} {key}", trouble)
        return otherwise

    def _begin(self, question: Callable[[], Answer]) -> Future[Answer]:
        if self._asker and self._asker.is_held_up:
            self._asker.end()
            self._asker = None
        self._asker = self._asker or _Asker()
        return self._asker.ask(question)
