"""Docker's value syntax."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpurun.api_json import mount_json
from vgpurun.errors import OptionError
from vgpurun.options import (
    Mount,
    Volume,
    check_name,
    parse_bytes,
    parse_environment,
    parse_labels,
    parse_mount,
    parse_volume,
)


@pytest.mark.parametrize(
    ("text", "volume"),
    [
        ("/a:/b", Volume("/a", "/b")),
        ("/a:/b:ro", Volume("/a", "/b", "ro")),
        ("/a:/b:ro,z", Volume("/a", "/b", "ro,z")),
        ("data:/b", Volume("data", "/b")),
        ("/b", Volume(None, "/b")),
        ("./a:/b", Volume(f"{os.getcwd()}/a", "/b")),
        (".:/b", Volume(os.getcwd(), "/b")),
        ("../a:/b", Volume(f"{os.path.dirname(os.getcwd())}/a", "/b")),
    ],
)
def test_volumes(text: str, volume: Volume) -> None:
    assert parse_volume(text) == volume


def test_a_volume_as_the_engine_wants_it() -> None:
    assert str(parse_volume("/a:/b:ro")) == "/a:/b:ro"
    assert parse_volume("/a:/b:z,ro").read_only
    assert not parse_volume("/a:/b").read_only


@pytest.mark.parametrize("text", ["", ":", "/a:", ":/b", "/a:b", "a", "/a:/b:ro:x", "a b:/c", "~/a:/b", "a/b:/c"])
def test_volumes_that_cannot_be_read(text: str) -> None:
    with pytest.raises(OptionError, match="-v"):
        parse_volume(text)


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("type=bind,source=/a,target=/b", Mount("/a", "/b", False)),
        ("type=bind,src=/a,dst=/b,readonly", Mount("/a", "/b", True)),
        ("type=bind,src=/a,destination=/b,ro=false", Mount("/a", "/b", False)),
        ("source=data,target=/b", Mount("data", "/b", False, "volume")),
        ('type=bind,"source=/a,b",target=/b', Mount("/a,b", "/b", False)),
        ("type=tmpfs,target=/b,tmpfs-size=1m", Mount(None, "/b", False, "tmpfs", (("tmpfs-size", "1m"),))),
    ],
)
def test_mounts(text: str, mount: Mount) -> None:
    assert parse_mount(text) == mount


@pytest.mark.parametrize(
    "text",
    [
        "",
        "type=bind",
        "type=bind,target=/b",
        "type=bind,source=a,target=/b",
        "type=bind,source=/a,target=b",
        "type=npipe,source=/a,target=/b",
        "type=tmpfs,source=/a,target=/b",
        "type=bind,source=/a,target=/b,tmpfs-size=1m",
        "type=tmpfs,target=/b,tmpfs-size=big",
        "type=tmpfs,target=/b,tmpfs-mode=99",
        "type=bind,source=/a,target=/b,color=blue",
        "type=bind,source=/a,target=/b,readonly=maybe",
    ],
)
def test_mounts_that_cannot_be_read(text: str) -> None:
    with pytest.raises(OptionError, match="--mount"):
        parse_mount(text)


def test_mounts_in_the_engines_words() -> None:
    assert mount_json(parse_mount("type=bind,source=/a,target=/b,ro,bind-propagation=rslave")) == {
        "Type": "bind",
        "Source": "/a",
        "Target": "/b",
        "ReadOnly": True,
        "BindOptions": {"Propagation": "rslave"},
    }
    assert mount_json(parse_mount("type=tmpfs,target=/b,tmpfs-size=1m,tmpfs-mode=1777"))["TmpfsOptions"] == {
        "SizeBytes": 1 << 20,
        "Mode": 0o1777,
    }
    volume = (
        "source=v,target=/b,volume-nocopy,volume-driver=local,volume-opt=type=nfs,volume-opt=o=addr=x,volume-label=k=v"
    )
    assert mount_json(parse_mount(volume))["VolumeOptions"] == {
        "NoCopy": True,
        "Labels": {"k": "v"},
        "DriverConfig": {"Name": "local", "Options": {"type": "nfs", "o": "addr=x"}},
    }


def test_environment(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_bytes("\ufeff# comment\n\n  A=from file\nB=b # kept\nHOST\nMISSING\nE=\n".encode())
    host = {"HOST": "h", "ALSO": "too"}
    assert parse_environment(["A=x=y", "ALSO", "GONE"], [str(file)], host) == {
        "A": "x=y",
        "B": "b # kept",
        "HOST": "h",
        "E": "",
        "ALSO": "too",
    }


@pytest.mark.parametrize("argument", ["", "=x"])
def test_a_variable_without_a_name(argument: str) -> None:
    with pytest.raises(OptionError, match="-e"):
        parse_environment([argument], [])


def test_environment_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="No such file"):
        parse_environment([], [str(tmp_path / "missing")])
    (tmp_path / "bad").write_text("A=1\nnot a name=x\n")
    with pytest.raises(OptionError, match="line 2: 'not a name'"):
        parse_environment([], [str(tmp_path / "bad")])
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match="UTF-8"):
        parse_environment([], [str(tmp_path / "binary")])


def test_labels() -> None:
    assert parse_labels(["a=b=c", "d"]) == {"a": "b=c", "d": ""}
    for text in ("=x", "vgpurun.state=/elsewhere"):
        with pytest.raises(OptionError, match="--label"):
            parse_labels([text])


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("64m", 64 << 20), ("1g", 1 << 30), ("1.5G", 3 << 29), ("100", 100), ("2KiB", 2048), ("7b", 7)],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_bytes(text, "--shm-size") == size_bytes


@pytest.mark.parametrize("text", ["", "m", "-1", "1x", "1 2"])
def test_sizes_that_cannot_be_read(text: str) -> None:
    with pytest.raises(OptionError, match="--shm-size"):
        parse_bytes(text, "--shm-size")


def test_container_names() -> None:
    assert check_name("my_box.1-x") == "my_box.1-x"
    for name in ("", "x", "-x", "a/b", "ä1"):
        with pytest.raises(OptionError, match="--name"):
            check_name(name)
