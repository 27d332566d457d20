"""Programs of a slice made with --together: one MPS server for all of them, its walls, its end and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from governed import await_slice
from members import BESIDE, SIM, Member, await_end, host_in_a_short_folder, member, one_group, telling

from cuda_driver import Driver
from support import assert_measured, assert_refused, python_for_all, wait_until
from support.programs import text_of
from support.suspension import Host
from vgpurun.together import server
from vgpurun.together.group import MEMBERS, Group
from vgpurun.util.locking import holder_of

USER = 61301
IN_TEAM = ("local", *SIM, "--slice", "team")


def create(host: Host, *options: str) -> subprocess.CompletedProcess[str]:
    return host.vgpurun("slice", "create", "team", *SIM, "--mem", "1500m", "--gpus", "device=0", "--together", *options)


@pytest.fixture
def host(built_library: Path) -> Iterator[Host]:
    with host_in_a_short_folder() as made:
        yield made


@pytest.fixture
def team(host: Host) -> Host:
    """A host with such a slice."""
    assert create(host).returncode == 0
    return host


@pytest.fixture
def join(team: Host) -> Iterator[Callable[..., Member]]:
    started = []

    def start_one(*options: str, **variables: str) -> Member:
        started.append(Member(team, *IN_TEAM, *options, **variables))
        return started[-1]

    yield start_one
    for each in started:
        if each.process.poll() is None:
            each.end()


def group_of(host: Host) -> tuple[Path, Path]:
    """The folders of the group and of its pipes."""
    folder = host.folder / "state" / "slices" / "team"
    group = host.folder / "state" / "together" / Group.of(folder).key
    return group, group / "pipe"


def the_server(host: Host) -> int:
    """The process of the server alone: the daemon has started it."""
    (found,) = (
        each.pid
        for each in server.processes(group_of(host)[1])
        if b"server" in Path(f"/proc/{each.pid}/cmdline").read_bytes().split(b"\0")[0]
    )
    return found


def keeper_of(host: Host) -> int:
    folder = os.open(group_of(host)[0], os.O_RDONLY)
    try:
        return int(holder_of(folder))
    finally:
        os.close(folder)


def incidents(host: Host) -> list[str]:
    (found,) = json.loads(host.vgpurun("slice", "inspect", *SIM, "team").stdout)
    return [each["what"] for each in found["together"]["incidents"]]


def test_members_have_one_server_and_leave_nothing(team: Host, join: Callable[..., Member]) -> None:
    one, other = join(), join("--sm", "25")
    assert (one.said, other.said) == ([1, 132], [1, 33])
    assert one.ask() == other.ask() == "ok"
    the_server(team)  # there is one
    (described,) = json.loads(team.vgpurun("slice", "inspect", *SIM, "team").stdout)
    assert described["together"]["runs"]
    assert one.end() == (0, "")
    assert other.ask() == "ok" and other.end() == (0, "")
    await_end(*group_of(team))


def test_a_member_s_memory_is_its_own_limit_and_that_of_the_slice(join: Callable[..., Member]) -> None:
    one, other = join("--mem", "500m"), join()
    assert [one.ask(300), one.ask(150)] == ["ok", "CUDA_ERROR_OUT_OF_MEMORY"]
    assert [other.ask(900), other.ask(150)] == ["ok", "CUDA_ERROR_OUT_OF_MEMORY"]


def test_views_say_sms_and_no_time_that_nobody_has_measured(team: Host, join: Callable[..., Member]) -> None:
    assert team.vgpurun("slice", "update", *SIM, "--sm", "60", "team").returncode == 0
    join("--sm", "25")
    smi, ps = (team.vgpurun(verb, *SIM).stdout for verb in ("smi", "ps"))
    assert "? / 60 %" in smi and "25 % of the SMs" in smi and "25 % of the SMs" in ps


def test_a_killed_member_leaves_the_others_and_the_server(team: Host, join: Callable[..., Member]) -> None:
    one, other = join(), join()
    before = the_server(team)
    one.kill()
    assert other.ask() == "ok" and the_server(team) == before and incidents(team) == []
    other.end()
    await_end(*group_of(team))


@pytest.mark.parametrize(
    ("number", "error", "words"),
    [
        (signal.SIGKILL, "CUDA_ERROR_MPS_RPC_FAILURE", "the MPS server has ended, and with it the GPU work of all"),
        (signal.SIGUSR1, "CUDA_ERROR_ILLEGAL_ADDRESS", "a fault of one of its programs"),
    ],
    ids=["kill", "fault"],
)
def test_a_server_that_fails_is_said_and_the_next_launch_has_another(
    team: Host, join: Callable[..., Member], number: int, error: str, words: str
) -> None:
    one = join()
    assert one.ask() == "ok"
    wait_until(lambda: json.loads((group_of(team)[0] / "keeper").read_text())["server"], "server")
    os.kill(the_server(team), number)
    other = join()  # at once
    assert other.said == [1, 132] and other.ask() == "ok"
    assert wait_until(lambda: (said := one.ask()) != "ok" and said) == error
    assert words in wait_until(lambda: incidents(team), "incident")[0]
    assert words in one.end()[1]
    assert other.end() == (0, "")
    await_end(*group_of(team))


@pytest.mark.parametrize(
    "plant", [Path.touch, Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda _: None],
    ids=["file", "folder", "pipe", "link", "nothing"],
)  # fmt: skip
def test_a_daemon_whose_pipe_a_member_has_replaced_is_started_again(
    team: Host, join: Callable[..., Member], plant: Callable[[Path], object]
) -> None:
    """The keeper could no longer ask which programs it is to hold to their time: all would work without a limit."""
    one = join()
    assert one.ask() == "ok"
    control = group_of(team)[1] / "control"
    control.unlink()
    plant(control)
    give_up_s = time.monotonic() + 20
    while not incidents(team):
        assert time.monotonic() < give_up_s
        time.sleep(0.05)
    assert "as where one of them has removed its pipe" in incidents(team)[0]
    while one.ask() == "ok":
        assert time.monotonic() < give_up_s
    other = join()
    assert other.said == [1, 132] and other.ask() == "ok"
    assert "has removed its pipe" in one.end()[1]
    other.end()
    await_end(*group_of(team))


def test_a_launch_that_is_killed_before_the_server_is_ready_leaves_nothing(team: Host) -> None:
    group, pipes = group_of(team)
    launch = team.start(*IN_TEAM, "--", "true")
    give_up_s = time.monotonic() + 20
    while not (group / "log").exists():
        assert time.monotonic() < give_up_s
        time.sleep(0.001)
    launch.kill()
    launch.communicate()
    await_end(group, pipes)


def test_a_full_disk_hides_no_keeper(team: Host, join: Callable[..., Member]) -> None:
    """Otherwise the next launch would start another, which ends the GPU work of all."""
    one = join()
    assert one.ask() == "ok"
    record, before = group_of(team)[0] / "keeper", the_server(team)
    give_up_s = time.monotonic() + 20
    while json.loads(record.read_text())["server"] != before:
        assert time.monotonic() < give_up_s
        time.sleep(0.05)
    record.unlink()  # as where it could not be written
    assert team.vgpurun("prune", *SIM).returncode == 0
    other = join()
    assert other.ask() == one.ask() == "ok" and the_server(team) == before
    assert one.end() == other.end() == (0, "")
    await_end(*group_of(team))


def test_a_slice_has_its_group_to_itself_as_long_as_that_is_there(team: Host, join: Callable[..., Member]) -> None:
    """No slice that is made meanwhile gets the folder's inode, though file systems give one away again at once."""
    join()
    keeper, status = keeper_of(team), (team.folder / "state" / "slices" / "team").stat()
    assert team.vgpurun("slice", "rm", *SIM, "--force", "team").returncode == 0
    opened = [each.stat() for each in Path(f"/proc/{keeper}/fd").iterdir() if each.exists()]
    assert any(os.path.samestat(each, status) for each in opened)


