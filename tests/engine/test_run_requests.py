"""The requests of a launch to the engine, and what others see of them."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from cli import Cli
from engine_relay import held_up, written_down

# A launch makes the requests of docker run, asks what the engine is and the image says, and twice who has which GPUs.
OF_A_START = Counter(
    {
        "GET /_ping": 1, "POST /containers/create": 1, "POST /containers/ID/attach": 1, "POST /containers/ID/wait": 1,
        "POST /containers/ID/start": 1, "GET /info": 1, "GET /images/NAME/json": 1, "GET /containers/json": 2,
    }
)  # fmt: skip


def asked_by(cli: Cli, folder: Path, *arguments: str) -> Counter[str]:
    """The requests of a launch, which must be a good one."""
    for left in cli.engine.containers.list(all=True, filters={"label": "vgpurun.state=-"}):
        left.remove()  # by a launch that a test has killed; the next launch would
    engine = cli.environment["DOCKER_HOST"]
    with written_down(engine, folder) as (address, asked):
        cli.environment["DOCKER_HOST"] = address
        result = cli.run(*arguments)
    cli.environment["DOCKER_HOST"] = engine
    assert (result.exit_code, result.stderr) == (0, "")
    image = next(each for each in arguments if each.startswith("vgpurun-test/"))
    return Counter(each.replace(image, "NAME") for each in asked.requests)


@pytest.mark.parametrize("limits", [(), ("--mem", "1g", "--sm", "50")], ids=["without limits", "limited"])
def test_a_start_asks_for_little(vgpurun: Cli, debian: str, tmp_path: Path, limits: tuple[str, ...]) -> None:
    vgpurun.run(*limits, debian, "true")  # the image is looked at once
    assert asked_by(vgpurun, tmp_path, *limits, debian, "true") == OF_A_START


def test_beside_others_it_asks_for_no_more(own_gpu: Cli, debian: str, tmp_path: Path) -> None:
    assert own_gpu.run("-d", "--mem", "1g", debian, "sleep", "300").exit_code == 0
    own_gpu.run("--mem", "1g", debian, "true")  # the program is looked at once
    assert asked_by(own_gpu, tmp_path, "--mem", "1g", debian, "true") == OF_A_START


def test_an_image_is_looked_at_once_in_a_container_of_its_own(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    first = asked_by(vgpurun, tmp_path, "--mem", "1g", debian, "true")
    assert first["POST /containers/create"] == 2 and first["DELETE /containers/ID"] == 1
    assert asked_by(vgpurun, tmp_path, "--mem", "1g", debian, "true") == OF_A_START
    vgpurun.assert_nothing_left()


@pytest.mark.parametrize("image", ["busybox", "musl"])
def test_without_limits_no_image_is_looked_at(
    vgpurun: Cli, image: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    tag = request.getfixturevalue(image)
    mounts = ("-v", f"{tmp_path}:/tmp", "--tmpfs", "/etc:ro")
    assert asked_by(vgpurun, tmp_path, *mounts, tag, "true") == OF_A_START


@pytest.mark.parametrize("request_path", ["/containers/create", "/archive"])
def test_a_launch_that_is_killed_at_its_look_holds_nothing(
    own_gpu: Cli, debian: str, tmp_path: Path, request_path: str
) -> None:
    engine = own_gpu.environment["DOCKER_HOST"]
    looks = {"all": True, "filters": {"label": "vgpurun.state=-"}}
    before = {each.id for each in own_gpu.engine.containers.list(**looks)}
    with held_up(engine, tmp_path, request_path, is_answered=True) as (address, held):
        own_gpu.environment["DOCKER_HOST"] = address
        with own_gpu.started("run", *own_gpu.driver, "--mem", "16g", debian, "sleep", "300") as process:
            held.wait()
            process.kill()
    own_gpu.environment["DOCKER_HOST"] = engine
    (left,) = (each for each in own_gpu.engine.containers.list(**looks) if each.id not in before)
    assert (left.status, own_gpu.states()) == ("created", [])
    assert own_gpu("ps", "--driver", "sim", "-a", "--format", "{{.Names}}").stdout == ""
    assert own_gpu.run("--mem", "16g", debian, "true").exit_code == 0
    left.remove(v=True)


def test_what_a_killed_look_has_left_is_swept(vgpurun: Cli, debian: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vgpurun.engine import client
    from vgpurun.engine.launches import LaunchEngine
    from vgpurun.launch.container import sweep
    from vgpurun.util.background import Background

    for name in ("DOCKER_HOST", "VGPURUN_STATE_DIR"):
        monkeypatch.setenv(name, vgpurun.environment[name])
    engine = LaunchEngine.connect()
    left = engine.create_to_read(debian)
    sweep(engine, Background(engine.facts))
    assert engine.state_of(left) == "created", "somebody may be looking"
    monkeypatch.setattr(client, "_LOOK_TAKES_S", -1)
    sweep(engine, Background(engine.facts))
    assert engine.state_of(left) is None


def test_events_have_one_short_word_of_ours(vgpurun: Cli, debian: str) -> None:
    vgpurun.run("--mem", "1g", debian, "true")
    since_ns = time.time_ns()
    assert vgpurun.run("--mem", "1g", debian, "true").exit_code == 0
    events = [*vgpurun.engine.events(since=since_ns // 10**9, until=time.time() + 1, decode=True)]
    of_start = [each for each in events if each["Type"] == "container" and each["timeNano"] >= since_ns]
    assert not [each for each in of_start if each["Action"].startswith(("archive", "extract"))]
    for each in of_start:
        ours = {name: value for name, value in each["Actor"]["Attributes"].items() if name.startswith("vgpurun.")}
        assert set(ours) <= {"vgpurun.state", "vgpurun.holds"}
        assert not set("".join(ours.values())) & set('", {}()=')


def test_few_mounts_and_no_variable_of_ours(vgpurun: Cli, debian: str) -> None:
    of_simulation = 3  # its driver, nvidia-smi and state; without limits nobody looks where the loader does: 6
    for limits, most in (((), 7 + 6), (("--mem", "1g"), 7 + of_simulation)):
        started = vgpurun.run("-d", "--overcommit", *limits, debian, "sleep", "300")
        container = vgpurun.engine.containers.get(started.stdout.strip())
        assert len(container.attrs["Mounts"]) == most, [each["Destination"] for each in container.attrs["Mounts"]]
        of_image = set(vgpurun.engine.images.get(debian).attrs["Config"]["Env"])
        assert set(container.attrs["Config"]["Env"]) - of_image == {"NVIDIA_VISIBLE_DEVICES=void"}
