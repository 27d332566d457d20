"""A container joins the MPS server of its slice: the questions before that, and what its CDI device says of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from fakes import make_gpus

from vgpurun.cdi import of_slices, together_hook
from vgpurun.cdi.edits import together_edits
from vgpurun.errors import SliceError, TogetherError
from vgpurun.host.drivers import DriverPlan
from vgpurun.launch import plan
from vgpurun.limits.model import DeviceQuota
from vgpurun.limits.quota import Quota
from vgpurun.slices import store
from vgpurun.slices.store import Slice
from vgpurun.storage import state
from vgpurun.together.group import Group
from vgpurun.together.joining import Membership
from vgpurun.together.offering import offered
from vgpurun.util.users import current_user

TEAM = Slice("team", Path("/slices/team"), (("GPU-0", Quota(1 << 30, together=True)),), "root")


@contextmanager
def process(*command: str) -> Iterator[int]:
    """A process that says when it has begun, and waits."""
    with subprocess.Popen(
        [*command, "sh", "-c", "echo; read _"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as started:
        if not started.stdout.readline():
            pytest.skip(f"this kernel refuses {' '.join(command)}")
        yield started.pid
        started.stdin.close()


def test_a_device_has_the_pipes_and_the_hook_that_starts_their_server() -> None:
    edits = together_edits(Path("/slices/team"), "/together/1a/pipe")
    (hook,) = edits.pop("hooks")
    assert hook["hookName"] == "createRuntime" and hook["timeout"] > 0, "no engine waits for it without end"
    assert hook["args"][-2:] == ["vgpurun.cdi.together_hook", "/slices/team"]
    assert edits["env"] == ["CUDA_MPS_PIPE_DIRECTORY=/.vgpurun/mps"]
    (mount,) = edits["mounts"]
    assert (mount["hostPath"], mount["containerPath"]) == ("/together/1a/pipe", "/.vgpurun/mps")
    assert mount["options"][-1] == "rw"


@pytest.mark.skipif(os.geteuid() != 0, reason="engines run hooks as root")
def test_containers_that_no_server_could_serve_are_refused() -> None:
    with process() as pid:
        together_hook.check_container(pid)
    with process("unshare", "--ipc") as pid, pytest.raises(TogetherError, match="add --ipc host"):
        together_hook.check_container(pid)
    with process("unshare", "--user", "--map-root-user") as pid, pytest.raises(TogetherError, match="rootless"):
        together_hook.check_container(pid)


def test_programs_of_another_user_are_refused_with_the_way_out() -> None:
    together_hook.check_user(TEAM, 0)
    with pytest.raises(
        TogetherError,
        match=r"user 1000's.*slice team is for user root; add --user 0 \(Compose.*; Kubernetes: runAsUser: 0\)",
    ):
        together_hook.check_user(TEAM, 1000)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("mounted", ["before", "link", "pipe"])
def test_only_what_has_the_folder_itself_mounted_joins(tmp_path: Path, joined: list[str], mounted: str) -> None:
    """The folder is the slice's user's, who may put a link in its place when the engine mounts it, and take it away."""
    pipes, other = tmp_path / "together/1a/pipe", tmp_path / "together/1b/pipe"
    for each in (pipes, other):
        each.mkdir(parents=True)
    (pipes.parent / "before").mkdir()
    (pipes.parent / "link").symlink_to(other)
    bind = f'mount --bind {pipes.parent / mounted} {tmp_path} && exec "$@"'
    with process("unshare", "--mount", "sh", "-c", bind, "sh") as pid:
        if mounted == "pipe":
            together_hook.join(TEAM, pid)
        else:
            with pytest.raises(TogetherError, match=r"not slice team's as it is now.*: vgpurun cdi generate"):
                together_hook.join(TEAM, pid)
    assert joined == ["joined"] * (mounted == "pipe")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_container_whose_pipes_go_while_it_joins_does_not_start(tmp_path: Path, joined: list[str]) -> None:
    """The claim may be given back meanwhile: the server would be in another folder than the container has."""
    pipes = tmp_path / "together/1a/pipe"
    pipes.mkdir(parents=True)
    with process("unshare", "--mount", "sh", "-c", f'mount --bind {pipes} {tmp_path} && exec "$@"', "sh") as pid:
        (tmp_path / "goes").touch()
        with pytest.raises(TogetherError, match="not slice team's as it is now"):
            together_hook.join(TEAM, pid)
    assert joined == ["joined"]


@pytest.fixture
def joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what has joined the one group that there is, 1a."""
    seen: list[str] = []

    class Recorded(Membership):
        @contextmanager
        def joined(self) -> Iterator[int]:
            seen.append("joined")
            if (tmp_path / "goes").exists():
                (tmp_path / "together/1a").rename(tmp_path / "gone")
            with (tmp_path / "members").open("w") as lock:
                yield lock.fileno()

    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path))
    one = Recorded(Group("1a", TEAM.folder), Path("/control"), ("GPU-0",))
    monkeypatch.setattr(together_hook, "membership_in", lambda *_: one)
    monkeypatch.setattr(together_hook.gpus, "list_gpus", list)
    return seen


