"""A run in short: everything that reports show, of a size that does not depend on how long the run was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vgpurun.profiles.lanes import Lane, Lanes
from vgpurun.profiles.model import ApiTotal, Call, CopyKind, KernelTotal
from vgpurun.profiles.reader import FileProfile
from vgpurun.profiles.series import Amounts, Axis, Counter, Levels

_FINE_BINS = 360
_MEDIUM_BINS = 120
_COARSE_NS = 100_000_000  # a compute limit holds over such times, not over shorter ones
WAIT_BOUNDS_NS = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000)


@dataclass(frozen=True)
class DeviceSummary:
    """The events on one GPU. `share` is None where its use was not measured; limits are the last ones."""

    uuid: str
    peak_bytes: int
    peak_at_ns: int  # since the begin of the run
    memory_limit_bytes: int | None
    sm_limit_percent: int
    share: float | None
    gpu_ns: int  # the profiled processes', measured at their streams: overlaps are counted once
    used_bytes: Sequence[float | None]  # all processes', profiled or not; by bins of Summary.fine
    own_bytes: Sequence[tuple[int, Sequence[float | None]]]  # by process
    memory_limits: Sequence[float | None]
    shares: Sequence[float | None]  # by bins of Summary.coarse
    sm_limits: Sequence[float | None]


@dataclass(frozen=True)
class CopySummary:
    """All recorded copies in one direction."""

    kind: CopyKind
    calls: int
    size_bytes: int
    synchronous_bytes: int
    synchronous_ns: int
    bytes_per_s: Sequence[float]  # by bins of Summary.medium

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second of the synchronous copies."""
        return self.synchronous_bytes / self.synchronous_ns * 1e9 if self.synchronous_ns else None


@dataclass(frozen=True)
class WaitSummary:
    """The waits for the limit. `by_length` has one figure for each of WAIT_BOUNDS_NS, and one for longer."""

    count: int
    total_ns: int
    longest_ns: int
    by_length: Sequence[int]


@dataclass(frozen=True)
class ProcessSummary:
    """A process in short."""

    pid: int
    command: str
    started_ns: int
    ended_ns: int | None
    last_ns: int
    calls: int
    gpu_ns: int
    wait_ns: int
    peak_bytes: int
    dropped: int


@dataclass(frozen=True)
class Summary:
    """A run in short."""

    fine: Axis
    medium: Axis
    coarse: Axis
    processes: Sequence[ProcessSummary]
    devices: Sequence[DeviceSummary]
    apis: Sequence[ApiTotal]  # most time first
    kernels: Sequence[KernelTotal]  # most GPU time first
    copies: Sequence[CopySummary]
    waits: WaitSummary
    lanes: Sequence[Lane]

    @property
    def duration_ns(self) -> int:
        """From the first process's start to the last instant of which anything is known."""
        return self.fine.end_ns - self.fine.begin_ns

    @property
    def launches(self) -> int:
        """Kernel launches of all processes."""
        return sum(kernel.launches for kernel in self.kernels)

    @property
    def unended(self) -> Sequence[ProcessSummary]:
        """The processes that were killed, or still run."""
        return [process for process in self.processes if process.ended_ns is None]


@dataclass
class _Device:
    """A GPU while records are read."""

    fine: Axis
    coarse: Axis
    peak: tuple[int, int] = (0, 0)
    latest: tuple[int, int | None, int] = (0, None, 100)  # instant, limits
    gpu_ns: int = 0
    own: dict[int, Levels] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.used, self.memory_limit = Levels(self.fine), Levels(self.fine)
        self.busy, self.sm_limit = Counter(self.coarse), Levels(self.coarse)
        self.spans = Amounts(self.coarse)

    def summary(self, uuid: str) -> DeviceSummary:
        duration_ns = self.coarse.end_ns - self.coarse.begin_ns
        gpu_ns = min(self.gpu_ns, duration_ns)  # processes may work at the same time
        # Without a limit the container counts only while it shares the GPU.
        is_counted = self.busy.grown() > 0 and (self.latest[2] < 100 or not gpu_ns)
        spans: list[float | None] = [*self.spans.parts()]
        return DeviceSummary(
            uuid,
            peak_bytes=self.peak[0],
            peak_at_ns=max(0, self.peak[1] - self.fine.begin_ns),
            memory_limit_bytes=self.latest[1],
            sm_limit_percent=self.latest[2],
            share=self.busy.mean_rate() if is_counted else gpu_ns / duration_ns if gpu_ns else None,
            gpu_ns=gpu_ns,
            used_bytes=self.used.highest(),
            own_bytes=[(process, levels.highest()) for process, levels in self.own.items()],
            memory_limits=self.memory_limit.last(),
            shares=self.busy.rates() if is_counted else spans if gpu_ns else [],
            sm_limits=self.sm_limit.last(),
        )


