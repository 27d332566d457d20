"""Signals that vgpurun itself gets."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from operator import methodcaller
from pathlib import Path

import pytest

from support.programs import text_of
from vgpurun import cli as command_line
from vgpurun.console.signals import EVERY, AbandonedError, Ending, Interrupted, Signals


def get(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_before_the_command_an_ending_signal_interrupts() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    with pytest.raises(Interrupted) as caught, Signals():
        get(signal.SIGTERM)
    assert caught.value.exit_code == 143
    assert {number: signal.getsignal(number) for number in before} == before


def test_other_signals_do_nothing_before_the_command() -> None:
    with Signals():
        get(signal.SIGUSR1)
        get(signal.SIGWINCH)


def test_a_signal_is_held_back_until_the_step_is_done() -> None:
    done = []

    def step() -> None:
        with Signals() as signals, signals.held():
            get(signal.SIGINT)
            done.append("step")

    with pytest.raises(Interrupted):
        step()
    assert done == ["step"]


def test_a_stop_waits_for_the_step_and_can_be_continued() -> None:
    def program() -> None:
        with Signals() as signals:
            with signals.held():
                get(signal.SIGTSTP)
                print("held", flush=True)
            print("continued", flush=True)

    with subprocess.Popen([sys.executable, "-c", text_of(program)], stdout=subprocess.PIPE, text=True) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        os.kill(process.pid, signal.SIGCONT)
        assert process.communicate(timeout=20)[0] == "held\ncontinued\n"


def test_the_steps_own_error_comes_first() -> None:
    def step() -> None:
        with Signals() as signals, signals.held():
            get(signal.SIGINT)
            raise ValueError("step")

    with pytest.raises(ValueError, match="step"):
        step()


def test_once_the_command_runs_signals_are_its_own() -> None:
    sent: queue.Queue[int] = queue.Queue()
    with Signals() as signals:
        with signals.held():
            get(signal.SIGTERM)
            signals.relay(sent.put)
        get(signal.SIGUSR1)
        assert [sent.get(timeout=60), sent.get(timeout=5)] == [signal.SIGTERM, signal.SIGUSR1]


def test_the_third_of_int_and_term_leaves_the_command() -> None:
    """Docker's command line goes then, too, whenever they come; what the command makes of them is its own."""
    sent: queue.Queue[int] = queue.Queue()
    seen = []

    def steps() -> None:
        with Signals() as signals:
            signals.relay(sent.put)
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
                get(number)
                seen.append(sent.get(timeout=60))
            get(signal.SIGINT)

    with pytest.raises(AbandonedError) as caught:
        steps()
    assert caught.value.exit_code == 1
    assert [*seen, sent.get(timeout=60)] == [signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGINT]


def test_those_that_came_while_it_was_started_count() -> None:
    sent: queue.SimpleQueue[int] = queue.SimpleQueue()

    def steps() -> None:
        with Signals() as signals, signals.held():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
                signal.raise_signal(number)
            signals.relay(sent.put)

    with pytest.raises(AbandonedError):
        steps()
    assert [sent.get(timeout=60) for _ in range(3)] == [signal.SIGTERM, signal.SIGINT, signal.SIGTERM]


def test_a_signal_that_comes_right_before_a_wait_wakes_the_waiting_thread() -> None:
    """Python runs no step of its own between the two calls, and so no handler."""
    waited, woken = os.pipe()
    late = threading.Timer(20, os.write, (woken, b"nobody"))
    late.start()
    with Signals() as signals:
        signals.relay(lambda number: os.write(woken, b"%d" % number))
        calls = (partial(ctypes.CDLL(None)["raise"], signal.SIGUSR1), partial(os.read, waited, 100))
        assert list(map(methodcaller("__call__"), calls)) == [0, b"%d" % signal.SIGUSR1]
    late.cancel()


class DropsErrors:
    """Gets a signal where Python prints what is raised, and goes on."""

    def __del__(self) -> None:
        get(signal.SIGTERM)


def in_ctypes() -> None:
    ctypes.CFUNCTYPE(None)(lambda: get(signal.SIGTERM))()


def in_a_weak_callback() -> None:
    referred = set[int]()
    reference = weakref.ref(referred, lambda _: get(signal.SIGTERM))
    del referred
    assert reference() is None


def in_a_handler_of_errors() -> None:
    with suppress(BaseException):
        get(signal.SIGTERM)


@pytest.mark.parametrize("place", [DropsErrors, in_ctypes, in_a_weak_callback, in_a_handler_of_errors])
def test_a_signal_whose_interrupt_is_dropped_interrupts_again(
    capfd: pytest.CaptureFixture[str], place: Callable[[], object]
) -> None:
    def meet_it() -> None:
        with Signals():
            place()
            time.sleep(20)

    with pytest.raises(Interrupted) as caught:
        meet_it()
    assert caught.value.exit_code == 128 + signal.SIGTERM
    assert capfd.readouterr().err == ""


