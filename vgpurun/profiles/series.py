"""Values over the time of a run, in a fixed number of equal bins: a long run takes no more memory than a short one."""

from array import array
from dataclasses import dataclass
from functools import cached_property

UNKNOWN = -1.0


@dataclass(frozen=True)
class Axis:
    """The time of a run, in equal bins."""

    begin_ns: int
    end_ns: int
    bins: int

    @cached_property
    def bin_ns(self) -> float:
        """How long a bin is."""
        return max(1, self.end_ns - self.begin_ns) / self.bins

    def index(self, at_ns: int) -> int:
        """Return the bin of an instant. Instants outside of the run belong to its first or last bin."""
        return max(0, min(self.bins - 1, int((at_ns - self.begin_ns) / self.bin_ns)))

    @property
    def duration_s(self) -> float:
        """How long the run was."""
        return (self.end_ns - self.begin_ns) / 1e9


class Amounts:
    """An amount that comes over spans of time, such as time spent or bytes copied: each bin has its part."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis
        self.values = array("d", bytes(8 * axis.bins))
        self.total = 0
        self._begin_ns, self._bin_ns, self._last = axis.begin_ns, axis.bin_ns, axis.bins - 1

    def add(self, start_ns: int, duration_ns: int, amount: int) -> None:
        """Add an amount that came evenly over a span. There may be millions of them."""
        self.total += amount
        begin = start_ns - self._begin_ns  # from here on without the large numbers that instants are
        end = begin + duration_ns
        first, last = int(begin / self._bin_ns), int(end / self._bin_ns)
        if first == last and 0 <= first <= self._last:
            self.values[first] += amount
        else:
            self._spread(begin, end, amount)

    def _spread(self, begin: int, end: int, amount: int) -> None:
        first, last = (max(0, min(self._last, int(at / self._bin_ns))) for at in (begin, end))
        if first == last:
            self.values[first] += amount
            return
        per_ns = amount / (end - begin)
        for i in range(first, last + 1):
            bin_begin = begin if i == first else i * self._bin_ns
            bin_end = end if i == last else (i + 1) * self._bin_ns
            self.values[i] += max(0.0, bin_end - bin_begin) * per_ns

    def parts(self) -> list[float]:
        """Return which part of each bin's time the amounts are, from 0 to 1, where they are nanoseconds."""
        return [min(1.0, value / self.axis.bin_ns) for value in self.values]


class Levels:
    """A value at each instant, such as memory in use: each bin has its highest value, and keeps the last."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis
        self._highest = array("d", [UNKNOWN]) * axis.bins
        self._last = array("d", [UNKNOWN]) * axis.bins
        self._last_at = array("q", bytes(8 * axis.bins))

    def add(self, at_ns: int, value: float) -> None:
        """Add what was seen at an instant, in any order."""
        i = self.axis.index(at_ns)
        self._highest[i] = max(self._highest[i], value)
        if at_ns >= self._last_at[i]:
            self._last_at[i] = at_ns
            self._last[i] = value

    def highest(self) -> list[float | None]:
        """Return the highest value of each bin. A bin in which nothing was seen has the last one before it."""
        return self._carried(self._highest)

    def last(self) -> list[float | None]:
        """Return the last value of each bin, carried on alike."""
        return self._carried(self._last)

    def _carried(self, values: "array[float]") -> list[float | None]:
        carried: list[float | None] = []
        before: float | None = None
        for value, last in zip(values, self._last, strict=True):
            carried.append(before if value == UNKNOWN else value)
            before = before if last == UNKNOWN else last
        return carried


class Counter:
    """A value that only grows, such as GPU time used: each bin has its rate of growth."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis
        self._seen = Levels(axis)
        self._at = Levels(axis)
        self.first: tuple[int, int] | None = None
        self.last: tuple[int, int] | None = None

    def add(self, at_ns: int, value: int) -> None:
        """Add what the counter showed at an instant, in any order."""
        self._seen.add(at_ns, value)
        self._at.add(at_ns, at_ns - self.axis.begin_ns)
        self.first = min(self.first or (at_ns, value), (at_ns, value))
        self.last = max(self.last or (at_ns, value), (at_ns, value))

    def grown(self) -> int:
        """Return by how much it grew between the first and the last look."""
        return max(0, self.last[1] - self.first[1]) if self.first and self.last else 0

    def mean_rate(self) -> float | None:
        """Return its growth per nanosecond between the first and the last look."""
        if not self.first or not self.last or self.last[0] == self.first[0]:
            return None
        return self.grown() / (self.last[0] - self.first[0])

    def rates(self) -> list[float | None]:
        """Return its growth per nanosecond in each bin, between the looks that are nearest to the bin's borders."""
        rates: list[float | None] = [None] * self.axis.bins
        if not self.first:
            return rates
        before_at, before = float(self.first[0] - self.axis.begin_ns), float(self.first[1])
        filled = self.axis.index(self.first[0])
        for i, (at, value) in enumerate(zip(self._at.last(), self._seen.last(), strict=True)):
            if at is None or value is None or at <= before_at:
                continue
            rates[filled : i + 1] = [max(0.0, value - before) / (at - before_at)] * (i + 1 - filled)
            before_at, before, filled = at, value, i + 1
        return rates
