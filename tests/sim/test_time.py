"""The timeline: streams, events, launches."""

from __future__ import annotations

from simulated import Machine

# A busy machine may delay the host at any point, which makes a time longer but never shorter: the best of some counts.
TIMED = """
def timed(work):
    start, end = driver.event(), driver.event()
    driver.event_record(start)
    work()
    driver.event_record(end)
    driver.event_synchronize(end)
    return driver.event_elapsed_ms(start, end)
def on_host(work):
    began = time.monotonic()
    work()
    driver.synchronize()
    return (time.monotonic() - began) * 1000
def near(measure, expected, tolerance=0.1):
    seen = []
    while len(seen) < 20:
        seen.append(measure())
        assert seen[-1] >= expected - 0.001, (seen, expected)
        if seen[-1] <= expected + tolerance:
            return
    raise AssertionError((seen, expected))
"""


def test_kernels_take_the_time_of_their_name_or_table(machine: Machine) -> None:
    machine.configure("default_kernel_us: 300\nkernels:\n  - name: matmul\n    duration_us: 2500.5\n")
    code = (
        TIMED
        + """
for name, milliseconds in [("spin_5ms", 5), ("spin_700us", 0.7), ("matmul", 2.5), ("other", 0.3), ("a_0.5ms", 0.5)]:
    kernel = driver.kernel(name)
    near(lambda: timed(lambda: driver.launch(kernel)), milliseconds)
    near(lambda: on_host(lambda: driver.launch(kernel)), milliseconds)
"""
    )
    machine.python(code)


def test_every_way_to_launch(machine: Machine) -> None:
    code = (
        TIMED
        + """
kernel, stream = driver.kernel("spin_2ms"), driver.stream()
near(lambda: timed(lambda: driver.launch(kernel, symbol="cuLaunchKernel")), 2)
near(lambda: timed(lambda: driver.launch_ex(kernel)), 2)
near(lambda: timed(lambda: driver.launch_cooperative(kernel)), 2)
library, function = ctypes.c_void_p(), ctypes.c_void_p()
driver.call("cuLibraryLoadData", byref(library), b"image", None, None, 0, None, None, 0)
driver.call("cuLibraryGetKernel", byref(function), library, b"spin_2ms")
near(lambda: timed(lambda: driver.launch(function.value)), 2)
driver.call("cuLibraryUnload", library)
call = ("cuLaunchKernel", function.value, 1, 1, 1, 1, 1, 1, 0, 0, None, None)
assert driver.result(*call) == "CUDA_ERROR_INVALID_HANDLE"
for sizes in [(0, 1, 1, 1, 1, 1), (1, 1, 1, 1025, 1, 1), (1, 1, 1, 32, 32, 2), (1, 65536, 1, 1, 1, 1)]:
    call = ("cuLaunchKernel", kernel, *sizes, 0, 0, None, None)
    assert driver.result(*call) == "CUDA_ERROR_INVALID_VALUE", call
call = ("cuLaunchCooperativeKernel", kernel, 100000, 1, 1, 1024, 1, 1, 0, 0, None)
assert driver.result(*call) == "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"
assert driver.result("cuLaunchKernel", None, 1, 1, 1, 1, 1, 1, 0, 0, None, None) == "CUDA_ERROR_INVALID_HANDLE"
"""
    )
    machine.python(code)


def test_events(machine: Machine) -> None:
    code = (
        TIMED
        + """
kernel, event = driver.kernel("spin_20ms"), driver.event()
assert driver.event_is_done(event), "an event that was never recorded is done"
untimed, milliseconds = driver.event(EVENT_DISABLE_TIMING), ctypes.c_float()
elapsed = lambda a, b: driver.result("cuEventElapsedTime", byref(milliseconds), a, b)
assert elapsed(event, event) == "CUDA_ERROR_INVALID_HANDLE", "not recorded"
driver.event_record(event); driver.event_record(untimed)
assert elapsed(event, untimed) == "CUDA_ERROR_INVALID_HANDLE"
end = driver.event()
driver.launch(kernel); driver.event_record(end)
assert not driver.event_is_done(end) and driver.event_is_done(event)
assert elapsed(event, end) == "CUDA_ERROR_NOT_READY"
driver.event_synchronize(end)
assert driver.event_is_done(end)
elapsed_ms = driver.event_elapsed_ms(event, end)
assert elapsed_ms >= 20 and driver.event_elapsed_ms(end, event) == -elapsed_ms
ticks = driver.event_elapsed_ms(event, end) / 0.0005
assert abs(ticks - round(ticks)) < 0.01, "half a microsecond is the resolution"
driver.call("cuEventDestroy_v2", end)
assert driver.result("cuEventQuery", end) == "CUDA_ERROR_INVALID_HANDLE"
assert driver.result("cuEventRecord", end, 0) == "CUDA_ERROR_INVALID_HANDLE"
assert driver.result("cuEventElapsedTime", None, event, event) == "CUDA_ERROR_INVALID_VALUE"
"""
    )
    machine.python(code)