@dataclass
class _Copies:
    """Copies of one direction while records are read."""

    moved: Amounts
    calls: int = 0
    size_bytes: int = 0
    synchronous_bytes: int = 0
    synchronous_ns: int = 0

    def add(self, call: Call) -> None:
        self.calls += 1
        self.size_bytes += call.size_bytes
        self.moved.add(call.start_ns, call.duration_ns, call.size_bytes)
        if is_synchronous(call):
            self.synchronous_bytes += call.size_bytes
            self.synchronous_ns += call.duration_ns


class _Reading:
    """Goes through all records once."""

    def __init__(self, begin_ns: int, end_ns: int) -> None:
        self.fine = Axis(begin_ns, end_ns, _FINE_BINS)
        self.medium = Axis(begin_ns, end_ns, _MEDIUM_BINS)
        bins = max(1, min(_MEDIUM_BINS, (end_ns - begin_ns) // _COARSE_NS))
        self.coarse = Axis(begin_ns, end_ns, bins)
        self.devices: dict[str, _Device] = {}
        self.copies: dict[CopyKind, _Copies] = {}
        self.lanes = Lanes(self.fine)
        self.wait_count, self.wait_ns, self.longest_wait_ns = 0, 0, 0
        self.waits_by_length = [0] * (len(WAIT_BOUNDS_NS) + 1)

    def process(self, number: int, profile: FileProfile) -> ProcessSummary:
        devices = [self.devices.setdefault(uuid, _Device(self.fine, self.coarse)) for uuid in profile.devices]
        numbers = [list(self.devices).index(uuid) for uuid in profile.devices]
        self._calls(number, profile)
        gpu_ns = self._spans(number, profile, devices, numbers)
        wait_ns = self._waits(number, profile)
        peak_bytes = self._samples(number, profile, devices)
        return ProcessSummary(
            profile.pid,
            profile.command,
            profile.started_ns,
            profile.ended_ns,
            profile.last_ns,
            calls=sum(total.calls for total in profile.totals),
            gpu_ns=gpu_ns,
            wait_ns=wait_ns,
            peak_bytes=peak_bytes,
            dropped=profile.dropped,
        )

    def _calls(self, number: int, profile: FileProfile) -> None:
        for call in profile.calls():
            if call.kind is None:
                self.lanes.call(number, call)
                continue
            self.lanes.copy(number, call)
            if call.kind not in self.copies:
                self.copies[call.kind] = _Copies(Amounts(self.medium))
            self.copies[call.kind].add(call)

    def _spans(self, number: int, profile: FileProfile, devices: Sequence[_Device], numbers: Sequence[int]) -> int:
        gpu_ns = 0
        for span in profile.spans():
            if span.device < 0:  # which GPU it was is not known
                continue
            gpu_ns += span.own_ns
            devices[span.device].gpu_ns += span.own_ns
            begin_ns = span.start_ns + span.duration_ns - span.own_ns  # before, it waited for others
            devices[span.device].spans.add(begin_ns, span.own_ns, span.own_ns)
            self.lanes.span(number, numbers[span.device], span)
        return gpu_ns

    def _waits(self, number: int, profile: FileProfile) -> int:
        total_ns = 0
        for wait in profile.waits():
            total_ns += wait.duration_ns
            self.wait_count += 1
            self.longest_wait_ns = max(self.longest_wait_ns, wait.duration_ns)
            self.waits_by_length[sum(wait.duration_ns >= bound for bound in WAIT_BOUNDS_NS)] += 1
            self.lanes.wait(number, wait)
        self.wait_ns += total_ns
        return total_ns

    def _samples(self, number: int, profile: FileProfile, devices: Sequence[_Device]) -> int:
        peak_bytes = 0
        for sample in profile.samples():
            if sample.device < 0:
                continue
            device = devices[sample.device]
            peak_bytes = max(peak_bytes, sample.own_bytes)
            device.peak = max(device.peak, (sample.used_bytes, sample.at_ns), key=lambda peak: peak[0])
            if sample.at_ns >= device.latest[0]:
                device.latest = (sample.at_ns, sample.memory_limit_bytes, sample.sm_limit_percent)
            device.used.add(sample.at_ns, sample.used_bytes)
            if number not in device.own:
                device.own[number] = Levels(self.fine)
            device.own[number].add(sample.at_ns, sample.own_bytes)
            if sample.memory_limit_bytes is not None:
                device.memory_limit.add(sample.at_ns, sample.memory_limit_bytes)
            device.busy.add(sample.at_ns, sample.busy_ns)
            device.sm_limit.add(sample.at_ns, sample.sm_limit_percent)
        for device in {id(device): device for device in devices}.values():
            if number in device.own:  # its memory went with it
                device.own[number].add(profile.ended_ns or profile.last_ns, 0)
        return peak_bytes


def summarize(profiles: Sequence[FileProfile]) -> Summary:
    """Read all records of the processes once. Raises ValueError where there are no processes."""
    begin_ns = min(profile.started_ns for profile in profiles)
    end_ns = max(max(profile.last_ns, profile.ended_ns or 0) for profile in profiles)
    reading = _Reading(begin_ns, max(end_ns, begin_ns + 1))
    profiles = sorted(profiles, key=lambda profile: (profile.started_ns, profile.pid))
    processes = [reading.process(number, profile) for number, profile in enumerate(profiles)]
    seconds = reading.medium.bin_ns / 1e9
    return Summary(
        reading.fine,
        reading.medium,
        reading.coarse,
        processes,
        [device.summary(uuid) for uuid, device in reading.devices.items()],
        merged_apis(profiles),
        merged_kernels(profiles),
        [
            CopySummary(
                kind,
                each.calls,
                each.size_bytes,
                each.synchronous_bytes,
                each.synchronous_ns,
                [value / seconds for value in each.moved.values],
            )
            for kind, each in sorted(reading.copies.items(), key=lambda item: item[0].value)
        ],
        WaitSummary(reading.wait_count, reading.wait_ns, reading.longest_wait_ns, reading.waits_by_length),
        reading.lanes.all(),
    )


def is_synchronous(call: Call) -> bool:
    """Whether the call of a copy lasts as long as the copy. Between places of the GPU no call waits for its copy."""
    return "Async" not in call.api and call.kind in (CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST)


def merged_apis(profiles: Iterable[FileProfile]) -> list[ApiTotal]:
    """Return the totals of each function over all processes, most time first."""
    merged: dict[str, ApiTotal] = {}
    for total in (total for profile in profiles for total in profile.totals):
        before = merged.get(total.api, ApiTotal(total.api, 0, 0, 0, 0, 0))
        merged[total.api] = ApiTotal(
            total.api,
            before.calls + total.calls,
            before.failed + total.failed,
            before.size_bytes + total.size_bytes,
            before.duration_ns + total.duration_ns,
            max(before.longest_ns, total.longest_ns),
        )
    used = [total for total in merged.values() if total.calls]
    return sorted(used, key=lambda total: (-total.duration_ns, total.api))


def merged_kernels(profiles: Iterable[FileProfile]) -> list[KernelTotal]:
    """Return the totals of each kernel over all processes, most GPU time first."""
    merged: dict[str, KernelTotal] = {}
    for total in (total for profile in profiles for total in profile.kernels):
        before = merged.get(total.name, KernelTotal(total.name, 0, 0))
        merged[total.name] = KernelTotal(
            total.name,
            before.launches + total.launches,
            before.gpu_ns + total.gpu_ns,
            before.fill_known_ns + total.fill_known_ns,
            before.filled_ns + total.filled_ns,
        )
    return sorted(merged.values(), key=lambda total: (-total.gpu_ns, -total.launches, total.name))
