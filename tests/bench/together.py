"""Programs that share a GPU in space: what the driver's MPS does here, each fact on a line of its own.

python tests/bench/together.py [SECONDS [PART...]]    takes root, and about two minutes; nothing of it is left behind
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent / "compute"), str(ROOT / "tests")]
from runs import Bench, Launch, Programs, gpus  # noqa: E402

from support import LIBRARY  # noqa: E402
from vgpurun.host.channels import Driver, ProcessChannels  # noqa: E402
from vgpurun.util.process_identity import identify  # noqa: E402

CONTROL = "nvidia-cuda-mps-control"
VERIFIER = ROOT / "lib/build/vgpurun-verify"
MIB = 1 << 20
PERIOD_S = 0.04
END_S = 20

# Says what it sees once, and then works or answers each line: a client that can be killed or asked at any time.
PROBE = """
import ctypes, json, sys
cuda = ctypes.CDLL('libcuda.so.1')
value, context, memory, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
said = {'init': cuda.cuInit(0)}
for name, number in (('mps', 133), ('sms', 16)):
    said[name + '_status'] = cuda.cuDeviceGetAttribute(ctypes.byref(value), number, 0)
    said[name] = value.value
said['context'] = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
said['alloc'] = cuda.cuMemAlloc_v2(ctypes.byref(memory), 64 << 20)
print(json.dumps(said), flush=True)
for line in sys.stdin:
    print(json.dumps({'memset': cuda.cuMemsetD8_v2(memory, 1, 64 << 20), 'wait': cuda.cuCtxSynchronize()}), flush=True)
"""
# Writes where nothing is: the fault that ends all clients of a server.
FAULT = (
    ".version 7.0\\n.target sm_50\\n.address_size 64\\n"
    ".visible .entry f() { .reg .u64 %d<2>; mov.u64 %d1, 16; st.global.u64 [%d1], %d1; ret; }\\n"
)
FAULTY = f"""
import ctypes, json
cuda = ctypes.CDLL('libcuda.so.1')
context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
cuda.cuInit(0); cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0); cuda.cuCtxSetCurrent(context)
loaded = cuda.cuModuleLoadData(ctypes.byref(module), b"{FAULT}")
cuda.cuModuleGetFunction(ctypes.byref(function), module, b'f')
launched = cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
print(json.dumps(dict(load=loaded, launch=launched, wait=cuda.cuCtxSynchronize())))
"""


def say(what: str, **found: Any) -> None:
    print(json.dumps({"what": what, **found}), flush=True)


class Server:
    """A control daemon in a folder of its own, in the foreground."""

    def __init__(self, uuid: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="together"))
        self.client = {"CUDA_MPS_PIPE_DIRECTORY": str(self.folder / "pipe")}
        self.environment = {
            **os.environ,
            **self.client,
            "CUDA_MPS_LOG_DIRECTORY": str(self.folder / "log"),
            "CUDA_VISIBLE_DEVICES": uuid,
            "TOGETHER_MARK": "inherited",
        }
        for name in ("pipe", "log"):
            (self.folder / name).mkdir(mode=0o700)
        began_s = time.monotonic()
        self.process = subprocess.Popen(
            [CONTROL, "-f"], env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        while not self.answers() and time.monotonic() < began_s + END_S:
            time.sleep(0.01)
        self.started_s = time.monotonic() - began_s

    def ask(self, command: str) -> tuple[int, str]:
        try:
            done = subprocess.run(
                [CONTROL], input=command + "\n", env=self.environment, capture_output=True, text=True, timeout=END_S
            )
            return done.returncode, (done.stdout + done.stderr).strip()
        except subprocess.TimeoutExpired:
            return -1, "no answer"

    def answers(self) -> bool:
        return (self.folder / "pipe/control").exists() and self.ask("get_server_list")[0] == 0

    def servers(self) -> list[int]:
        return processes_of(self.folder, "nvidia-cuda-mps-server")

    def log(self, lines: int = 6) -> list[str]:
        files = sorted((self.folder / "log").glob("*.log"))
        return [line for file in files for line in file.read_text(errors="replace").splitlines()[-lines:]]

    def end(self) -> None:
        with suppress(OSError):
            self.ask("quit -t 2")
        for pid in processes_of(self.folder):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def processes_of(folder: Path, program: str = "nvidia-cuda-mps") -> list[int]:
    """Daemons and servers of MPS that were started with this folder."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            name = (each / "cmdline").read_bytes().split(b"\0")[0].decode()
            if program in name and str(folder).encode() in (each / "environ").read_bytes():
                found.append(int(each.name))
    return found


