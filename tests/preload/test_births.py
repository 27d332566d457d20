"""However a process comes into being or becomes another program: its slot is its own, and nobody keeps another's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from sandbox import Sandbox

from support import unavailable

pytestmark = pytest.mark.slow

LIMIT = {"CUDA_DEVICE_MEMORY_LIMIT_0": "2g"}
HOLD = """
import ctypes, os, subprocess, sys, time
from cuda_driver import *
d = Driver(); d.start()
def fill(most=99):
    for count in range(most):
        try: d.mem_alloc(100 << 20)
        except CudaError: return count
    return most
fill(5)
libc = ctypes.CDLL(None)
"""
# Each leaves a process behind that lives on after its parent has ended.
CHILDREN = {
    "fork": "if os.fork() == 0: outlive()",
    "fork behind the C library's back": "if libc.syscall(57) == 0: outlive()",
    "two forks and a session": "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: outlive()\n    os._exit(0)",
    "daemon()": "if os.fork() == 0:\n    libc.daemon(1, 1); outlive()\ntime.sleep(0.2)",
    "posix_spawn": "os.posix_spawn('/bin/sleep', ['sleep', '20'], {}, setsigmask=[])",
    "vfork and exec": "subprocess.Popen(['sleep', '20'], close_fds=False, stdout=subprocess.DEVNULL)",
    "fork and exec": "if os.fork() == 0:\n    os.close(1); os.execv('/bin/sleep', ['sleep', '20'])",
}
OUTLIVE = """
def outlive():
    os.close(1)
    time.sleep(20)
    os._exit(0)
"""


@pytest.mark.parametrize("kind", CHILDREN)
def test_a_child_does_not_keep_what_its_parent_held(sandbox: Sandbox, kind: str) -> None:
    if "C library" in kind and os.uname().machine != "x86_64":
        unavailable("this machine has no such system call")
    code = HOLD + OUTLIVE + CHILDREN[kind] + "\nprint(fill(1)); sys.stdout.flush(); os._exit(0)"
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        env=sandbox.variables(**LIMIT),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "1\n", "the parent goes on as before"
    parent.wait()
    assert sandbox.python(HOLD + "print(5 + fill())", **LIMIT) == "15"


def test_exec_takes_nothing_along(sandbox: Sandbox) -> None:
    """Neither the slot nor a descriptor of ours."""
    after = (
        "import os\n"
        "paths = [f'/proc/self/fd/{number}' for number in os.listdir('/proc/self/fd')]\n"
        "links = [os.readlink(path) for path in paths if os.path.exists(path)]\n"
        "assert not [link for link in links if 'usage' in link or 'state' in link], links\n"
        + HOLD
        + "print(5 + fill())"
    )
    code = HOLD + f"fill()\nos.execv({sys.executable!r}, [{sys.executable!r}, '-c', {after!r}])"
    assert sandbox.python(code, **LIMIT) == "15"


def test_processes_of_different_pid_namespaces_share_the_limit(sandbox: Sandbox) -> None:
    """Both are process 1 or 2 to themselves: that is no reason to take one for the other."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--pid", "--fork", "true"]).returncode != 0:
        unavailable("only root may make a PID namespace")
    wait = HOLD + "print(os.getpid(), flush=True); sys.stdin.readline(); print(fill(), flush=True); os._exit(0)"
    processes = [
        subprocess.Popen(
            ["unshare", "--pid", "--fork", sys.executable, "-c", wait],
            env=sandbox.variables(**LIMIT),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    first, second = processes
    assert first.stdout is not None
    assert second.stdout is not None
    assert first.stdout.readline() == second.stdout.readline() == "1\n"
    assert second.communicate("\n")[0] == "0\n", "2048 - 2 contexts of 518 - 1000"
    assert first.communicate("\n")[0] == "10\n", "the other one has ended"


def test_more_processes_than_there_is_room_for(sandbox: Sandbox) -> None:
    """1024 have slots; one more sees them all, keeps to what is left, and says that it is not seen itself."""
    holders = (
        "import fcntl, os, struct, sys\n"
        "def claim(path):\n"
        "    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)\n"
        "    for slot in range(1024):\n"
        "        lock = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, (1 << 30) + slot, 1, 0)\n"
        "        try: fcntl.fcntl(file, 37, lock)\n"
        "        except OSError: continue\n"
        "        return slot\n"
        "ready, say = os.pipe()\n"
        "children = []\n"
        "for _ in range(1024):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        os.write(say, struct.pack('i', claim(sys.argv[1])))\n"
        "        os.read(0, 1); os._exit(0)\n"
        "    children.append(child)\n"
        "os.close(say)\n"
        "slots = {struct.unpack('i', os.read(ready, 4))[0] for _ in children}\n"
        "assert slots == set(range(1024))\n"
        "print('all', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holders, sandbox.folder / "usage"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "all\n"
        result = sandbox.run([sys.executable, "-c", HOLD + "print(5 + fill())"], **LIMIT)
        holder.communicate()
    assert result.stdout == "15\n"
    assert "more than 1024 processes use the GPU; the others in this container do not see" in result.stderr
