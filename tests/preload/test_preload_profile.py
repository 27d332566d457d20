"""The profile of a program tells what the program did, on the simulated driver."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox import UUID, Sandbox

from cuda_driver import STREAM_NON_BLOCKING, Driver, byref, c_size_t, c_uint, c_uint64, c_void_p, in_threads
from support.programs import text_of
from vgpurun.profiles.model import CopyKind
from vgpurun.profiles.reader import profile_files, read_profiles

pytestmark = pytest.mark.slow

MIB = 1 << 20


def known() -> None:
    d = Driver.started()
    first, second, third = (d.mem_alloc(size << 20) for size in (1, 2, 3))
    d.mem_free(third)
    host = ctypes.create_string_buffer(4096)
    stream = d.stream(STREAM_NON_BLOCKING)
    for _ in range(5):
        d.call("cuMemcpyHtoD_v2", c_uint64(first), host, c_size_t(1000))
    for _ in range(4):
        d.call("cuMemcpyDtoH_v2", host, c_uint64(first), c_size_t(500))
    for _ in range(3):
        d.call("cuMemcpyDtoDAsync_v2", c_uint64(first), c_uint64(second), c_size_t(64), c_void_p(stream))
    d.call("cuMemcpy", c_uint64(first), c_uint64(second), c_size_t(7))
    d.call("cuMemsetD32_v2", c_uint64(first), c_uint(0), c_size_t(25))
    assert d.result("cuMemAlloc_v2", byref(c_uint64()), c_size_t(1 << 60)) != "CUDA_SUCCESS"
    a, b = d.kernel("spin_1ms"), d.kernel("spin_50us")
    for _ in range(7):
        d.launch(a)
    for _ in range(11):
        d.launch_ex(b, stream)
    d.synchronize()


@pytest.mark.parametrize("limits", [{}, {"CUDA_DEVICE_MEMORY_LIMIT": "2g", "CUDA_DEVICE_SM_LIMIT": "60"}])
def test_the_counts_of_a_known_program(sandbox: Sandbox, folder: Path, limits: dict[str, str]) -> None:
    profile = sandbox.profile_of(folder, known, **limits)
    totals = {total.api: (total.calls, total.failed, total.size_bytes) for total in profile.totals}
    expected = {
        "cuInit": (1, 0, 0),
        "cuMemAlloc_v2": (4, 1, 6 * MIB),
        "cuMemFree_v2": (1, 0, 0),
        "cuMemcpyHtoD_v2": (5, 0, 5000),
        "cuMemcpyDtoH_v2": (4, 0, 2000),
        "cuMemcpyDtoDAsync_v2": (3, 0, 192),
        "cuMemcpy": (1, 0, 7),
        "cuMemsetD32_v2": (1, 0, 100),
        "cuLaunchKernel": (7, 0, 0),
        "cuLaunchKernelEx": (11, 0, 0),
        "cuStreamCreate": (1, 0, 0),
        "cuCtxSynchronize": (1, 0, 0),
    }
    assert {api: totals.get(api) for api in expected} == expected
    assert {kernel.name: kernel.launches for kernel in profile.kernels} == {"spin_1ms": 7, "spin_50us": 11}
    assert sum(span.launches for span in profile.spans()) == 18


def test_the_records_of_a_known_program(sandbox: Sandbox, folder: Path) -> None:
    profile = sandbox.profile_of(folder, known)
    calls = list(profile.calls())
    assert Counter(call.api for call in calls) == {total.api: total.calls for total in profile.totals}
    copies = Counter((call.kind, call.size_bytes) for call in calls if call.kind is not None)
    assert copies == {
        (CopyKind.HOST_TO_DEVICE, 1000): 5,
        (CopyKind.DEVICE_TO_HOST, 500): 4,
        (CopyKind.DEVICE_TO_DEVICE, 64): 3,
        (CopyKind.BY_POINTERS, 7): 1,
    }
    starts = [call.start_ns for call in calls]
    assert starts == sorted(starts)
    assert profile.started_ns <= starts[0]
    assert profile.ended_ns is not None
    assert starts[-1] + calls[-1].duration_ns <= profile.ended_ns
    assert list(profile.devices) == [UUID]
    assert {call.device for call in calls if call.api.startswith("cuLaunch")} == {0}
    [of_launches] = {call.stream for call in calls if call.api == "cuLaunchKernelEx"}
    assert {span.stream for span in profile.spans()} == {0, of_launches}
    for call_total in profile.totals:
        durations = [call.duration_ns for call in calls if call.api == call_total.api]
        assert (sum(durations), max(durations)) == (call_total.duration_ns, call_total.longest_ns)


def test_the_time_of_kernels(sandbox: Sandbox, folder: Path) -> None:
    """All that was measured is some kernel's."""
    profile = sandbox.profile_of(folder, known)
    gpu_ns = {kernel.name: kernel.gpu_ns for kernel in profile.kernels}
    assert gpu_ns["spin_1ms"] > 0
    assert gpu_ns["spin_50us"] > 0
    assert sum(gpu_ns.values()) == pytest.approx(sum(span.own_ns for span in profile.spans()), abs=1000)