def test_the_order_of_streams(machine: Machine) -> None:
    code = (
        TIMED
        + """
kernel = driver.kernel("spin_20ms")
blocking, free = driver.stream(), driver.stream(STREAM_NON_BLOCKING)
driver.launch(kernel, blocking)
legacy_event, free_event = driver.event(), driver.event()
driver.event_record(legacy_event, 0)
driver.event_record(free_event, free)
assert driver.event_is_done(free_event), "a non-blocking stream does not wait"
assert not driver.event_is_done(legacy_event), "the legacy stream waits for blocking streams"
assert driver.stream_is_done(free) and not driver.stream_is_done(blocking) and not driver.stream_is_done(0)
driver.stream_wait_event(free, legacy_event)
assert not driver.stream_is_done(free), "now it waits"
driver.stream_synchronize(free)
assert driver.stream_is_done(blocking)
driver.launch(kernel, 0)
driver.event_record(legacy_event, blocking)
assert not driver.event_is_done(legacy_event), "and blocking streams wait for the legacy stream"
driver.launch(kernel, free)
began = time.monotonic()
driver.stream_destroy(free)
driver.synchronize()
assert time.monotonic() - began > 0.03, "work of a destroyed stream goes on"
assert driver.result("cuStreamSynchronize", free) == "CUDA_ERROR_INVALID_HANDLE"
"""
    )
    machine.python(code)


def test_per_thread_default_streams(machine: Machine) -> None:
    code = """
kernel = driver.kernel("spin_30ms")
ids = []
def work():
    driver.primary_context()
    stream_id = ctypes.c_uint64()
    driver.call("cuStreamGetId_ptsz", None, byref(stream_id))
    ids.append(stream_id.value)
    assert driver.result("cuStreamQuery_ptsz", None) == "CUDA_SUCCESS"
driver.launch(kernel, symbol="cuLaunchKernel_ptsz")
assert driver.result("cuStreamQuery_ptsz", None) == "CUDA_ERROR_NOT_READY"
thread = threading.Thread(target=work)
thread.start(); thread.join()
stream_id = ctypes.c_uint64()
driver.call("cuStreamGetId", None, byref(stream_id))
assert stream_id.value not in ids
assert driver.result("cuStreamQuery", None) == "CUDA_ERROR_NOT_READY", "the legacy stream waits for per-thread ones"
driver.call("cuStreamGetId", ctypes.c_void_p(2), byref(stream_id))
again = ctypes.c_uint64()
driver.call("cuStreamGetId_ptsz", None, byref(again))
assert again.value == stream_id.value, "CU_STREAM_PER_THREAD"
"""
    machine.python(code)


def test_the_launch_queue_is_bounded(machine: Machine) -> None:
    machine.configure("devices:\n  - launch_queue_depth: 4\n")
    code = """
kernel = driver.kernel("spin_200ms")
began = time.monotonic()
for _ in range(4):
    driver.launch(kernel)
assert time.monotonic() - began < 0.19
driver.launch(kernel)
assert 0.199 < time.monotonic() - began < 0.399, "the fifth waits for the first"
"""
    machine.python(code)


def test_launch_overhead(machine: Machine) -> None:
    machine.configure("devices:\n  - launch_overhead_us: 500\n")
    code = """
kernel = driver.kernel("spin_1us")
began = time.monotonic()
for _ in range(20):
    driver.launch(kernel)
print(time.monotonic() - began)
"""
    assert 0.01 <= float(machine.python(code)) < 0.05


def test_a_launch_costs_the_host_little(machine: Machine) -> None:
    code = """
kernel = driver.kernel("nothing_0us")
launch = driver.function("cuLaunchKernel")
best = 1.0
for _ in range(20):
    began = time.perf_counter()
    for _ in range(1000):
        launch(kernel, 1, 1, 1, 1, 1, 1, 0, 0, None, None)
    best = min(best, (time.perf_counter() - began) / 1000)
print(best)
"""
    assert float(machine.python(code)) < 5e-6, "with ctypes, which takes most of it"


def test_synchronous_copies_wait(machine: Machine) -> None:
    machine.configure("kept_data_mib: 0\n")  # the host's own time to move the bytes is not the device's
    code = (
        TIMED
        + """
kernel, address = driver.kernel("spin_20ms"), driver.mem_alloc(48 * MIB)
driver.launch(kernel)
began = time.monotonic()
driver.copy_from_device(address, 4)
assert time.monotonic() - began > 0.018
data = bytes(48 * MIB)
near(lambda: timed(lambda: driver.copy_to_device(address, data)), 2)  # 24 MiB per ms
"""
    )
    machine.python(code)


def test_processes_share_a_device(machine: Machine) -> None:
    code = """
kernel = driver.kernel("spin_5ms")
driver.launch(kernel); driver.synchronize()
print("ready"); sys.stdin.readline()
began, count = time.monotonic(), 0
while time.monotonic() - began < 0.5:
    driver.launch(kernel); driver.synchronize(); count += 1
print(count)
"""
    processes = [machine.start_python(code) for _ in range(2)]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    counts = [int(process.communicate(timeout=30)[0]) for process in processes]
    assert 40 <= sum(counts) <= 102
    assert min(counts) >= 10
