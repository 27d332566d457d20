"""Processes whose work is on the same devices: some end, are killed or stop anywhere, and the others' goes on."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from simulated import Machine, driver, queue, run_a_kernel
from test_build import compile_program


def test_a_killed_program_takes_no_time_slices(machine: Machine) -> None:
    def program() -> None:
        kernel = driver.kernel("spin_100ms")
        print("ready")
        sys.stdin.readline()
        events = queue(kernel, 3)
        driver.synchronize()
        print(driver.event_elapsed_ms(events[0], events[2]))

    survivor = machine.start_python(program)
    assert survivor.stdout.readline() == "ready\n"

    def program() -> None:
        driver.launch(driver.kernel("spin_30s"))
        print("queued")
        sys.stdin.readline()

    process = machine.start_python(program)
    assert process.stdout.readline() == "queued\n"
    process.kill()
    process.wait()
    assert abs(float(survivor.communicate("\n", timeout=60)[0]) - 200) < 0.001


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGSTOP])
def test_a_program_that_ends_or_stops_anywhere_holds_nobody_up(
    machine: Machine, simulated_driver: Path, cuda_includes: list[str], tmp_path: Path, ended_by: signal.Signals
) -> None:
    """A program that launches without a pause changes what the devices do for most of the time."""

    def program() -> None:
        kernel = driver.kernel("spin_1ms")
        print("ready")
        for _ in sys.stdin:
            driver.launch(kernel)
            driver.synchronize()
            print("ran")

    survivor = machine.start_python(program)
    assert survivor.stdout.readline() == "ready\n"
    launch_forever = compile_program("launch_cost.c", simulated_driver, tmp_path / "program", cuda_includes)
    for _ in range(20):
        process = subprocess.Popen([launch_forever, "forever"], env=machine.environment)
        time.sleep(0.05)
        process.send_signal(ended_by)
        survivor.stdin.write("\n")
        survivor.stdin.flush()
        assert select.select([survivor.stdout], [], [], 10)[0], "it hangs"
        assert survivor.stdout.readline() == "ran\n"
        process.kill()
        process.wait()


def test_programs_that_are_stopped_again_and_again_lose_no_time(
    machine: Machine, simulated_driver: Path, cuda_includes: list[str], tmp_path: Path
) -> None:
    """A program that goes on finds that others have been at the devices since, and begins its change anew."""
    machine.configure("context_switch_us: 0\n")

    def program() -> None:
        first, kernel = driver.kernel("spin_3s"), driver.kernel("spin_500us")
        start, end = driver.event(), driver.event()
        driver.event_record(start)
        driver.launch(first)
        print("begun")
        for _ in range(1000):
            driver.launch(kernel)
            time.sleep(0.0005)
        driver.event_record(end)
        driver.event_synchronize(end)
        print(driver.event_elapsed_ms(start, end))

    launch_forever = compile_program("launch_cost.c", simulated_driver, tmp_path / "program", cuda_includes)
    neighbour = subprocess.Popen([launch_forever, "forever"], env=machine.environment)
    try:
        stopped = machine.start_python(program)
        assert stopped.stdout.readline() == "begun\n"
        for _ in range(300):
            for process in (stopped, neighbour):
                process.send_signal(signal.SIGSTOP)
                time.sleep(0.0005)
                process.send_signal(signal.SIGCONT)
        assert float(stopped.stdout.readline()) == pytest.approx(3500, abs=0.5), "what nobody interrupted"
    finally:
        neighbour.kill()
        neighbour.wait()


def test_a_stopped_program_s_work_goes_on(machine: Machine) -> None:
    def program() -> None:
        driver.launch(driver.kernel("spin_50ms"))
        print("queued")
        sys.stdin.readline()
        print(driver.stream_is_done())

    stopped = machine.start_python(program)
    assert stopped.stdout.readline() == "queued\n"
    stopped.send_signal(signal.SIGSTOP)
    assert machine.python(run_a_kernel) == "ran"
    time.sleep(0.1)
    stopped.send_signal(signal.SIGCONT)
    assert stopped.communicate("\n", timeout=60)[0] == "True\n"


def test_an_event_between_two_devices(machine: Machine) -> None:
    def program() -> None:
        first, kernel = driver.primary_context(), driver.kernel("spin_20ms")
        second = driver.context_create(1)
        other = driver.kernel("spin_10ms")
        behind, stream = driver.event(), driver.stream()
        driver.set_current(first)
        start, middle = driver.event(), driver.event()
        driver.event_record(start)
        driver.launch(kernel)
        driver.event_record(middle)
        driver.set_current(second)
        driver.stream_wait_event(stream, middle)
        driver.launch(other, stream)
        driver.event_record(behind, stream)
        assert not driver.stream_is_done(stream)
        time.sleep(0.05)  # nobody looks meanwhile
        assert driver.event_is_done(behind)
        assert driver.event_elapsed_ms(middle, behind) == 10
        assert driver.event_elapsed_ms(start, behind) >= 30

    machine.python(program)


def test_times_outlive_the_queue(machine: Machine) -> None:
    def program() -> None:
        kernel, nothing, pairs = driver.kernel("spin_50ms"), driver.kernel("nothing_0us"), []
        for _ in range(5):
            events = queue(kernel, 2)
            pairs.append(events)
            for _ in range(3000):
                driver.launch(nothing)
        driver.synchronize()
        times_ms = [driver.event_elapsed_ms(*pair) for pair in pairs]
        assert all(abs(time_ms - 50) < 0.001 for time_ms in times_ms), times_ms

    machine.python(program)
