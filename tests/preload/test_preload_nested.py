"""Shares within shares: what a program holds counts at every level, and the smallest limit holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pynvml as nvml
import pytest
from sandbox import UUID, Sandbox
from together import compared, measured_together

from cuda_driver import CudaError, Driver
from support import assert_measured
from support.programs import text_of
from support.shares import write_share
from vgpurun import abi
from vgpurun.errors import LimitError
from vgpurun.limits import limits_file, usage_file
from vgpurun.limits.nested import Share, own_share, share_of
from vgpurun.limits.quota import Quota

MIB = 1 << 20
CONTEXT_MIB = 518
OTHER = UUID.replace("aaaa", "bbbb")


def answer() -> None:
    """Answer each line.

    A number of MiB is allocated, `launch` runs a kernel, `close` takes what is open, `fork` and `exec` go on in another
    process, else it shows its view.
    """
    d, kernel = Driver(), 0
    d.start()
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    for line in sys.stdin:
        line = line.strip()
        said: object = "ok"
        if line.isdigit():
            try:
                d.mem_alloc(int(line) << 20)
            except CudaError as error:
                said = error.name
        elif line == "launch":
            kernel = kernel or d.kernel("work_1ms")
            d.launch(kernel)
            d.synchronize()
        elif line == "close":
            os.closerange(3, 4096)
        elif line == "fork":
            parent = os.getpid()
            if os.fork() > 0:
                os._exit(0)
            while os.getppid() == parent:
                time.sleep(0.001)
        elif line == "exec":
            print(json.dumps("ok"), flush=True)
            os.execv(sys.executable, [sys.executable, "-u", "-c", os.environ["PROGRAM"]])
        else:
            free, total = d.mem_get_info()
            info = nvml.nvmlDeviceGetMemoryInfo(handle)
            seen = [each >> 20 for each in (info.total, info.free, info.used)]
            said = {"total": total >> 20, "free": free >> 20, "nvml": seen}
        print(json.dumps(said), flush=True)


def size() -> None:
    d = Driver()
    d.init()
    print(d.device_total_mem() >> 20)


class Program:
    """A program in a share."""

    def __init__(self, process: subprocess.Popen[str], messages: Path) -> None:
        self._process = process
        self._messages = messages

    def ask(self, question: object = "?") -> object:
        print(question, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def said(self) -> str:
        return self._messages.read_text()


@contextmanager
def program(sandbox: Sandbox, variables: dict[str, str], **more: str) -> Iterator[Program]:
    messages = sandbox.folder / f"messages-{len(list(sandbox.folder.iterdir()))}"
    environment = sandbox.variables(**variables, PROGRAM=text_of(answer), **more)
    with (
        messages.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-u", "-c", text_of(answer)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            yield Program(process, messages)
        finally:
            process.kill()


def make_shares(folder: Path, *limits: Quota, gpu: str = UUID) -> tuple[list[Share], dict[str, str]]:
    """Make shares within each other, the outermost first, and the variables that enter the innermost."""
    shares: list[Share] = []
    variables: dict[str, str] = {}
    for number, quota in enumerate(limits):
        place = folder / f"level-{number}"
        variables = write_share(place, [(gpu, quota)], shares[-1] if shares else None)
        shares.append(share_of(place))
    return shares, variables


def used_mib(share: Share) -> int:
    readings = usage_file.read_usage(share.folder / "run" / "usage", [UUID])
    return readings[0].memory_used_bytes >> 20


def refusals(shares: Sequence[Share]) -> list[int]:
    readings = [usage_file.read_usage(share.folder / "run" / "usage", [UUID]) for share in shares]
    return [each[0].refusals for each in readings if each]


def mib(*sizes: int) -> list[Quota]:
    return [Quota(each * MIB) for each in sizes]


@pytest.mark.parametrize("sizes", [(4096, 2048), (4096, 3072, 3000, 2048), (2048, 2048, 2048, 2048)])
def test_the_view_is_that_of_the_smallest_share(sandbox: Sandbox, tmp_path: Path, sizes: Sequence[int]) -> None:
    shares, variables = make_shares(tmp_path, *mib(*sizes))
    assert own_share(variables) == shares[-1] and shares[-1].levels == len(sizes)
    with program(sandbox, variables) as one:
        assert one.ask(300) == "ok"
        used = CONTEXT_MIB + 300
        assert one.ask() == {"total": 2048, "free": 2048 - used, "nvml": [2048, 2048 - used, used]}
        assert [used_mib(share) for share in shares] == [used] * len(sizes)


def test_programs_with_limits_of_their_own_within_a_share(sandbox: Sandbox, tmp_path: Path) -> None:
    """A variable that is set inside, as for two engines in one container: each is held to its own limit."""
    (share,), variables = make_shares(tmp_path, Quota(4096 * MIB))
    with (
        program(sandbox, variables, CUDA_DEVICE_MEMORY_LIMIT="1g") as small,
        program(sandbox, variables, WRAPPER_MAX_MEMORY="50%") as half,
        program(sandbox, variables, CUDA_DEVICE_MEMORY_LIMIT="16g") as rest,
    ):
        assert small.ask(1024 - CONTEXT_MIB) == half.ask(1000) == "ok"
        assert small.ask(2) == "CUDA_ERROR_OUT_OF_MEMORY"
        assert small.ask() == {"total": 1024, "free": 0, "nvml": [1024, 0, 1024]}
        seen = rest.ask()
        assert isinstance(seen, dict) and (seen["total"], half.ask()["total"]) == (4096, 4096)  # type: ignore[index]
        left = 4096 - 1024 - 1000 - 2 * CONTEXT_MIB
        assert seen["free"] == left == 1036
        assert half.ask(left + 2) == "CUDA_ERROR_OUT_OF_MEMORY" and rest.ask(left) == "ok"
        assert used_mib(share) == 4096
        assert "of the share that this one is a part of" in half.said


def test_only_a_variable_for_every_gpu_counts_beside_a_limits_file(sandbox: Sandbox, tmp_path: Path) -> None:
    """The host sets those with an index, and they stay as they were when the file changes; those of the launch too."""
    taken = abi.ENV_LIMITS_TAKEN
    _, variables = make_shares(tmp_path, Quota(4096 * MIB, sm_percent=80))
    for more, words in (
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "1g", "CUDA_DEVICE_SM_LIMIT_0": "20"}, "4096 MiB, 80 %"),
        ({"CUDA_DEVICE_MEMORY_LIMIT": " ", "CUDA_DEVICE_SM_LIMIT": ""}, "4096 MiB, 80 %"),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "1g", taken: "CUDA_DEVICE_MEMORY_LIMIT=1g"}, "4096 MiB, 80 %"),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "1g", taken: "A=1;CUDA_DEVICE_MEMORY_LIMIT=1g;B=2"}, "4096 MiB, 80 %"),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "1g", taken: "CUDA_DEVICE_MEMORY_LIMIT=1gi;;"}, "1024 MiB, 80 %"),
        ({"CUDA_DEVICE_SM_LIMIT": "20", taken: "CUDA_DEVICE_MEMORY_LIMIT=20"}, "4096 MiB, 20 %"),
        ({"CUDA_DEVICE_SM_LIMIT": "20"}, "4096 MiB, 20 %"),
        ({"ALNAIR_VGPU_COMPUTE_PERCENTILE": "90"}, "4096 MiB, 80 %"),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "2g", "CUDA_DEVICE_SM_LIMIT": "50"}, "2048 MiB, 50 %"),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "much"}, "0 MiB, 80 %"),
    ):
        result = sandbox.run([sys.executable, "-c", text_of(size)], LIBCUDA_LOG_LEVEL="3", **variables, **more)
        assert f"limits of {UUID}: {words}" in result.stderr, result
        assert result.stdout.strip() == words.partition(" ")[0]


def test_a_limit_of_a_program_in_the_innermost_share_that_can_be(sandbox: Sandbox, tmp_path: Path) -> None:
    _, variables = make_shares(tmp_path, *mib(4096, 3072, 2048, 2048))
    result = sandbox.run([sys.executable, "-c", text_of(size)], CUDA_DEVICE_MEMORY_LIMIT="1g", **variables)
    assert result.stdout == "0\n" and "more than 4 shares within each other; nothing is granted" in result.stderr


@pytest.mark.parametrize("level", range(4))
def test_each_level_refuses(sandbox: Sandbox, tmp_path: Path, level: int) -> None:
    limits = [*mib(8192, 8192, 8192)[:level], Quota(2048 * MIB), Quota(), Quota(), Quota()][:4]
    shares, variables = make_shares(tmp_path, *limits)
    whose = ["three levels up", "two levels up", "that this one is a part of"]
    with program(sandbox, variables) as one:
        assert one.ask(2048) == "CUDA_ERROR_OUT_OF_MEMORY"
        assert one.ask(2048 - CONTEXT_MIB) == "ok"
        assert one.ask(2) == "CUDA_ERROR_OUT_OF_MEMORY"
        wanted = f"limit 2048 MiB of the share {whose[level]} (said" if level < 3 else "limit 2048 MiB (said"
        assert wanted in one.said
    assert refusals(shares) == [2 if number == level else 0 for number in range(4)]


def test_the_level_without_room_is_named_where_the_host_serves(sandbox: Sandbox, tmp_path: Path) -> None:
    """Not the share that the device's memory is of, which the host would have helped."""
    served = Quota(1024 * MIB, virtual_bytes=4096 * MIB)
    shares, variables = make_shares(tmp_path, served, Quota(2048 * MIB))
    with program(sandbox, variables) as one:
        assert one.ask(900) == "ok"
        assert one.ask(900) == "CUDA_ERROR_OUT_OF_MEMORY"
        assert "limit 2048 MiB (said" in one.said
        assert one.ask(2048 - CONTEXT_MIB - 900) == "ok"
    assert refusals(shares) == [0, 1]