@pytest.mark.parametrize("what", ["keeper", "daemon", "all"])
def test_after_a_kill_the_next_launch_works(team: Host, join: Callable[..., Member], what: str) -> None:
    one = join()
    pids = {"keeper": [keeper_of(team)], "daemon": [], "all": [keeper_of(team)]}[what]
    if what != "keeper":
        pids += [each.pid for each in server.processes(group_of(team)[1]) if each.pid != the_server(team)]
    if what == "all":
        pids += [the_server(team)]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: one.ask() != "ok")
    other = join()
    assert other.said == [1, 132] and other.ask() == "ok"
    said = one.end()[1]
    assert "MPS" in said, said
    other.end()
    await_end(*group_of(team))


def test_a_folder_that_a_member_has_put_among_the_pipes_holds_up_no_server(
    team: Host, join: Callable[..., Member]
) -> None:
    join()
    pipes = group_of(team)[1]
    (pipes / "left" / "in").mkdir(parents=True)
    (pipes / "link").symlink_to(team.folder)
    for each in server.processes(pipes):
        if each.pid != the_server(team):
            os.kill(each.pid, signal.SIGKILL)
    wait_until(lambda: not (pipes / "left").exists())
    other = join()
    assert other.ask() == "ok" and (team.folder / "sim.yaml").exists()


def test_what_is_left_after_everything_was_killed_goes_with_the_next_prune(
    team: Host, join: Callable[..., Member]
) -> None:
    one = join()
    folder, pipes = group_of(team)
    keeper = keeper_of(team)
    watcher = [int(each) for each in Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()]
    for pid in [*watcher, keeper]:
        os.kill(pid, signal.SIGKILL)
    one.kill()
    assert folder.exists() and server.processes(pipes)
    assert str(folder) in team.vgpurun("prune", *SIM).stdout
    assert not folder.exists() and not server.processes(pipes)


