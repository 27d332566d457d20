"""Runs work that waits for the engine or the driver while this thread does something else."""

from collections.abc import Callable
from typing import Generic, TypeVar

from vgpurun.util.threads import Helper

Result = TypeVar("Result")

ENGINE_TAKES_S = 0.2  # mostly, for an answer: a look of a daemon waits no longer for it, and asks the next time


class Background(Generic[Result]):
    """Begins a piece of work in a thread of its own, without effects that would have to be undone."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._results: list[Result] = []
        self._errors: list[Exception] = []
        self._thread = Helper(self._run, (work,))
        self._thread.start()

    def _run(self, work: Callable[[], Result]) -> None:
        try:
            self._results.append(work())
        except Exception as error:  # is raised where the result is asked for
            self._errors.append(error)

    def has_ended(self, timeout_s: float) -> bool:
        """Wait no longer than that; return whether there is a result, or an error."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def result(self) -> Result:
        """Wait for the work, and return what it returned or raise what it raised."""
        self._thread.join()
        for error in self._errors:
            raise error
        return self._results[0]