def test_children_share_what_their_parent_has(sandbox: Sandbox, tmp_path: Path) -> None:
    """Together never more than the parent has; each sees what is left of it, if that is less than its own."""
    parent, _ = make_shares(tmp_path, *mib(4096))
    first = write_share(tmp_path / "first", [(UUID, Quota(3072 * MIB))], parent[0])
    second = write_share(tmp_path / "second", [(UUID, Quota(3072 * MIB))], parent[0])
    with program(sandbox, first) as one, program(sandbox, second) as other:
        assert (one.ask(2048), other.ask(2)) == ("ok", "ok")
        left = 4096 - 2 * CONTEXT_MIB - 2048 - 2
        assert other.ask() == {"total": 3072, "free": left, "nvml": [3072, left, CONTEXT_MIB + 2]}
        assert other.ask(left + 1) == "CUDA_ERROR_OUT_OF_MEMORY"
        assert "of the share that this one is a part of" in other.said
        assert other.ask(left) == "ok"
        assert used_mib(parent[0]) == 4096
        one.kill()
        assert used_mib(parent[0]) == CONTEXT_MIB + 2 + left
        assert other.ask(1024) == "ok", "what the killed one held"


def test_a_program_that_closes_all_is_counted_at_each_level(sandbox: Sandbox, tmp_path: Path) -> None:
    """A launch, which begins with the outermost, opens the files again in another order."""
    shares, variables = make_shares(tmp_path, Quota(4096 * MIB, 90), Quota(2048 * MIB, 80))
    with program(sandbox, variables) as one:
        assert (one.ask(100), one.ask("launch")) == ("ok", "ok")
        used = used_mib(shares[0])
        for _ in range(2):
            assert (one.ask("close"), one.ask("launch"), one.ask(100)) == ("ok", "ok", "ok")
            used += 100
            assert [used_mib(share) for share in shares] == [used] * 2