def test_what_stands_for_a_container_keeps_nothing_of_the_engine_s(tmp_path: Path) -> None:
    lock = tmp_path / "members"
    script = """if True:
        import os, sys
        from vgpurun.cdi import together_hook
        lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
        os.dup2(os.open("/", os.O_RDONLY), 700)
        together_hook._keep_nothing_but(lock)
        links = [each.path for each in os.scandir("/proc/self/fd")]
        kept = [os.readlink(each) for each in links if os.path.exists(each)]
        os.write(lock, "\\n".join([os.getcwd(), *sorted(kept)]).encode())
    """
    subprocess.run([sys.executable, "-c", script, lock], cwd=tmp_path, check=True)
    assert lock.read_text().split("\n") == ["/", *["/dev/null"] * 3, str(lock)]


def test_where_the_state_is_the_device_says_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a mount of the container's, nor what an engine has in its environment."""
    monkeypatch.setenv("VGPURUN_STATE_DIR", "/elsewhere")
    together_hook.use_state_around(tmp_path / "slices" / "team")
    assert os.environ["VGPURUN_STATE_DIR"] == str(tmp_path)
    together_hook.use_state_around(state.ROOT_FOLDER / "claims" / "no-such")
    assert "VGPURUN_STATE_DIR" not in os.environ


@pytest.mark.parametrize("said", ["", "{}", '{"bundle": "/nowhere", "pid": 1}'])
def test_what_the_engine_does_not_say_is_an_error(said: str) -> None:
    hook = [sys.executable, "-m", together_hook.__name__, "/slices/team"]
    done = subprocess.run(hook, input=said, capture_output=True, text=True)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("vgpurun: the engine does not say")


def test_a_user_whom_this_host_does_not_know_any_more_is_named() -> None:
    for name in ("4242", "nobody-here"):
        with pytest.raises(TogetherError, match=f"no user {name}, whose slice team is.*slice update --users"):
            together_hook.check_user(replace(TEAM, user=name), 4242)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make such devices")
def test_a_user_whose_folder_cannot_be_made_keeps_no_other_from_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def offered(folder: Path, user: str) -> str:
        if folder.name == "bad":
            raise TogetherError("no folder for the MPS server of slice bad: no space")
        return f"/together/{user}/pipe"

    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(of_slices, "distrust", lambda: "")
    monkeypatch.setattr(of_slices, "offered", offered)
    gpus = make_gpus(1)
    quotas = [DeviceQuota(gpus[0], Quota(1 << 30, together=True))]
    for name in ("bad", "good"):
        store.make(name, quotas, plan.shared_files(quotas, DriverPlan("mount")))
    host = of_slices.Host("host", gpus, Path("/lib"), lambda _: {})
    of_slices.keep("host", tmp_path / "kept.yaml", lambda: host)
    read = yaml.safe_load((tmp_path / "kept.yaml").read_text())
    assert [device["name"] for device in read["devices"]] == ["good"]
    assert "slice bad: no space; so it has no CDI device, until: vgpurun cdi generate" in capsys.readouterr().err
    with pytest.raises(TogetherError, match="slice bad: no space"):
        of_slices.of_slices(host, [store.find("bad")])


@pytest.mark.parametrize("name", ["a\nb", "\udcff"], ids=["two lines", "no text"])
def test_a_folder_whose_name_no_specification_can_have_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A user may lead his state folder anywhere by a link."""
    (tmp_path / "team").mkdir()
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path / name))
    with pytest.raises(TogetherError, match=r"no folder for the MPS server of slice team: .* has a name") as raised:
        offered(tmp_path / "team", current_user())
    assert len(str(raised.value).splitlines()) == 1


def test_slices_that_can_have_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    own = replace(TEAM, user=current_user())
    monkeypatch.setattr(of_slices, "distrust", lambda: "")
    assert of_slices.has_device(own) and of_slices.has_device(replace(TEAM, quotas=(), user="nobody-here"))
    with pytest.raises(SliceError, match="slice team has no CDI device: this host knows no user nobody-here"):
        of_slices.check(replace(TEAM, user="nobody-here"))
    monkeypatch.setattr(of_slices, "distrust", lambda: "others than root can change /opt/x")
    with pytest.raises(SliceError, match="others than root can change /opt/x"):
        of_slices.check(own)
    assert not of_slices.has_device(own)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a folder of another user")
def test_no_slice_that_others_can_change_has_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner file says whom the hook becomes."""
    monkeypatch.setattr(of_slices, "distrust", lambda: "")
    own = replace(TEAM, folder=tmp_path / "slices" / "team", user="root")
    own.folder.mkdir(parents=True)
    of_slices.check(own)
    for folder in (own.folder, own.folder.parent):
        os.chown(folder, 4242, -1)
        with pytest.raises(SliceError, match=f"others than root can change {folder}, and so whose it is"):
            of_slices.check(own)
        os.chown(folder, 0, -1)
    of_slices.check(own)
