"""The measurements, in pieces that each need one GPU for a while, or several; and how they are spread over the GPUs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from report import Row
from runs import Bench


@dataclass(frozen=True)
class Options:
    """The user's choices: how long each run is, and which programs and limits; all without any."""

    seconds: float
    programs: tuple[str, ...]
    limits: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """A piece of the measurement: its rows belong together, and come one after the other from the same GPUs."""

    table: str
    name: str
    measure: Callable[[Bench], Iterator[Row]]
    gpus: int = 1


@dataclass(frozen=True)
class Failed:
    """A case that could not be measured to its end, and why."""

    case: Case
    reason: str


Result = tuple[Case, Bench, Row]


def run_all(cases: Sequence[Case], bench: Bench) -> Iterator[Result | Failed]:
    """Measure all cases: those of one GPU on all of the bench's at once, then those of several, one after the other."""
    results: queue.SimpleQueue[Result | Failed | None] = queue.SimpleQueue()
    waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
    for case in cases:
        if case.gpus == 1:
            waiting.put(case)

    def work(own: Bench) -> None:
        while not own.programs.stopped:
            try:
                measure(waiting.get_nowait(), own, results.put)
            except queue.Empty:
                break
        results.put(None)

    for gpu in bench.gpus:
        threading.Thread(target=work, args=(replace(bench, gpus=(gpu,)),)).start()
    working = len(bench.gpus)
    while working > 0:
        result = results.get()
        if result is None:
            working -= 1
        else:
            yield result
    for case in (case for case in cases if case.gpus > 1):
        if case.gpus > len(bench.gpus):
            yield Failed(case, f"needs {case.gpus} GPUs; --gpus names {len(bench.gpus)}")
            continue
        measure(case, replace(bench, gpus=bench.gpus[: case.gpus]), results.put)
        while not results.empty():
            if result := results.get():
                yield result


def measure(case: Case, bench: Bench, put: Callable[[Result | Failed], None]) -> None:
    """Measure a case; what goes wrong is a result too, so that the others go on."""
    try:
        for row in case.measure(bench):
            put((case, bench, row))
    except Exception as error:
        put(Failed(case, f"{type(error).__name__}: {error}"))