def test_a_forked_child_keeps_nothing_at_any_level(sandbox: Sandbox, tmp_path: Path) -> None:
    shares, variables = make_shares(tmp_path, *mib(4096, 3072, 2048))
    with program(sandbox, variables) as one:
        assert one.ask(500) == "ok"
        assert one.ask("fork") == "ok"
        assert [used_mib(share) for share in shares] == [0] * 3


def test_a_program_that_execs_starts_over_at_all_levels(sandbox: Sandbox, tmp_path: Path) -> None:
    shares, variables = make_shares(tmp_path, *mib(4096, 3072, 2048))
    with program(sandbox, variables) as one:
        assert one.ask(1500) == "ok"
        assert (one.ask("exec"), one.ask(1400)) == ("ok", "ok")
        assert [used_mib(share) for share in shares] == [CONTEXT_MIB + 1400] * 3


def test_new_limits_of_the_parent_reach_a_child_that_runs(sandbox: Sandbox, tmp_path: Path) -> None:
    shares, variables = make_shares(tmp_path, *mib(4096, 3072, 3072))
    with program(sandbox, variables) as one:
        assert one.ask(1000) == "ok"
        limits_file.write_limits(shares[0].folder / "etc" / "limits", [(UUID, Quota(2048 * MIB))])
        left = 2048 - CONTEXT_MIB - 1000
        assert one.ask() == {"total": 2048, "free": left, "nvml": [2048, left, CONTEXT_MIB + 1000]}
        assert one.ask(left + 1) == "CUDA_ERROR_OUT_OF_MEMORY"
        limits_file.write_limits(shares[1].folder / "etc" / "limits", [(UUID, Quota(1024 * MIB))])
        assert one.ask(1) == "CUDA_ERROR_OUT_OF_MEMORY"
        assert share_of(shares[1].folder).levels == 2, "it remains a part"