def test_an_interrupt_that_gets_out_is_not_raised_again() -> None:
    with Signals() as outer:
        with pytest.raises(Interrupted), Signals():
            get(signal.SIGTERM)
        time.sleep(0.1)
    assert not outer._put_off


def test_what_an_interrupt_makes_of_a_call_is_still_the_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Thread.join() is such a call, and os.stat() of older Pythons; both only at a moment that no test can choose."""
    lock = threading.Lock()

    def join(**_: object) -> None:
        try:
            get(signal.SIGINT)
        finally:
            lock.release()  # RuntimeError

    monkeypatch.setattr(command_line.cli, "main", join)
    assert (command_line.main(["ps"]), capsys.readouterr().err) == (128 + signal.SIGINT, "")


def test_an_import_is_done_before_a_signal_interrupts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gets_a_signal.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nis_whole = True\n")
    monkeypatch.syspath_prepend(tmp_path)

    def meet_it() -> None:
        with Signals():
            import_module("gets_a_signal")
            time.sleep(20)

    with pytest.raises(Interrupted):
        meet_it()
    assert sys.modules.pop("gets_a_signal").is_whole


def test_what_waits_for_an_import_comes_at_the_end_at_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gets_a_signal.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Interrupted), Signals():
        import_module("gets_a_signal")
    del sys.modules["gets_a_signal"]


def test_in_the_middle_of_what_is_held_signals_are_let_through() -> None:
    done = []

    def steps() -> None:
        with Signals() as signals, signals.held():
            get(signal.SIGINT)
            done.append("made")
            try:
                with signals.let_through():
                    done.append("never")
            finally:
                get(signal.SIGINT)
                done.append("undone")

    with pytest.raises(Interrupted):
        steps()
    assert done == ["made", "undone"]


def test_the_third_leaves_even_when_none_can_be_sent() -> None:
    never = threading.Event()

    def steps() -> None:
        with Signals() as signals:
            signals.relay(lambda _: never.wait(10))
            try:
                for _ in range(3):
                    get(signal.SIGINT)
            finally:
                never.set()  # else its end is waited for

    with pytest.raises(AbandonedError):
        steps()


def test_only_what_is_to_be_relayed_is() -> None:
    sent: queue.Queue[int] = queue.Queue()

    def relay() -> None:
        with Signals() as signals:
            signals.relay(sent.put, {signal.SIGWINCH})
            get(signal.SIGWINCH)
            assert sent.get(timeout=60) == signal.SIGWINCH
            get(signal.SIGTERM)

    with pytest.raises(Interrupted):
        relay()


@pytest.mark.parametrize("number", sorted({signal.SIGTSTP, signal.SIGPROF, signal.SIGRTMIN, signal.SIGQUIT} & EVERY))
def test_every_signal_can_be_relayed(number: int) -> None:
    sent: queue.Queue[int] = queue.Queue()
    before = signal.getsignal(number)
    with Signals() as signals:
        signals.relay(sent.put)
        get(number)
        assert sent.get(timeout=60) == number
    assert signal.getsignal(number) == before


def test_what_the_caller_ignores_stays_ignored() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals():
            get(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, previous)


HEEDED = "import signal; print([signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGQUIT)] == [0, 0])"


def test_a_program_that_a_test_starts_heeds_signals() -> None:
    assert subprocess.run([sys.executable, "-c", HEEDED], capture_output=True, text=True).stdout == "True\n"


@pytest.mark.exhaustive  # runs all of these once more
def test_these_tests_pass_where_the_parent_ignores_signals() -> None:
    """A shell's job in the background, and nohup's command, ignore signals."""
    options = ("-q", "-p", "no:cacheprovider", "-k", "not parent_ignores")
    command = ("sh", "-c", 'trap "" HUP INT QUIT; exec "$@"', "sh", sys.executable, "-m", "pytest", *options, __file__)
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_a_daemon_that_is_stopped_goes_on_afterwards() -> None:
    def program() -> None:
        with Ending() as ending:
            print("ready", flush=True)
            while not ending.wait(0.1):
                pass

    with subprocess.Popen([sys.executable, "-c", text_of(program)], stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout and daemon.stdout.readline() == "ready\n"
        for _ in range(3):
            daemon.send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            daemon.send_signal(signal.SIGCONT)
            time.sleep(0.2)
            assert daemon.poll() is None
        daemon.terminate()
        assert daemon.wait(30) == 0
