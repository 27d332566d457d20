"""However a process comes into being or becomes another program: its slot is its own, and nobody keeps another's."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandbox import Sandbox, fill

from cuda_driver import CudaError, Driver
from support import unavailable
from support.programs import text_of
from support.suspension import Host

pytestmark = pytest.mark.slow

LIMIT = {"CUDA_DEVICE_MEMORY_LIMIT_0": "2g"}


def started() -> Driver:
    """Hold some of the limit."""
    d = Driver.started()
    fill(d, 5)
    return d


def fill_the_rest() -> None:
    print(5 + fill(started()))


def hold_what_there_is() -> None:
    try:
        fill_the_rest()
    except CudaError as error:
        print(error.name)
    sys.stdin.readline()


CHILDREN = (
    "fork",
    "fork behind the C library's back",
    "two forks and a session",
    "daemon()",
    "posix_spawn",
    "vfork and exec",
    "fork and exec",
)


def leave_a_child(kind: str) -> None:
    """Leave a process behind that lives on after its parent has ended."""
    libc = ctypes.CDLL(None)
    match kind:
        case "fork":
            if os.fork() == 0:
                outlive()
        case "fork behind the C library's back":
            if libc.syscall(57) == 0:
                outlive()
        case "two forks and a session":
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    outlive()
                os._exit(0)
        case "daemon()":
            if os.fork() == 0:
                libc.daemon(1, 1)
                outlive()
            time.sleep(0.2)
        case "posix_spawn":
            os.posix_spawn("/bin/sleep", ["sleep", "20"], {}, setsigmask=[])
        case "vfork and exec":
            subprocess.Popen(["sleep", "20"], close_fds=False, stdout=subprocess.DEVNULL)
        case "fork and exec":
            if os.fork() == 0:
                os.close(1)
                os.execv("/bin/sleep", ["sleep", "20"])
        case _:
            raise ValueError(kind)


def outlive() -> None:
    os.close(1)
    time.sleep(20)
    os._exit(0)


@pytest.mark.parametrize("kind", CHILDREN)
def test_a_child_does_not_keep_what_its_parent_held(sandbox: Sandbox, kind: str) -> None:
    if "C library" in kind and os.uname().machine != "x86_64":
        unavailable("this machine has no such system call")

    def program() -> None:
        d = started()
        leave_a_child(kind)
        print(fill(d, 1))
        sys.stdout.flush()
        os._exit(0)

    parent = subprocess.Popen(
        [sys.executable, "-c", text_of(program)],
        env=sandbox.variables(**LIMIT),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout.readline() == "1\n", "the parent goes on as before"
    parent.wait()
    assert sandbox.python(fill_the_rest, **LIMIT) == "15"


def test_exec_takes_nothing_along(sandbox: Sandbox) -> None:
    """Neither the slot nor a descriptor of ours."""

    def after() -> None:
        paths = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        links = [os.readlink(path) for path in paths if os.path.exists(path)]
        assert not [link for link in links if "usage" in link or "state" in link], links
        fill_the_rest()

    text = text_of(after)

    def program() -> None:
        fill(started())
        os.execv(sys.executable, [sys.executable, "-c", text])

    assert sandbox.python(program, **LIMIT) == "15"


def test_processes_of_different_pid_namespaces_share_the_limit(sandbox: Sandbox) -> None:
    """Both are process 1 or 2 to themselves: that is no reason to take one for the other."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--pid", "--fork", "true"]).returncode != 0:
        unavailable("only root may make a PID namespace")

    def wait() -> None:
        d = started()
        print(os.getpid(), flush=True)
        sys.stdin.readline()
        print(fill(d), flush=True)
        os._exit(0)

    processes = [
        subprocess.Popen(
            ["unshare", "--pid", "--fork", sys.executable, "-c", text_of(wait)],
            env=sandbox.variables(**LIMIT),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    first, second = processes
    assert first.stdout.readline() == second.stdout.readline() == "1\n"
    assert second.communicate("\n")[0] == "0\n", "2048 - 2 contexts of 518 - 1000"
    assert first.communicate("\n")[0] == "10\n", "the other one has ended"


@pytest.mark.parametrize("children", [0, 40])
def test_a_start_reads_the_slots_of_others_a_few_times(sandbox: Sandbox, children: int) -> None:
    """The reading of them does not depend on how many processes NVML lists beside it."""
    machine = sandbox.folder / "sim.yaml"
    machine.write_text(machine.read_text().replace("8192", "65536"))

    def reads() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(dict(line.split(": ") for line in lines)["syscr"])

    def program() -> None:
        ready, say = os.pipe()
        for _ in range(children):
            if os.fork() == 0:
                Driver().start()
                os.write(say, b".")
                os.read(0, 1)
                os._exit(0)
        for _ in range(children):
            os.read(ready, 1)
        before = reads()
        started()
        print(reads() - before)

    process = sandbox.start_python(program, CUDA_DEVICE_MEMORY_LIMIT="64g")
    assert int(process.stdout.readline()) < 100 + 10 * children
    process.communicate()


def test_more_processes_than_there_is_room_for(sandbox: Sandbox) -> None:
    """1024 have slots: three more, each of which the others cannot see, hold nothing together, and say so."""

    def claim(path: str) -> int:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        for slot in range(1024):
            lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, (1 << 30) + slot, 1, 0)
            try:
                fcntl.fcntl(file, 37, lock)
            except OSError:
                continue
            return slot
        raise AssertionError("all are taken")

    def holders() -> None:
        ready, say = os.pipe()
        children = []
        for _ in range(1024):
            child = os.fork()
            if child == 0:
                os.write(say, struct.pack("i", claim(sys.argv[1])))
                os.read(0, 1)
                os._exit(0)
            children.append(child)
        os.close(say)
        slots = {struct.unpack("i", os.read(ready, 4))[0] for _ in children}
        assert slots == set(range(1024))
        print("all", flush=True)
        sys.stdin.read()

    with subprocess.Popen(
        [sys.executable, "-c", text_of(holders), sandbox.folder / "usage"],
        env=sandbox.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout.readline() == "all\n"
        more = [sandbox.start_python(hold_what_there_is, **LIMIT) for _ in range(3)]
        held = [process.communicate("\n")[0] for process in more]
        holder.communicate()
    assert held == ["CUDA_ERROR_OUT_OF_MEMORY\n"] * 3
    assert sandbox.python(fill_the_rest, **LIMIT) == "15"


def name_uncounted() -> None:
    """Look as the guard does, as often as can be: at NVML's list, then at the usage file, and then who is ending."""
    from vgpurun.guard.processes import is_ending, namespace_of
    from vgpurun.host import gpus
    from vgpurun.host.visible import activate_simulation
    from vgpurun.limits.usage_file import read_counted

    activate_simulation()
    (usage,) = Path(sys.argv[1]).glob("*/run/usage")
    here, seen = namespace_of(os.getpid()), set()
    end_s = time.monotonic() + 8
    with gpus.held_open():
        (gpu, *_) = gpus.list_gpus()
        while time.monotonic() < end_s:
            pids = gpus.read_processes(gpu).keys()
            counted = read_counted(usage)
            seen |= pids
            for pid in pids:
                if (here, pid) not in counted and not is_ending(pid):
                    print("not counted", pid, flush=True)
    print("seen", len(seen))


def test_a_process_counts_before_its_gpu_does(host: Host) -> None:
    """The guard takes one that does not for a program past the library, although it may be there for a moment only."""
    brief = f"{sys.executable} {host.folder}/brief.py"
    (host.folder / "brief.py").write_text(text_of(started))
    in_turn = f"while :; do {brief} & {brief} & wait; done"
    with host.start("local", "--driver", "sim", "--mem", "1g", "--gpus", "device=0", "--", "sh", "-c", in_turn,
                    is_group=True) as local:  # fmt: skip
        try:
            folder = host.folder / "state" / "containers"
            while not list(folder.glob("*/run/usage")):
                time.sleep(0.05)
            watch = [sys.executable, "-c", text_of(name_uncounted), str(folder)]
            environment = {**host.environment, "VGPURUN_DRIVER": "sim"}
            said = subprocess.run(watch, env=environment, capture_output=True, text=True, timeout=60)
        finally:
            os.killpg(local.pid, signal.SIGKILL)
    *uncounted, last = said.stdout.splitlines() or [said.stderr]
    assert last.startswith("seen ") and int(last.split()[1]) > 5, said
    assert uncounted == []