def test_a_lost_parent_is_no_way_out(sandbox: Sandbox, tmp_path: Path) -> None:
    shares, variables = make_shares(tmp_path, *mib(4096, 2048))
    (shares[1].folder / "parent").unlink()
    result = sandbox.run([sys.executable, "-c", text_of(size)], **variables)
    assert result.stdout == "0\n"
    assert "parent/etc/limits: No such file or directory; nothing is granted" in result.stderr


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to itself", "device", "another's"])
def test_what_is_no_limits_file_is_not_waited_for(sandbox: Sandbox, tmp_path: Path, kind: str) -> None:
    _, variables = make_shares(tmp_path, *mib(4096, 2048))
    named = tmp_path / "level-0" / "etc" / "limits"  # the parent's
    named.unlink()
    if kind == "pipe":
        os.mkfifo(named)
    elif kind == "folder":
        named.mkdir()
    else:
        named.symlink_to({"device": "/dev/zero", "another's": "/etc/passwd"}.get(kind, named))
    result = sandbox.run([sys.executable, "-c", text_of(size)], **variables)
    assert result.stdout == "0\n", result.stderr
    assert "nothing is granted" in result.stderr


def test_a_fifth_level_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    shares, variables = make_shares(tmp_path, *mib(4096, 4096, 4096, 2048))
    with pytest.raises(LimitError, match="within 3 others already, and 4 levels are the most"):
        write_share(tmp_path / "fifth", [(UUID, Quota(MIB))], shares[-1])
    assert not (tmp_path / "fifth").exists()
    # And where somebody makes one without asking.
    limits_file_of_first = shares[0].folder / "etc" / "limits"
    limits_file_of_first.write_bytes(limits_file.limits_bytes(shares[0].quotas, has_parent=True))
    write_share(tmp_path / "outside", [(UUID, Quota(8192 * MIB))], None)
    (shares[0].folder / "parent").symlink_to(tmp_path / "outside")
    result = sandbox.run([sys.executable, "-c", text_of(size)], **variables)
    assert result.stdout == "0\n"
    assert "more than 4 shares within each other; nothing is granted" in result.stderr


def test_more_than_the_parent_has_is_refused(tmp_path: Path) -> None:
    parent = Share(tmp_path, ((UUID, Quota(1024 * MIB, 50)),))
    for quota, why in ((Quota(1025 * MIB), "is more than this share has"), (Quota(sm_percent=51), "this share's 50 %")):
        with pytest.raises(LimitError, match=why):
            write_share(tmp_path / "child", [(UUID, quota)], parent)
    with pytest.raises(LimitError, match="not one of this share's"):
        write_share(tmp_path / "child", [(OTHER, Quota(MIB))], parent)
    assert not (tmp_path / "child").exists()


