"""Programs, files and neighbours that mean no good, or do strange things: the limit holds, and nothing breaks."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox import Sandbox
from together import assert_shares

pytestmark = pytest.mark.slow

LIMIT = {"CUDA_DEVICE_MEMORY_LIMIT": "2g", "CUDA_DEVICE_SM_LIMIT": "60"}
PRELUDE = """
import ctypes, mmap, os, random, sys, threading, time
from cuda_driver import *
d = Driver(); d.start()
def fill():
    count = 0
    while True:
        try: d.mem_alloc(100 << 20); count += 1
        except CudaError as error:
            assert error.name == "CUDA_ERROR_OUT_OF_MEMORY", error
            return count
path = os.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
"""

VANDALS = {
    "zeros": "data[8:] = bytes(len(data) - 8)",
    "no slots": "data[12:16] = bytes(4)",
    "random bytes": "at = random.randrange(len(data) - 65536); data[at:at + 65536] = random.randbytes(65536)",
    "random bytes in what is used": "data[8:16384] = random.randbytes(16384 - 8)",
    "ones": "data[8:] = b'\\xff' * (len(data) - 8)",
    "cut off": "os.truncate(path, random.choice((0, 12, 4096, 33000)))",
}


@pytest.mark.parametrize("kind", VANDALS)
def test_a_usage_file_that_is_overwritten_all_the_time(sandbox: Sandbox, kind: str) -> None:
    """A process on its own keeps to its limits, and goes on, whatever the file says."""
    code = PRELUDE + (
        "d.mem_alloc(2 << 20)\n"
        "k, stop = d.kernel('spin_50us'), False\n"
        "with open(path, 'r+b') as file: data = mmap.mmap(file.fileno(), 0)\n"
        "def vandalise():\n"
        f"    while not stop: {VANDALS[kind]}\n"
        "vandal = threading.Thread(target=vandalise); vandal.start()\n"
        "held, launched, end = 0, 0, time.monotonic() + 1\n"
        "while time.monotonic() < end:\n"
        "    held += fill()\n"
        "    d.mem_get_info()\n"
        "stop = True; vandal.join()\n"
        "os.truncate(path, len(data)); data[8:] = bytes(len(data) - 8)\n"
        "for _ in range(100): d.launch(k)\n"
        "d.synchronize()\n"
        "print(held)"
    )
    assert int(sandbox.python(code, **LIMIT)) <= 15


NEWCOMER = PRELUDE.replace("d.start()", "d.init()") + (
    "started = d.result('cuDevicePrimaryCtxRetain', ctypes.byref(ctypes.c_void_p()), 0)\n"
    "if started == 'CUDA_SUCCESS': d.start()\n"
    "print(fill() if started == 'CUDA_SUCCESS' else started)"
)


def overwrite(path: Path, begin: int) -> None:
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(random.Random(begin).randbytes(path.stat().st_size - begin))


@pytest.mark.parametrize("damage", [overwrite, os.truncate], ids=["overwritten", "cut off"])
@pytest.mark.parametrize("begin", [0, 8, 64, 32832])
def test_a_usage_file_that_was_damaged_once(sandbox: Sandbox, begin: int, damage: Callable[[Path, int], None]) -> None:
    """Beside a process whose slot says nonsense, idle or not, and after it, there is room."""
    idle = PRELUDE + "print(d.mem_alloc(500 << 20) != 0, flush=True)\nfor line in sys.stdin: print(fill(), flush=True)"
    with sandbox.start_python(idle, **LIMIT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        damage(sandbox.folder / "usage", begin)
        assert int(sandbox.python(NEWCOMER, **LIMIT)) > 0
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "10\n", "2048 - 518 - 500"
        assert sandbox.python(NEWCOMER, **LIMIT) == "CUDA_ERROR_OUT_OF_MEMORY", "it is counted again"
        process.communicate()
    assert sandbox.python(NEWCOMER, **LIMIT) == "15"


@pytest.mark.parametrize("kind", ["data[64:4160] = random.randbytes(4096)", "os.truncate(path, 0)"])
def test_launches_go_on_while_the_usage_file_is_damaged(sandbox: Sandbox, kind: str) -> None:
    code = PRELUDE + (
        "k, stop = d.kernel('spin_50us'), False\n"
        "d.launch(k)\n"
        "with open(path, 'r+b') as file: data = mmap.mmap(file.fileno(), 0)\n"
        "def vandalise():\n"
        f"    while not stop: {kind}\n"
        "vandal = threading.Thread(target=vandalise); vandal.start()\n"
        "for _ in range(200): d.launch(k)\n"
        "d.synchronize(); stop = True; vandal.join(); print('done')"
    )
    assert sandbox.python(code, timeout_s=60, **LIMIT) == "done"


def test_more_processes_than_there_are_slots(sandbox: Sandbox) -> None:
    """Slots taken by anyone: the process still sees the others, keeps to the limit, and goes on."""
    take_all_slots = (
        "import fcntl, os, struct\n"
        "file = os.open(os.environ['CUDA_DEVICE_MEMORY_SHARED_CACHE'], os.O_RDWR | os.O_CREAT)\n"
        "fcntl.fcntl(file, 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 1 << 30, 1024, 0))\n"
    )
    launch = "k = d.kernel('spin_50us')\nfor _ in range(500): d.launch(k)\nd.synchronize()\n"
    assert sandbox.python(take_all_slots + PRELUDE + "print(fill())\n" + launch, **LIMIT) == "15"


def test_closed_standard_streams(sandbox: Sandbox) -> None:
    """A program's output to a closed descriptor does not land in our files."""
    code = (
        "import os\n"
        "result = os.dup(1); os.set_inheritable(result, False)\n"
        "os.closerange(0, 3)\n" + PRELUDE + "count = fill()\n"
        "for number in (0, 1, 2):\n"
        "    try: os.write(number, b'x' * 64)\n"
        "    except OSError: pass\n"
        "os.write(result, b'%d %r' % (count, open(path, 'rb').read(8)))"
    )
    assert sandbox.python(code, **LIMIT) == "15 b'VCGUSAGE'"


