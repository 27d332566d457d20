"""Which program a container starts with, and what is remembered of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from vgpurun.engine.client import Image
from vgpurun.host.program import Doubts
from vgpurun.launch import first_program
from vgpurun.launch.image_look import ImageFiles
from vgpurun.options import ContainerOptions, Mount, Volume

STATIC = b"\x7fELF\x02\x01" + bytes(10) + bytes(48)
NO_DOUBT = Doubts()


class Engine:
    """An engine that has files of an image, and counts what is asked of it."""

    def __init__(self, *paths: str) -> None:
        self.files = dict.fromkeys(paths, STATIC)
        self.asked: list[str] = []

    def create_to_read(self, *_: str | None) -> str:
        self.asked.append("create")
        return "bare"

    def read_file(self, _: str, path: str) -> bytes | None:
        self.asked.append(path)
        return self.files.get(path)

    def remove(self, _: str) -> None:
        self.asked.append("remove")


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path / "state"))


def look(engine: Engine, image: dict[str, Any] | None = None, path: str = "/a:/b", **options: Any) -> Doubts:
    of_image = Image("sha256:1", {}, **(image or {}))
    given = ContainerOptions("image", **options)
    with ImageFiles(engine, of_image, given) as files:  # type: ignore[arg-type]
        return first_program.look(files, of_image, given, {"PATH": path} if path else {})


def static(path: str) -> Doubts:
    return Doubts(f"{path} is statically linked")


def test_the_command_is_put_together_as_the_engine_does() -> None:
    engine = Engine("/a/entry", "/a/default", "/a/given", "/a/own")
    sets = {"entrypoint": ("entry",), "command": ("default",)}
    assert look(engine, sets, command=("given",)) == static("/a/entry")
    assert look(engine, {"command": ("default",)}) == static("/a/default")
    assert look(engine, {"command": ("default",)}, command=("given",)) == static("/a/given")
    assert look(engine, sets, entrypoint="own", command=("given",)) == static("/a/own")
    assert look(engine, sets, entrypoint="") == NO_DOUBT
    assert look(engine) == NO_DOUBT


def test_it_is_looked_for_as_the_container_will() -> None:
    engine = Engine("/b/program", "/bin/program", "/srv/program", "/own/program")
    assert look(engine, command=("program",)) == static("/b/program")
    assert look(engine, command=("program",), path="") == static("/bin/program")
    assert look(engine, {"folder": "/srv"}, command=("./program",)) == static("/srv/program")
    own = {"WorkingDir": "/own"}
    assert look(engine, {"folder": "/srv"}, command=("./program",), fields=own) == static("/own/program")
    assert look(engine, command=("missing",)) == NO_DOUBT


def test_what_was_seen_of_an_image_is_remembered() -> None:
    engine = Engine("/b/program")
    assert look(engine, command=("program",)) == static("/b/program")
    assert engine.asked == ["create", "/a/program", "/b/program", "remove"]
    engine.asked.clear()
    assert look(engine, command=("program", "other")) == static("/b/program")
    assert not engine.asked


def test_a_mount_of_the_users_shows_another_program(tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(b"#!/none\n")
    engine = Engine("/b/program")
    mounted = (Volume(str(tmp_path), "/b"),)
    assert look(engine, command=("program",)) == static("/b/program")
    assert look(engine, command=("program",), volumes=mounted) == NO_DOUBT
    (tmp_path / "program").write_bytes(STATIC)
    assert look(engine, command=("program",), volumes=mounted) == static("/b/program")
    assert look(engine, command=("program",)) == static("/b/program")


def test_of_what_a_volume_has_nothing_is_known() -> None:
    engine = Engine("/b/program", "/a/program")
    for mount in (Mount("name", "/a", False, "volume"), Mount(None, "/a", False, "tmpfs")):
        assert look(engine, command=("program",), mounts=(mount,)) == NO_DOUBT


def test_a_link_or_a_pipe_of_the_users_is_not_followed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/bin/busybox")
    for name in ("pipe", "link"):
        assert look(Engine(), command=(f"/b/{name}",), volumes=(Volume(str(tmp_path), "/b"),)) == NO_DOUBT