def test_devices_may_have_other_places_in_the_parent(sandbox: Sandbox, tmp_path: Path) -> None:
    """And a GPU that was taken out of the parent is the child's no more."""
    write_share(tmp_path / "outer", [(OTHER, Quota(3072 * MIB)), (UUID, Quota(2048 * MIB))], None)
    outer = share_of(tmp_path / "outer")
    variables = write_share(tmp_path / "inner", [(UUID, Quota()), (OTHER, Quota())], outer)

    def sizes() -> None:
        d = Driver()
        d.init()
        print([d.device_total_mem(i) >> 20 for i in (0, 1)])

    assert sandbox.python(sizes, **variables) == "[2048, 3072]"
    (tmp_path / "outer/etc/limits").write_bytes(limits_file.limits_bytes([(OTHER, Quota(3072 * MIB))]))
    assert sandbox.python(sizes, **variables) == "[0, 3072]"


def test_limits_are_lifted_only_where_all_levels_let_them_be(sandbox: Sandbox, tmp_path: Path) -> None:
    shares, variables = make_shares(tmp_path, *mib(4096, 2048))
    lifted = {**variables, abi.ENV_DISABLE_CONTROL: "true"}
    for share, has_parent, total in ((shares[1], True, "2048"), (shares[0], False, "8192")):
        path = share.folder / "etc" / "limits"
        path.write_bytes(limits_file.limits_bytes(share.quotas, may_disable=True, has_parent=has_parent))
        assert sandbox.python(size, **lifted) == total


def start_all(sandbox: Sandbox, places: Sequence[dict[str, str]]) -> list[subprocess.Popen[str]]:
    return [sandbox.start_python(compared, **variables) for variables in places]


@pytest.mark.real_time
def test_two_children_of_half_a_gpu_have_a_quarter_each(sandbox: Sandbox, tmp_path: Path) -> None:
    """Beside each other, and beside a stranger who has the other half."""
    parent, _ = make_shares(tmp_path, Quota(4096 * MIB, 50))
    places = [write_share(tmp_path / name, [(UUID, Quota(2048 * MIB, 25))], parent[0]) for name in ("one", "two")]

    def near(shares: Sequence[float]) -> bool:
        return all(abs(share - 0.25) <= 0.02 for share in shares[:2])

    assert_measured(lambda: measured_together(start_all(sandbox, places)), near)
    stranger = write_share(tmp_path / "stranger", [(UUID, Quota(4096 * MIB, 50))], None)
    assert_measured(lambda: measured_together(start_all(sandbox, [*places, stranger])), near)


def total_of_two_children(sandbox: Sandbox) -> float:
    """Each may have all that the parent has."""
    parent, _ = make_shares(sandbox.folder, Quota(sm_percent=40), gpu=sandbox.uuid)
    places = [write_share(sandbox.folder / name, [(sandbox.uuid, Quota())], parent[0]) for name in ("one", "two")]
    return sum(measured_together(start_all(sandbox, places)))


@pytest.mark.real_time(measure=total_of_two_children)
def test_a_parent_holds_children_that_may_have_more(measured: Callable[[], float]) -> None:
    """Together they have what the parent has, and no more."""
    assert_measured(measured, lambda share: 0.37 <= share <= 0.42)


def readings_of_levels(sandbox: Sandbox) -> list[usage_file.DeviceReading]:
    limits = Quota(sm_percent=80), Quota(sm_percent=20), Quota()
    shares, variables = make_shares(sandbox.folder, *limits, gpu=sandbox.uuid)
    measured_together(start_all(sandbox, [variables]))
    readings = [usage_file.read_usage(share.folder / "run" / "usage", [sandbox.uuid]) for share in shares]
    return [each[0] for each in readings if each]


@pytest.mark.real_time(measure=readings_of_levels)
def test_the_level_that_holds_launches_counts_that(measured: Callable[[], list[usage_file.DeviceReading]]) -> None:
    outer, middle, inner = measured()
    assert middle.throttled_ns > 10 * max(outer.throttled_ns, inner.throttled_ns)
    assert outer.busy_ns > 0 and outer.launches > 0
    assert abs(outer.busy_ns - inner.busy_ns) <= outer.busy_ns / 20 and middle.not_enforced == ()