@contextmanager
def server(uuid: str) -> Iterator[Server]:
    made = Server(uuid)
    try:
        yield made
    finally:
        made.end()


class Client:
    """The probe as a client."""

    def __init__(self, environment: dict[str, str], text: str = PROBE) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", text], env={**os.environ, **environment}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.said = self.read()

    def read(self) -> dict[str, Any]:
        timer = threading.Timer(END_S, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline() if self.process.stdout else ""
            return json.loads(line) if line else {"ended": self.process.wait()}
        finally:
            timer.cancel()

    def ask(self) -> dict[str, Any]:
        try:
            print(file=self.process.stdin, flush=True)
        except OSError:
            return {"ended": self.process.wait()}
        return self.read()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def listed(uuid: str) -> dict[str, list[list[int]]]:
    """The processes that NVML lists, with their MiB, by list."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    found = {}
    for name in ("Compute", "Graphics", "MPSCompute"):
        rows = getattr(pynvml, f"nvmlDeviceGet{name}RunningProcesses")(handle)
        found[name] = [[row.pid, (row.usedGpuMemory or 0) // MIB] for row in rows]
    return found


class Duty:
    """Takes a process's work off the GPU for a part of each period, by the real time that it was on."""

    def __init__(self, pid: int, ratio: float) -> None:
        self._channels = ProcessChannels(identify(pid), Driver())  # type: ignore[arg-type]
        self.count = self._channels.find()
        self._ratio = ratio
        self._ends = False
        self.calls_s: list[float] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _switch(self, off: bool) -> float:
        began_s = time.monotonic()
        self._channels.switch(off)
        now_s = time.monotonic()
        self.calls_s.append(now_s - began_s)
        return now_s

    def _run(self) -> None:
        on_since_s, owed_s = time.monotonic(), 0.0
        period_ends_s = on_since_s + PERIOD_S
        while not self._ends:
            time.sleep(max(0.001, self._ratio * PERIOD_S - owed_s - (time.monotonic() - on_since_s)))
            off_s = self._switch(True)
            time.sleep(max(0.0, period_ends_s - time.monotonic()))
            now_s = self._switch(False)
            owed_s += off_s - on_since_s - self._ratio * (now_s - on_since_s)
            on_since_s = now_s
            period_ends_s = max(period_ends_s + PERIOD_S, now_s + PERIOD_S / 2)

    def end(self) -> None:
        self._ends = True
        self._thread.join()
        self._channels.close()


def facts_of_the_daemon(bench: Bench, _: float) -> None:
    uuid = bench.gpus[0].uuid
    say("outside", client=(one := Client({"CUDA_MPS_PIPE_DIRECTORY": "/nowhere"})).said)
    one.end()
    with server(uuid) as made:
        say(
            "daemon",
            started_s=made.started_s,
            list=made.ask("get_server_list"),
            pipe=sorted(os.listdir(made.folder / "pipe")),
        )
        one, other = Client(made.client), Client({**made.client, "CUDA_VISIBLE_DEVICES": uuid})
        part = Client({**made.client, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"})
        say("clients", one=one.said, by_uuid=other.said, quarter=part.said)
        say(
            "nvml",
            pids=[one.process.pid, other.process.pid, part.process.pid],
            servers=made.servers(),
            lists=listed(uuid),
        )
        (pid,) = made.servers()
        maps = Path(f"/proc/{pid}/maps").read_text()
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        say("server", inherits=b"TOGETHER_MARK=inherited" in environ,
            parent=Path(f"/proc/{pid}/stat").read_text().split()[3], control=made.process.pid,
            command=Path(f"/proc/{pid}/cmdline").read_bytes().decode(),
            libraries=sorted({line.split()[-1] for line in maps.splitlines() if ".so" in line})[:20])  # fmt: skip
        say("asked", servers=made.ask("get_server_list"), clients=made.ask(f"get_client_list {pid}"),
            status=made.ask(f"get_server_status {pid}"), ps=made.ask("ps"))  # fmt: skip
        for client in (one, other, part):
            client.end()
        time.sleep(0.5)
        say("without clients", servers=made.servers(), clients=made.ask(f"get_client_list {pid}"))
        began_s = time.monotonic()
        say("quit", answer=made.ask("quit"), took_s=time.monotonic() - began_s, rc=made.process.wait(END_S),
            left=processes_of(made.folder), pipe=sorted(os.listdir(made.folder / "pipe")))  # fmt: skip
        say("no daemon", client=(one := Client(made.client)).said)
        one.end()


def facts_of_ends(bench: Bench, _: float) -> None:
    uuid = bench.gpus[0].uuid
    with server(uuid) as made:
        one = Client(made.client)
        busy = bench.start("300ms", 30, Launch((), made.client))
        time.sleep(4)
        began_s = time.monotonic()
        bench.programs.end(busy)
        time.sleep(0.5)
        say("a client killed at work", other=one.ask(), servers=made.servers(), took_s=time.monotonic() - began_s,
            next=(two := Client(made.client)).said, log=made.log(3))  # fmt: skip
        faulty = Client(made.client, FAULTY)
        say("a fault", own=faulty.said, other=one.ask(), second=two.ask(), servers=made.servers(),
            next=(three := Client(made.client)).said, log=made.log(4))  # fmt: skip
        for each in (one, two, faulty):
            each.end()
        say(
            "next after those that were there have ended",
            again=(four := Client(made.client)).said,
            servers=made.servers(),
        )
        for pid in made.servers():
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.3)
        say(
            "the server killed",
            client=four.ask(),
            third=three.ask(),
            next=(five := Client(made.client)).said,
            servers=made.servers(),
        )
        made.process.kill()
        made.process.wait()
        time.sleep(0.5)
        say("the daemon killed", client=five.ask(), left=processes_of(made.folder),
            next=(six := Client(made.client)).said,
            pipe=sorted(os.listdir(made.folder / "pipe")))  # fmt: skip
        for each in (three, four, five, six):
            each.end()
        time.sleep(1)
        say("left", processes=processes_of(made.folder), nvml=listed(uuid))


def shares(bench: Bench, program: str, launch: Launch, count: int, seconds: float, alone: float) -> list[float]:
    runs = bench.together([program] * count, [launch] * count, seconds)
    return [round(100 * run.per_second / alone, 2) for run in runs]


def throughput(bench: Bench, seconds: float) -> None:
    native = bench.native()
    for program in ("50us", "1ms", "wide"):
        alone = bench.run(program, seconds, native).per_second
        with server(bench.gpus[0].uuid) as made:
            client = Launch((), {**native.environment, **made.client})
            for count in (2, 4):
                found = shares(bench, program, client, count, seconds, alone)
                say("bare MPS", program=program, count=count, shares=found, sum=round(sum(found), 1))
            quarter = Launch((), {**client.environment, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"})
            say("a quarter of the SMs", program=program, shares=shares(bench, program, quarter, 1, seconds, alone))


def cap(bench: Bench, seconds: float) -> None:
    native = bench.native()
    alone = bench.run("1ms", seconds, native).per_second
    with server(bench.gpus[0].uuid) as made:
        client = Launch((), {**native.environment, **made.client})
        for whose in ("server", "client"):
            started = [bench.start("1ms", seconds + 2, client) for _ in range(2)]
            time.sleep(4)
            try:
                duty = Duty(made.servers()[0] if whose == "server" else started[0].pid, 0.6)
            except Exception as error:
                say("cap", whose=whose, error=f"{type(error).__name__}: {error}")
                for each in started:
                    bench.programs.end(each)
                continue
            try:
                runs = [bench.finish(each, seconds + 2)[-1] for each in started]
            finally:
                duty.end()
            found = [round(100 * run.per_second_between(3.0) / alone, 2) for run in runs]
            calls_ms = sorted(round(1000 * each, 2) for each in duty.calls_s)
            say(
                "cap at 60",
                whose=whose,
                channels=duty.count,
                shares=found,
                calls_ms=[calls_ms[len(calls_ms) // 2], calls_ms[-1]],
            )


def ways_to_take_memory(bench: Bench, _: float) -> None:
    """The library's limit of 2 GiB, with and without MPS."""
    with server(bench.gpus[0].uuid) as made, tempfile.TemporaryDirectory() as folder:
        for name, more in (("alone", {"CUDA_MPS_PIPE_DIRECTORY": "/nowhere"}), ("under MPS", made.client)):
            limits = {"LD_PRELOAD": str(LIBRARY), "CUDA_DEVICE_MEMORY_LIMIT": "2g", "LIBCUDA_LOG_LEVEL": "2"}
            usage = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{folder}/{name.replace(' ', '')}"}
            process = subprocess.Popen(
                [str(VERIFIER), "memory", str(64 * MIB)], env={**os.environ, **limits, **usage, **more}, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            found: list[Any] = []
            held: list[Any] = []
            for line in process.stdout:
                said = json.loads(line)
                if said.get("hold"):
                    rows = [row for rows in listed(bench.gpus[0].uuid).values() for row in rows]
                    used_mib = max((mib for pid, mib in rows if pid not in made.servers()), default=0)
                    held = [said["answer"], said["granted_bytes"] // MIB, used_mib]
                    print(file=process.stdin, flush=True)
                elif "again" in said:
                    found.append([said["path"], *held, said["again"], *([said["answer"]] if "answer" in said else [])])
                else:
                    found.append(said)
            say("memory", where=name, found=found, stderr=process.stderr.read()[-1500:])


def set_slices(pid: int) -> dict[str, Any]:
    """Set it for every group that a process has allocated; return each one's status, and what else there is."""
    channels = ProcessChannels(identify(pid), Driver())  # type: ignore[arg-type]
    channels.find()
    found: dict[str, Any] = {"classes": [], "groups": []}
    for client in channels._clients.values():
        objects = client._objects
        found["classes"] += [f"{handle:#x}: {each.class_:#x} in {each.parent:#x}" for handle, each in objects.items()
                             if each.is_channel or each.class_ in (0xA06C, 0x2080, 0x80)]  # fmt: skip
        found["groups"] += [[f"{handle:#x}", client._set_slice(handle, 20000)] for handle, each in objects.items()
                            if each.class_ == 0xA06C]  # fmt: skip
    channels.close()
    return found


def beside_others(bench: Bench, seconds: float) -> None:
    """A program of MPS beside one without, flat out both: whose groups' time slices decide."""
    native = bench.native()
    alone = bench.run("1ms", seconds, native).per_second
    with server(bench.gpus[0].uuid) as made:
        client = Launch((), {**native.environment, **made.client})
        for whose in ("nobody", "server", "client"):
            started = [bench.start("1ms", seconds + 2, launch) for launch in (client, native)]
            time.sleep(4)
            said: Any = ""
            try:
                if whose != "nobody":
                    said = set_slices(made.servers()[0] if whose == "server" else started[0].pid)
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            runs = [bench.finish(each, seconds + 2)[-1] for each in started]
            found = [round(100 * run.per_second_between(3.0) / alone, 2) for run in runs]
            say("a slice of 20 ms", whose=whose, shares=found, set=said)


PARTS: tuple[Callable[[Bench, float], None], ...] = (
    facts_of_the_daemon, cap, ways_to_take_memory, facts_of_ends, throughput, beside_others,
)  # fmt: skip


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Programs(Path(folder)), tuple(gpus()[:1]), {})
        for part in (each for each in PARTS if each.__name__ in sys.argv[2:] or not sys.argv[2:]):
            try:
                part(bench, seconds)
            except Exception as error:
                say(part.__name__, error=f"{type(error).__name__}: {error}")
        bench.programs.stop()


if __name__ == "__main__":
    main()