def test_a_descriptor_that_the_program_closed(sandbox: Sandbox) -> None:
    """Its number may be the program's own file by now: that is not closed in a forked child."""
    code = PRELUDE + (
        "d.mem_alloc(2 << 20)\n"
        "links = {number: os.readlink(f'/proc/self/fd/{number}') for number in map(int, os.listdir('/proc/self/fd'))\n"
        "         if os.path.exists(f'/proc/self/fd/{number}')}\n"
        "for number, link in links.items():\n"
        "    if link == path: os.dup2(os.open('/dev/null', os.O_RDONLY), number); ours = number\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.fstat(ours); os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), fill())"
    )
    assert sandbox.python(code, **LIMIT) == "7 15"


@pytest.mark.parametrize("profiled", [False, True])
def test_no_arguments_at_all(sandbox: Sandbox, profiled: bool) -> None:
    """Every caught function, called with nothing but zeros."""
    code = PRELUDE + (
        "import re\n"
        "from support import CHECKOUT\n"
        "names = [n for h in ('hooks.h', 'profiled_hooks.h')\n"
        "         for n in re.findall(r'X\\((cu\\w+)\\)', (CHECKOUT / 'lib/src/hook' / h).read_text())]\n"
        "ours, driver = ctypes.CDLL(None), ctypes.CDLL('libcuda.so.1')\n"
        "destroying = [n for n in names if 'Ctx' in n]\n"
        "for name in [n for n in names if n not in destroying] + destroying:\n"
        "    getattr(ours if hasattr(ours, name) else driver, name)(*[c_uint64(0)] * 11)\n"
        "print(len(names) > 200)"
    )
    folder = {"PFLOG": str(sandbox.folder)} if profiled else {}
    assert sandbox.python(code, **LIMIT, **folder) == "True"


@pytest.mark.parametrize("size", ["2**64 - 1", "2**63", "2**60 + 1"])
@pytest.mark.parametrize("limits", [LIMIT, {"CUDA_DEVICE_SM_LIMIT": "60"}])
def test_huge_sizes(sandbox: Sandbox, size: str, limits: dict[str, str]) -> None:
    code = PRELUDE + (
        "d.mem_alloc(100 << 20); used = d.mem_used()\n"
        f"size = {size}\n"
        "for symbol, arguments in {\n"
        "    'cuMemAlloc_v2': (c_size_t(size),), 'cuMemAllocManaged': (c_size_t(size), 1),\n"
        "    'cuMemAllocAsync': (c_size_t(size), None),\n"
        "    'cuMemAllocPitch_v2': (byref(c_size_t()), c_size_t(size), c_size_t(size), 4),\n"
        "}.items():\n"
        "    assert d.result(symbol, byref(c_uint64()), *arguments) in (\n"
        "        'CUDA_ERROR_OUT_OF_MEMORY', 'CUDA_ERROR_INVALID_VALUE'), symbol\n"
        "d.mem_alloc(100 << 20)\n"
        "print(d.mem_used() - used >> 20)"
    )
    assert sandbox.python(code, **limits) == "100"


COMPUTE = {
    "references to the primary context come and go": (
        "c = c_void_p()\n"
        "def launch():\n"
        "    d.launch(k)\n"
        "    d.call('cuDevicePrimaryCtxRetain', byref(c), 0); d.primary_context_release()\n"
    ),
    "many streams": (
        "streams = [d.stream(STREAM_NON_BLOCKING) for _ in range(1100)]\n"
        "for stream in streams: d.launch(d.kernel('spin_50us'), stream)\n"
        "d.synchronize()\n"
        "def launch(): d.launch(k, streams[-1])\n"
    ),
    "streams come and go": ("def launch():\n    stream = d.stream(); d.launch(k, stream); d.stream_destroy(stream)\n"),
}


MEASURED = """
start = time.monotonic(); count = 0
while time.monotonic() < start + 1.5: launch(); count += 1
d.synchronize()
print(count * 1e-3 / (time.monotonic() - start))
"""


@pytest.mark.real_time
def test_no_way_around_the_compute_limit(sandbox: Sandbox) -> None:
    begin = PRELUDE + "k = d.kernel('spin_1ms')\n"
    programs = {kind: (sys.executable, "-c", begin + code + MEASURED) for kind, code in COMPUTE.items()}
    assert_shares(sandbox, programs, 0.23, 0.37, CUDA_DEVICE_SM_LIMIT="30")