def test_a_program_that_finds_no_server_gets_no_gpu(team: Host, join: Callable[..., Member]) -> None:
    """Without the library CUDA would use the GPU alone, and say nothing."""
    lost = join("-e", "CUDA_MPS_PIPE_DIRECTORY=/nowhere")
    assert lost.said == [1, 132], "what the user has in the environment does not count"
    command = ("env", "CUDA_MPS_PIPE_DIRECTORY=/nowhere", sys.executable, "-c", text_of(member))
    alone = team.vgpurun(*IN_TEAM, "--", *command)
    assert alone.stdout == '"CUDA_ERROR_MPS_CONNECTION_FAILED"\n'
    assert "found no MPS server (/nowhere)" in alone.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--movable",), "--movable beside --together"),
        (("--oversubscribe", "2g"), "--oversubscribe beside --together"),
        (("--sm-policy", "burst"), "--sm-policy beside --together"),
        (("--users", "ann,bob"), "for the programs of one user"),
        (("--users", "all"), "for the programs of one user"),
    ],
)
def test_options_that_cannot_be_are_refused(host: Host, options: tuple[str, ...], words: str) -> None:
    refused = create(host, *options)
    assert refused.returncode == 125 and words in refused.stderr
    assert host.vgpurun("slice", "ls", "-q", *SIM).stdout == ""


def test_what_cannot_join_is_refused_with_the_way_out(team: Host) -> None:
    assert_refused(team.vgpurun("suspend", *SIM, "--slice", "team"), "stays there until it ends")


def test_another_user_is_refused_with_the_way_out(host: Host) -> None:
    assert create(host, "--users", "61301").returncode == 0
    assert_refused(host.vgpurun(*IN_TEAM, "--", "true"), "for programs of user 61301 alone; as root: sudo -u 61301")
    device = host.vgpurun("cdi", "generate", *SIM, "-o", "-", "team")
    assert device.returncode == 125 and "no CDI device: this host knows no user 61301" in device.stderr
    more = host.vgpurun("slice", "update", *SIM, "--users", "61301,61302", "team")
    assert more.returncode == 125 and "make a slice for each of the others" in more.stderr


def test_a_mig_instance_has_no_server(host: Host) -> None:
    uuids = [each.replace("GPU", "MIG", 1) for each in host.uuids]
    (host.folder / "sim.yaml").write_text("devices:\n" + "".join(f"- uuid: {each}\n  mig_gpu: 1\n" for each in uuids))
    refused = host.vgpurun("slice", "create", "team", *SIM, "--mem", "1g", "--together")
    assert (
        refused.returncode == 125 and "is a MIG instance" in refused.stderr and "without --together" in refused.stderr
    )


def test_many_starts_leave_nothing(team: Host, join: Callable[..., Member]) -> None:
    for count in range(6):
        one = join()
        assert one.said == [1, 132]
        one.kill() if count % 2 else one.end()
    await_end(*group_of(team))
    assert [each.name for each in (group_of(team)[0].parent).iterdir()] == [".lock"]
    assert MEMBERS not in str(list((team.folder / "state").rglob("*")))


def count_kernels(seconds: float = 3.0) -> None:
    """Work flat out; print how many kernels of a millisecond were done in the last two thirds of the time."""
    d = Driver.started()
    kernel, stream = d.kernel("k_1ms"), d.stream()
    count, began_s = 0, time.monotonic()
    while (now_s := time.monotonic()) < began_s + seconds:
        for _ in range(4):
            d.launch(kernel, stream)
        d.stream_synchronize(stream)
        count += 4 * (now_s >= began_s + seconds / 3)
    print(count)


@pytest.mark.real_time
@pytest.mark.parametrize(("percent", "members"), [("30", 1), ("60", 2)])
def test_the_time_of_all_together_is_limited(team: Host, percent: str, members: int) -> None:
    assert team.vgpurun("slice", "update", *SIM, "--sm", percent, "team").returncode == 0
    command = (sys.executable, "-c", text_of(count_kernels))
    started = [team.start(*IN_TEAM, "--", *command) for _ in range(members)]
    counts = [int(process.communicate(timeout=60)[0]) for process in started]
    share = sum(counts) / 2000
    assert int(percent) / 200 < share < int(percent) / 100 + 0.02, counts


