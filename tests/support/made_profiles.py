"""Profiles that no program has recorded: for tests of what is made of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from support import profile_maker
from vgpurun.profiles import layout
from vgpurun.profiles.model import ApiTotal, Call, CopyKind, GateWait, GpuSpan, KernelTotal, Sample

BEGIN_NS = 1_700_000_000_000_000_000
MS = 1_000_000
GIB = 1 << 30
MIB = 1 << 20
UUIDS = ("GPU-5a1e0b52-1f0c-4d3f-9f4b-000000000000", "GPU-5a1e0b52-1f0c-4d3f-9f4b-000000000001")

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x256x64_warpgroupsize2x1x1_execute_segment_k_off_kernel"
ELEMENTWISE = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_"
KERNELS = (
    (GEMM, 0.52),
    (ELEMENTWISE, 0.21),
    ("cudnn_infer_ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", 0.14),
    ("softmax_warp_forward", 0.07),
    ("fused_adam", 0.05),
    ("reduce_kernel", 0.01),
)


@dataclass
class MadeProfile:
    """A process, with lists where a real one reads its file."""

    pid: int = 4242
    command: str = "python train.py"
    started_ns: int = BEGIN_NS
    ended_ns: int | None = None
    last_ns: int = BEGIN_NS
    devices: Sequence[str] = UUIDS[:1]
    totals: list[ApiTotal] = field(default_factory=list)
    kernels: list[KernelTotal] = field(default_factory=list)
    dropped: int = 0
    call_list: list[Call] = field(default_factory=list)
    span_list: list[GpuSpan] = field(default_factory=list)
    wait_list: list[GateWait] = field(default_factory=list)
    sample_list: list[Sample] = field(default_factory=list)

    def calls(self) -> Iterator[Call]:
        return iter(self.call_list)

    def spans(self) -> Iterator[GpuSpan]:
        return iter(self.span_list)

    def waits(self) -> Iterator[GateWait]:
        return iter(self.wait_list)

    def samples(self) -> Iterator[Sample]:
        return iter(self.sample_list)

    def call(self, api: str, at_ns: int, duration_ns: int, size_bytes: int = 0, **more: object) -> int:
        """Add a call, and return when it ended."""
        settings = {"kind": None, "thread": self.pid, "device": 0, "stream": 0, **more}
        self.call_list.append(Call(api, at_ns, duration_ns, size_bytes, **settings))  # type: ignore[arg-type]
        return at_ns + duration_ns

    def total_up(self, failed: dict[str, int] | None = None) -> MadeProfile:
        """Make the totals from the calls."""
        by_api: dict[str, list[Call]] = {}
        for call in self.call_list:
            by_api.setdefault(call.api, []).append(call)
        self.totals = [
            ApiTotal(
                api,
                len(calls),
                (failed or {}).get(api, 0),
                sum(call.size_bytes for call in calls),
                sum(call.duration_ns for call in calls),
                max(call.duration_ns for call in calls),
            )
            for api, calls in by_api.items()
        ]
        return self


def training(
    seconds: float = 8, begin_ns: int = BEGIN_NS, pid: int = 4242, sm_percent: int = 50, seed: int = 1, gpu: int = 0
) -> MadeProfile:
    """A training under `--mem 4g --sm N`: a start, steps of launches, copies and a synchronisation, and an end."""
    chance = random.Random(seed)
    made = MadeProfile(pid=pid, started_ns=begin_ns, devices=UUIDS[gpu : gpu + 1])
    at = made.call("cuInit", begin_ns + 300 * MS, 180 * MS)
    at = made.call("cuDevicePrimaryCtxRetain", at, 220 * MS)
    for _ in range(12):
        at = made.call("cuLibraryLoadData", at + MS, chance.randint(2, 9) * MS)
    own = 520 * MIB
    busy = 0
    end_ns = begin_ns + round(seconds * 1000) * MS
    step = 0
    while at < end_ns - 300 * MS:
        if step < 9:
            size = chance.choice((64, 128, 256, 384)) * MIB
            at = made.call("cuMemAlloc_v2", at + 60_000, 220_000, size)
            own += size
        at = made.call("cuMemcpyHtoDAsync_v2", at + 900_000, 140_000, 19 * MIB, kind=CopyKind.HOST_TO_DEVICE, stream=7)
        gpu_at = at
        for i in range(24):
            at = made.call("cuLaunchKernel", at + 9_000, 5_000 + chance.randint(0, 3000))
            duration = chance.randint(400_000, 1_100_000)
            gpu_at = max(gpu_at, at)
            made.span_list.append(GpuSpan(0, 7 if i % 6 else 8, gpu_at, duration, 1, duration))
            gpu_at += duration
            busy += duration
        at = made.call("cuStreamSynchronize", at + 2000, max(1000, gpu_at - at - 2000))
        at = made.call("cuMemcpyDtoH_v2", at + 3000, 21_000, 256 * 1024, kind=CopyKind.DEVICE_TO_HOST)
        if sm_percent < 100:
            wait = round((gpu_at - made.span_list[-24].start_ns) * (100 / sm_percent - 1) * chance.uniform(0.8, 1.2))
            made.wait_list.append(GateWait(0, at + 5000, wait, pid))
            at = made.call("cuLaunchKernel", at + 4000, wait + 6000)
        made.sample_list.append(Sample(0, at, own + 40 * MIB, own, 4 * GIB, busy, sm_percent))
        step += 1
    at = made.call("cuMemcpyDtoD_v2", at + 3000, 400_000, 600 * MIB, kind=CopyKind.DEVICE_TO_DEVICE)
    made.ended_ns = made.last_ns = max(end_ns, at)
    launches = sum(call.api == "cuLaunchKernel" for call in made.call_list)
    made.kernels = [KernelTotal(name, round(launches * part), round(busy * part)) for name, part in KERNELS]
    return made.total_up()


def out_of_memory() -> MadeProfile:
    """A program that allocates until it is refused, and ends soon after."""
    made = MadeProfile(pid=77, command="python too_large.py --batch 4096")
    at = made.call("cuInit", BEGIN_NS + 20 * MS, 150 * MS)
    own = 500 * MIB
    while own < 2 * GIB - 128 * MIB:
        made.sample_list.append(Sample(0, at, own, own, 2 * GIB, 0, 100))
        at = made.call("cuMemAlloc_v2", at + 12 * MS, 300_000, 128 * MIB)
        own += 128 * MIB
    for _ in range(3):
        at = made.call("cuMemAlloc_v2", at + MS, 90_000, 128 * MIB)
    made.sample_list.append(Sample(0, at, own, own, 2 * GIB, 0, 100))
    made.ended_ns = made.last_ns = at + 30 * MS
    return made.total_up(failed={"cuMemAlloc_v2": 3})


def killed() -> MadeProfile:
    """A training that was killed: no end, and records that were overwritten."""
    made = training(seconds=3, sm_percent=100)
    made.ended_ns, made.dropped = None, 123_456
    return made


def many(count: int = 12) -> list[MadeProfile]:
    """Processes on two GPUs that begin one after the other; the third was killed."""
    made = [training(3, BEGIN_NS + 350 * MS * i, 1000 + i, 30, seed=i, gpu=i % 2) for i in range(count)]
    made[2].ended_ns = None
    for uuid in UUIDS:
        _share_device([each for each in made if each.devices == (uuid,)])
    return made


def _share_device(profiles: list[MadeProfile]) -> None:
    """Let each sample show what all processes together hold and have used."""
    samples = sorted(((sample.at_ns, i) for i, each in enumerate(profiles) for sample in each.sample_list))
    queues = [iter(each.sample_list) for each in profiles]
    own, busy = [0] * len(profiles), [0] * len(profiles)
    shared: list[list[Sample]] = [[] for _ in profiles]
    for at_ns, i in samples:
        sample = next(queues[i])
        own[i], busy[i] = sample.own_bytes, sample.busy_ns
        now = [held for each, held in zip(profiles, own, strict=True) if each.last_ns > at_ns]
        shared[i].append(
            sample._replace(used_bytes=sum(now), memory_limit_bytes=24 * GIB, busy_ns=sum(busy), sm_limit_percent=60)
        )
    for each, those in zip(profiles, shared, strict=True):
        each.sample_list = those


def empty() -> MadeProfile:
    """A program that never called the driver."""
    return MadeProfile(pid=5, command="true", ended_ns=BEGIN_NS + 2 * MS, last_ns=BEGIN_NS + 2 * MS)


def save(profiles: Sequence[MadeProfile], folder: Path) -> Path:
    """Write profiles as the library would; returns the folder."""
    folder.mkdir(exist_ok=True)
    for number, made in enumerate(profiles):
        apis = list(dict.fromkeys([*(total.api for total in made.totals), *(call.api for call in made.call_list)]))
        file = profile_maker.new_file(apis, made.devices)
        header = file.header
        header.pid, header.command, header.started_ns = made.pid, made.command.encode(), made.started_ns
        header.ended_ns, header.dropped, header.clock_offset_ns = made.ended_ns or 0, made.dropped, BEGIN_NS
        for total in made.totals:
            file.totals[0][apis.index(total.api)] = layout.Total(
                total.calls, total.failed, total.size_bytes, total.duration_ns, total.longest_ns
            )
        for kernel in made.kernels:
            profile_maker.add_kernel(file, kernel.name.encode(), kernel.launches, kernel.gpu_ns)
        profile_maker.write(folder / f"{number}-{made.pid}{layout.SUFFIX}", file, _chunks(made, apis))
    return folder


def _chunks(made: MadeProfile, apis: Sequence[str]) -> list[bytes]:
    records = sorted(_records(made, apis), key=lambda each: each[0])
    chunks: list[bytes] = []
    for thread, those in groupby(records, key=lambda each: each[0]):
        packed = [record for _, parts in those for record in parts]
        for first in range(0, len(packed), layout.CHUNK_RECORDS - 1):
            part = packed[first : first + layout.CHUNK_RECORDS - 1]
            chunks.append(profile_maker.chunk(len(chunks) + 1, thread, part))
    return chunks


def _records(made: MadeProfile, apis: Sequence[str]) -> Iterator[tuple[int, list[bytes]]]:
    record = profile_maker.record
    for call in made.call_list:
        copy = layout.NO_COPY if call.kind is None else call.kind.value + 1
        at = call.start_ns - BEGIN_NS
        yield (
            call.thread,
            [
                record(
                    layout.CALL,
                    at,
                    call.duration_ns,
                    call.size_bytes,
                    call.stream,
                    apis.index(call.api),
                    call.device,
                    copy,
                )
            ],
        )
    for span in made.span_list:
        at, value = span.start_ns - BEGIN_NS, span.own_ns << 16 | span.launches
        yield made.pid, [record(layout.SPAN, at, span.duration_ns, value, span.stream, device=span.device)]
    for wait in made.wait_list:
        yield wait.thread, [record(layout.WAIT, wait.start_ns - BEGIN_NS, wait.duration_ns, device=wait.device)]
    for sample in made.sample_list:
        limit = 2**64 - 1 if sample.memory_limit_bytes is None else sample.memory_limit_bytes
        at = sample.at_ns - BEGIN_NS
        yield (
            made.pid,
            [
                record(layout.SAMPLE, at, 0, sample.used_bytes, sample.sm_limit_percent, device=sample.device),
                record(layout.SAMPLE_MORE, sample.own_bytes, limit, sample.busy_ns, device=sample.device),
            ],
        )