@pytest.mark.parametrize("by", ["cuCtxSynchronize", "cuCtxSynchronize_v2"])
def test_what_was_waited_for_is_over(sandbox: Sandbox, folder: Path, by: str) -> None:
    """The second is cudaDeviceSynchronize, from CUDA 13 on."""

    def program() -> None:
        d = Driver()
        d.init()
        context = d.primary_context()
        kernel = d.kernel("spin_5us")
        for count in (100, 60):
            for _ in range(count):
                d.launch(kernel)
            d.call(by, *([] if by == "cuCtxSynchronize" else [context]))
        time.sleep(1)

    profile = sandbox.profile_of(folder, program)
    waits = [call.start_ns + call.duration_ns for call in profile.calls() if call.api == by]
    spans = list(profile.spans())
    assert len(waits) == 2
    assert sum(span.launches for span in spans) == 160
    assert all(span.start_ns + span.duration_ns <= waits[-1] for span in spans), (waits, spans)


def test_what_nobody_waited_for_does_not_last_until_the_end(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = Driver.started()
        kernel = d.kernel("spin_50us")
        for _ in range(20):
            d.launch(kernel)
        time.sleep(1)

    profile = sandbox.profile_of(folder, program)
    assert sum(span.launches for span in profile.spans()) == 20
    assert sum(span.duration_ns for span in profile.spans()) < 500_000_000


def test_default_streams_are_those_of_the_current_context(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = Driver.started()
        contexts = [d.primary_context(0), d.primary_context(1)]
        kernels = []
        for context in contexts:
            d.set_current(context)
            kernels.append(d.kernel("spin_10us"))
        for _ in range(100):
            for each, times in ((0, 3), (1, 2)):
                d.set_current(contexts[each])
                for _ in range(times):
                    d.launch(kernels[each])
        for context in contexts:
            d.set_current(context)
            d.synchronize()

    profile = sandbox.profile_of(folder, program)
    launches = Counter[str]()
    for span in profile.spans():
        launches[profile.devices[span.device]] += span.launches
    assert sorted(launches.values()) == [200, 300]
    assert launches[UUID] == 300


def test_samples_show_the_memory(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = Driver.started()
        d.mem_alloc(100 << 20)

    last = list(sandbox.profile_of(folder, program, CUDA_DEVICE_MEMORY_LIMIT="2g").samples())[-1]
    assert last.own_bytes == last.used_bytes >= 100 * MIB
    assert (last.memory_limit_bytes, last.sm_limit_percent) == (2 << 30, 100)


def test_without_a_folder_there_is_no_file(sandbox: Sandbox, folder: Path) -> None:
    sandbox.python(known, PFLOG="", CUDA_DEVICE_MEMORY_LIMIT="2g")
    assert list(folder.iterdir()) == []
    assert {path.name for path in sandbox.folder.iterdir()} <= {"sim.yaml", "sim.state", "usage", "profile"}


def test_what_is_only_recorded_is_handed_out_with_a_profile_alone(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        Driver().init()
        library = ctypes.CDLL("libcuda.so.1")

        def address_of(name: str) -> int:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0

        with open("/proc/self/maps") as file:
            maps = [line.split() for line in file if "libvgpu.so" in line]
        spans = [tuple(int(end, 16) for end in row[0].split("-")) for row in maps]
        print([any(a <= address_of(n) < b for a, b in spans) for n in ("cuMemcpyHtoD_v2", "cuMemAlloc_v2")])

    assert sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g") == "[False, True]"
    assert sandbox.python(program, PFLOG=str(folder)) == "[True, True]"


def test_a_profiled_program_sees_its_whole_gpu(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = Driver.started()
        d.mem_alloc(1 << 30)
        print(d.mem_get_info())

    assert sandbox.python(program, PFLOG=str(folder)) == sandbox.python(program)
    assert not (sandbox.folder / "usage").exists()


def test_a_folder_that_cannot_be_used_is_said_once(sandbox: Sandbox, tmp_path: Path) -> None:
    result = sandbox.run([sys.executable, "-c", text_of(known)], PFLOG=str(tmp_path / "missing"))
    assert result.returncode == 0, result.stderr
    assert result.stderr.strip() == (
        f"vgpurun: error: profile folder {tmp_path}/missing: No such file or directory; nothing is recorded"
    )


def test_the_limit_holds_in_a_profiled_program(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = Driver.started()
        k = d.kernel("spin_1ms")
        print(d.result("cuMemAlloc_v2", byref(c_uint64()), c_size_t(2 << 30)))
        begin = time.monotonic()
        for _ in range(400):
            d.launch(k)
        d.synchronize()
        print(time.monotonic() - begin > 1)

    limits = {"CUDA_DEVICE_MEMORY_LIMIT": "1g", "CUDA_DEVICE_SM_LIMIT": "30"}
    assert sandbox.python(program, PFLOG=str(folder), **limits).split() == ["CUDA_ERROR_OUT_OF_MEMORY", "True"]
    [profile] = read_profiles(folder)
    assert sum(wait.duration_ns for wait in profile.waits()) > 0
    assert {sample.sm_limit_percent for sample in profile.samples()} == {30}


def test_how_much_of_the_gpu_launches_fill(sandbox: Sandbox, folder: Path) -> None:
    """By the driver's own answer for the blocks of each: 132 multiprocessors have room for 2048 threads each."""

    def program() -> None:
        d = Driver.started()
        many, few, both, bare = (d.kernel(f"spin_{length}") for length in ("1ms", "2ms", "3ms", "4ms"))
        for _ in range(3):
            d.launch(many, grid=(132 * 16, 1, 1), block=(256, 1, 1))
            d.launch(few, grid=(11, 3, 1), block=(16, 16, 2))  # 33 blocks of 512, where 528 have room
        d.launch(both, grid=(132, 1, 1), block=(1024, 1, 1))
        d.launch(both, grid=(132, 1, 1), block=(512, 1, 1))
        d.launch_ex(bare)
        d.synchronize()

    profile = sandbox.profile_of(folder, program)
    kernels = {kernel.name: kernel for kernel in profile.kernels}
    assert all(kernel.fill_known_ns == kernel.gpu_ns > 0 for kernel in kernels.values())
    fills = {name: kernel.filled_ns / kernel.fill_known_ns for name, kernel in kernels.items()}
    assert 1 / 4 < fills.pop("spin_3ms") < 1 / 2, "both, each by its time"
    assert fills == pytest.approx({"spin_1ms": 1, "spin_2ms": 1 / 16, "spin_4ms": 1 / (132 * 32)}, abs=1 / 65536)


def test_captures_and_graphs(sandbox: Sandbox, folder: Path) -> None:
    """Captured work does not run; the work of graphs counts as graphs."""

    def program() -> None:
        d = Driver.started()
        k, stream = d.kernel("spin_50us"), d.stream(STREAM_NON_BLOCKING)
        with d.capture(stream) as graphs:
            for _ in range(20):
                d.launch(k, stream)
        executable = d.graph_instantiate(graphs[0])
        for _ in range(3):
            d.graph_launch(executable, stream)
        d.synchronize()

    profile = sandbox.profile_of(folder, program)
    calls = {total.api: total.calls for total in profile.totals}
    assert (calls["cuLaunchKernel"], calls["cuGraphLaunch"]) == (20, 3)
    [graphs] = profile.kernels
    assert (graphs.name, graphs.launches) == ("(graphs)", 3)
    assert graphs.gpu_ns > 0 and graphs.fill_known_ns == 0


def test_threads_have_records_and_totals_of_their_own(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = Driver.started()
        context = d.primary_context()

        def work() -> None:
            d.set_current(context)
            for _ in range(100):
                d.mem_free(d.mem_alloc(4096))

        for _ in range(4):  # more threads than there are slots for, one after the other
            in_threads(work for _ in range(12))

    profile = sandbox.profile_of(folder, program)
    calls = {total.api: total.calls for total in profile.totals}
    assert calls["cuMemAlloc_v2"] == calls["cuMemFree_v2"] == 4 * 12 * 100
    recorded = Counter(call.api for call in profile.calls())
    assert recorded["cuMemAlloc_v2"] == 4800
    assert profile.dropped == 0


def test_the_oldest_records_go_when_the_file_is_full(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = Driver.started()
        event, query = d.event(), d.function("cuEventQuery")
        for _ in range(100_000):
            query(c_void_p(event))
        d.mem_alloc(4096)

    profile = sandbox.profile_of(folder, program, VGPURUN_PROFILE_SIZE="4m")
    assert profile.path.stat().st_size <= 4 * MIB
    assert {total.api: total.calls for total in profile.totals}["cuEventQuery"] == 100_000
    calls = list(profile.calls())
    others = 2 * len(list(profile.samples())) + len(list(profile.spans())) + len(list(profile.waits()))
    assert len(calls) + others + profile.dropped >= 100_000
    assert calls[-1].api == "cuMemAlloc_v2"
    assert calls[0].api == "cuEventQuery"


def test_a_forked_child_that_uses_the_gpu_has_a_file_of_its_own(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        if os.fork() == 0:
            d = Driver.started()
            d.mem_alloc(4096)
            sys.exit()
        os.wait()
        d = Driver.started()
        d.mem_alloc(4096)
        d.mem_alloc(4096)
        if os.fork() == 0:
            sys.exit()
        os.wait()
        d.mem_alloc(4096)

    sandbox.python(program, PFLOG=str(folder))
    allocations = [{total.api: total.calls for total in each.totals}["cuMemAlloc_v2"] for each in read_profiles(folder)]
    assert allocations == [1, 3]


def test_processes_at_once_of_which_one_is_killed(sandbox: Sandbox, folder: Path) -> None:
    """Until it was killed it told the number of its calls: what it had told is in its file."""

    def program() -> None:
        d = Driver.started()
        for i in range(100_000 if sys.stdin.readline() == "long\n" else 200):
            d.mem_free(d.mem_alloc(4096))
            print(i + 1)

    processes = [sandbox.start_python(program, PFLOG=str(folder)) for _ in range(8)]
    for index, process in enumerate(processes):
        process.stdin.write("long\n" if index == 0 else "short\n")
        process.stdin.flush()
    killed, *others = processes
    told = [killed.stdout.readline() for _ in range(500)][-1]
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait(timeout=60)
    for process in others:
        process.communicate(timeout=60)
    profiles = {profile.pid: profile for profile in read_profiles(folder)}
    assert len(profiles) == len(profile_files(folder)) == 8
    for process in others:
        profile = profiles[process.pid]
        assert Counter(call.api for call in profile.calls())["cuMemAlloc_v2"] == 200
        assert profile.ended_ns is not None
    profile = profiles[killed.pid]
    assert profile.ended_ns is None
    assert Counter(call.api for call in profile.calls())["cuMemAlloc_v2"] >= int(told) == 500


def test_a_file_can_be_read_while_it_is_written(sandbox: Sandbox, folder: Path) -> None:
    """Chunks are overwritten all the time: a record is whole, or is not there."""

    def program() -> None:
        d = Driver.started()
        query, event = d.function("cuEventQuery"), c_void_p(d.event())
        query(event)  # its total is there before the first read
        print("ready")
        while not select.select([sys.stdin], [], [], 0)[0]:
            for _ in range(1000):
                query(event)

    process = sandbox.start_python(program, PFLOG=str(folder), VGPURUN_PROFILE_SIZE="4m")
    assert process.stdout.readline() == "ready\n"
    dropped, reads = 0, 0
    while (dropped == 0 or reads < 5) and process.poll() is None:
        [profile] = read_profiles(folder)
        assert {call.api for call in profile.calls()} <= {total.api for total in profile.totals}
        assert all(profile.started_ns <= call.start_ns <= profile.last_ns + 10**10 for call in profile.calls())
        dropped, reads = profile.dropped, reads + 1
    process.communicate("", timeout=60)
    assert process.returncode == 0
    assert dropped > 0


def test_a_full_disk_ends_the_growth_and_nothing_else(sandbox: Sandbox, folder: Path) -> None:
    def program() -> None:
        d = Driver.started()
        event, query = d.event(), d.function("cuEventQuery")
        for _ in range(60_000):
            query(c_void_p(event))

    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("may not mount a file system of a bounded size")
    try:
        result = sandbox.run([sys.executable, "-c", text_of(program)], PFLOG=str(folder))
        assert result.returncode == 0, result.stderr
        assert result.stderr.count("No space left on device; it cannot grow") == 1
        [profile] = read_profiles(folder)
        assert {total.api: total.calls for total in profile.totals}["cuEventQuery"] == 60_000
        assert profile.dropped > 0
        assert len(list(profile.calls())) > 10_000
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_program_that_is_linked_with_the_driver(
    sandbox: Sandbox, folder: Path, compile_c: Callable[..., Path]
) -> None:
    """The program calls the exported functions, without a lookup."""
    source = folder.parent / "copies.c"
    source.write_text(
        "#include <cuda.h>\n"
        "int main(void) { CUcontext c; CUdeviceptr p; char b[64]; cuInit(0); cuDevicePrimaryCtxRetain(&c, 0);\n"
        "  cuCtxSetCurrent(c); cuMemAlloc(&p, 64); cuMemcpyHtoD(p, b, 64); return cuMemcpyDtoH(b, p, 32); }\n"
    )
    libraries = sandbox.environment["LD_LIBRARY_PATH"]
    program = compile_c(str(source), f"-L{libraries}", "-l:libcuda.so.1")
    assert sandbox.run([program]).returncode == 0
    assert sandbox.run([program], PFLOG=str(folder)).returncode == 0
    [profile] = read_profiles(folder)
    sizes = {total.api: total.size_bytes for total in profile.totals if total.size_bytes}
    assert sizes == {"cuMemAlloc_v2": 64, "cuMemcpyHtoD_v2": 64, "cuMemcpyDtoH_v2": 32}