@pytest.mark.real_time
def test_on_each_gpu_the_time_of_all_together_is_limited(host: Host) -> None:
    """Each program works on a GPU of its own: the channels of one stop nothing on the other's."""
    limits = ("--mem", "500m", "--sm", "30", "--gpus", "all")
    assert host.vgpurun("slice", "create", "team", *SIM, *limits, "--together").returncode == 0
    command = (*IN_TEAM, "--", sys.executable, "-c", text_of(count_kernels))
    started = [host.start(*command, CUDA_VISIBLE_DEVICES=number) for number in "01"]
    shares = [int(process.communicate(timeout=60)[0]) / 2000 for process in started]
    assert all(0.15 < share < 0.32 for share in shares), shares


def test_beside_others_a_group_has_the_time_slice_of_its_limit_and_priority(team: Host) -> None:
    with telling(team, *IN_TEAM) as one, telling(team, *IN_TEAM):
        await_slice(one, 2048)
        for options, slice_us in ((("--sm", "60"), 12000), (("--sm", "10"), 4000), (("--priority", "low"), 4000)):
            assert team.vgpurun("slice", "update", *SIM, *options, "team").returncode == 0
            await_slice(one, slice_us)
        with telling(team, *BESIDE, "--sm", "20"):
            await_slice(one, 100)
            with telling(team, *BESIDE, "--sm", "20", "--priority", "low"):
                await_slice(one, 1000)
        await_slice(one, 4000)
        assert incidents(team) == []


def test_others_see_a_group_at_work(team: Host) -> None:
    with telling(team, *BESIDE, "--sm", "50", "--priority", "low") as other:
        await_slice(other, 10000)
        with telling(team, *IN_TEAM):
            await_slice(other, 100)
        await_slice(other, 10000)


def shares_beside_another_tenant(team: Host) -> list[float]:
    """Return what two members have together, and what another program has that may have the rest."""
    command = ("--", sys.executable, "-c", text_of(count_kernels))
    words = [IN_TEAM] * 2 + [(*BESIDE, "--sm", "40")]
    started = [team.start(*each, *command) for each in words]
    one, other, beside = (int(process.communicate(timeout=60)[0]) / 20 for process in started)
    return [one + other, beside]


@pytest.mark.real_time
def test_beside_another_tenant_a_group_has_its_part(team: Host) -> None:
    """A group pays for no time in which another tenant is on the GPU: otherwise it would have 45."""
    assert team.vgpurun("slice", "update", *SIM, "--sm", "60", "team").returncode == 0
    assert_measured(lambda: shares_beside_another_tenant(team), lambda seen: 52 < seen[0] < 62 and 34 < seen[1] < 42)


@pytest.mark.real_time
@pytest.mark.skipif(os.geteuid() != 0, reason="needs programs of two users")
def test_a_group_that_is_not_root_s_pays_for_its_own_time_alone(host: Host) -> None:
    """Its keeper is told of its user's programs alone."""
    for folder in (host.folder, host.folder / "state", host.folder / "state" / "containers"):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o1777)
    python = python_for_all(host.folder / "python", USER)
    host.environment |= {"HOME": str(host.folder)}
    as_user = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--", python, "-m", "vgpurun")
    limits = ("--mem", "800m", "--sm", "60", "--gpus", "device=0")
    subprocess.run([*as_user, "slice", "create", "team", *SIM, *limits, "--together"], env=host.environment, check=True)
    for each in host.folder.glob("sim*"):
        each.chmod(0o666)
    program = ("--", python, "-c", text_of(count_kernels))
    commands = [[*as_user, *IN_TEAM, *program]] * 2 + [
        [sys.executable, "-m", "vgpurun", *BESIDE, "--sm", "40", *program]
    ]

    def shares() -> list[float]:
        started = [subprocess.Popen(each, env=host.environment, stdout=subprocess.PIPE, text=True) for each in commands]
        one, other, beside = (int(process.communicate(timeout=60)[0]) / 20 for process in started)
        return [one + other, beside]

    assert_measured(shares, lambda seen: 52 < seen[0] < 62 and 34 < seen[1] < 42)


def test_new_limits_of_the_slice_are_those_that_its_programs_can_have(team: Host) -> None:
    for options, words in (
        (("--sm-policy", "off"), "--sm-policy beside --together"),
        (("--oversubscribe", "2g"), "--oversubscribe beside --together"),
    ):
        refused = team.vgpurun("slice", "update", *SIM, *options, "team")
        assert refused.returncode == 125 and words in refused.stderr


def test_what_is_removed_by_force_is_granted_nothing_more(team: Host, join: Callable[..., Member]) -> None:
    one = join()
    assert team.vgpurun("slice", "rm", *SIM, "--force", "team").returncode == 0
    assert one.ask(10) == "CUDA_ERROR_OUT_OF_MEMORY" and one.ask() == "ok"
    _, pipes = one_group(team)
    one.end()
    groups = team.folder / "state" / "together"
    wait_until(lambda: [*groups.iterdir()] == [groups / ".lock"])
    assert not server.processes(pipes)
