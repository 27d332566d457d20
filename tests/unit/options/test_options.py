"""Docker's value syntax. For what docker itself makes of the same text, see tests/engine/test_docker_witness.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vgpurun.engine.request import mount_json
from vgpurun.errors import OptionError
from vgpurun.options import Mount, Volume, devices, files, mounts, network, values
from vgpurun.options.build import container_options
from vgpurun.options.table import FLAGS, LEFT_OUT


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
        ("../a:/b", Volume(os.path.abspath("../a"), "/b")),
    ],
)
def test_volumes(text: str, volume: Volume) -> None:
    assert mounts.volume(text) == volume


def test_a_volume_as_the_engine_wants_it() -> None:
    assert str(mounts.volume("/a:/b:ro")) == "/a:/b:ro"
    assert mounts.volume("/a:/b:z,ro").read_only
    assert not mounts.volume("/a:/b").read_only


@pytest.mark.parametrize("text", ["", ":", "/a:", ":/b", "/a:b", "a", "/a:/b:ro:x"])
def test_volumes_that_cannot_be_read(text: str) -> None:
    with pytest.raises(OptionError, match="-v, --volume"):
        FLAGS["volume"].read([text])


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
    assert mounts.mount(text) == mount


@pytest.mark.parametrize(
    "text",
    [
        "",
        "type=bind",
        "type=,target=/b",
        "type=bind,source=/a,target=",
        "type=bind,source=/a,target=/b,bind-recursive=writable",
        "type=bind,source=/a,target=/b,bind-create-src=maybe",
        "type=bind,source=/a,target=b",
        "type=bind,source=/a,target=/b,tmpfs-size=1m",
        "type=tmpfs,target=/b,tmpfs-size=big",
        "type=tmpfs,target=/b,tmpfs-mode=99",
        "type=bind,source=/a,target=/b,color=blue",
        "type=bind,source=/a,target=/b,readonly=maybe",
        "type=bind,source=/a,target=/b,bind-recursive=maybe",
        "type=volume,target=/b,volume-nocopy=maybe",
    ],
)
def test_mounts_that_cannot_be_read(text: str) -> None:
    with pytest.raises(OptionError, match="--mount"):
        FLAGS["mount"].read([text])


def test_mounts_in_the_engines_words() -> None:
    made = mount_json(mounts.mount("type=bind,source=/a,target=/b,bind-create-src"))
    assert made["BindOptions"] == {"CreateMountpoint": True}
    assert mount_json(mounts.mount("type=bind,source=/a,target=/b,ro,bind-propagation=rslave")) == {
        "Type": "bind",
        "Source": "/a",
        "Target": "/b",
        "ReadOnly": True,
        "BindOptions": {"Propagation": "rslave"},
    }


def test_environment(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_bytes("\ufeff# comment\n\n  A=from file\nB=b # kept\nHOST\nMISSING\nE=\n".encode())
    host = {"HOST": "h", "ALSO": "too"}
    assert files.environment(["A=x=y", "ALSO", "GONE"], [str(file)], host) == {
        "A": "x=y",
        "B": "b # kept",
        "HOST": "h",
        "E": "",
        "ALSO": "too",
        "GONE": None,
    }


@pytest.mark.parametrize("argument", ["", "=x"])
def test_a_variable_without_a_name(argument: str) -> None:
    with pytest.raises(OptionError, match="-e"):
        files.given_environment([argument], [])


def test_environment_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no such file"):
        files.environment([], [str(tmp_path / "missing")])
    (tmp_path / "bad").write_text("A=1\nnot a name=x\n")
    with pytest.raises(OptionError, match="'not a name' contains whitespaces"):
        files.environment([], [str(tmp_path / "bad")])
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match="invalid utf8 bytes at line 1"):
        files.environment([], [str(tmp_path / "binary")])


def test_labels(tmp_path: Path) -> None:
    file = tmp_path / "labels"
    file.write_text("a=file\nonly=file\n")
    assert files.labels([("a", "b=c"), ("d", "")], [str(file)]) == {"a": "b=c", "only": "file", "d": ""}
    for text in ("=x", "vgpurun.state=/elsewhere", "a b=c"):
        with pytest.raises(OptionError, match="--label"):
            FLAGS["label"].read([text])
    file.write_text("vgpurun.state=/elsewhere\n")
    with pytest.raises(OptionError, match="vgpurun's own"):
        files.labels([], [str(file)])


def test_a_security_profile_is_read_from_its_file(tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text('{"a":  [1]}')
    assert files.security_option(f"seccomp={profile}") == 'seccomp={"a":[1]}'
    profile.write_text("{")
    with pytest.raises(ValueError, match="compacting json"):
        files.security_option(f"seccomp={profile}")


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (values.size, "64m", 64 << 20),
        (values.size, "1.5G", 3 << 29),
        (values.size, "100", 100),
        (values.size, "2KiB", 2048),
        (values.size, "7b", 7),
        (values.size_or_unlimited, "-1", -1),
        (values.cpus, "1.5", 1_500_000_000),
        (values.cpus, ".001", 1_000_000),
        (values.duration, "1h1m1.5s", 3_661_500_000_000),
        (values.duration, "0", 0),
        (values.ulimit, "nofile=1:2", {"Name": "nofile", "Soft": 1, "Hard": 2}),
        (values.ulimit, "memlock=-1", {"Name": "memlock", "Soft": -1, "Hard": -1}),
        (values.extra_host, "a:::1", "a:::1"),
        (values.extra_host, "a=[::1]", "a:::1"),
        (values.restart_policy, "on-failure:3", {"Name": "on-failure", "MaximumRetryCount": 3}),
        (devices.device, "vendor.com/class=one", "vendor.com/class=one"),
        (
            devices.device,
            "/dev/a:/dev/b:r",
            {"PathOnHost": "/dev/a", "PathInContainer": "/dev/b", "CgroupPermissions": "r"},
        ),
        (network.published_port, "[::1]:5:6/udp", {"6/udp": [{"HostIp": "::1", "HostPort": "5"}]}),
        (network.published_port, "7000", {"7000/tcp": [{"HostIp": "", "HostPort": ""}]}),
        (network.exposed_ports, "1-2/sctp", {"1/sctp": {}, "2/sctp": {}}),
    ],
)
def test_values(parse: Callable[[str], Any], text: str, value: Any) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((values.size, text) for text in ("", "m", "-1", "1x", "1 2", "1..2", "8e", "1e999", "8388608t")),
        *((values.cpus, text) for text in ("", "1/0", "x", "0.0000000001", "1e99", "1e999999999")),
        *((values.duration, text) for text in ("", "5", "s", "1x", "1 s")),
        *((values.ulimit, text) for text in ("", "nofile", "nofile=", "nofile=2:1", "foo=1", "nofile=-1:5")),
        *((values.container_name, text) for text in ("x", "-x", "a/b", "ä1", "two words")),
        *((values.integer, text) for text in ("", "1.5", "x")),
        *((values.mac_address, text) for text in ("02:42", "02:42:ac:11:00:0g", "02:42-ac:11:00:02")),
        *((devices.device, text) for text in ("", "a", "/a:b", "/a:/b:x", "/a:/b:r:w", "nvidia.com/gpu=0")),
        *((network.published_port, text) for text in ("", ":", "a", "1:2:3", "80/icmp", "1-2:3-5", "70000", "x:1:2")),
        *((network.network, text) for text in ("alias=a", "name=a,b=c", "name=a,driver-opt=b")),
    ],
)
def test_values_that_cannot_be_read(parse: Callable[[str], Any], text: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (each has words of its own)
        parse(text)
    assert str(caught.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("linux/amd64/v1", "linux/amd64"),
        ("linux/arm64/v8", "linux/arm64/v8"),
        ("linux/aarch64/9", "linux/arm64/v9"),
        ("linux/arm/7", "linux/arm/v7"),
        ("armhf", "linux/arm"),
        ("linux/armel", "linux/arm/v6"),
        ("linux/i386/x", "linux/386"),
        ("linux(6.1+a)/x86_64", "linux/amd64"),
        ("macos/arm64", "darwin/arm64"),
        ("mips64", "linux/mips64"),
    ],
)
def test_platforms_by_dockers_names(text: str, name: str) -> None:
    assert values.platform(text) == name


def test_a_gpu_comes_with_its_limits_only() -> None:
    with pytest.raises(OptionError, match="--gpus"):
        FLAGS["device"].read(["nvidia.com/gpu=all"])


@pytest.mark.parametrize(
    ("text", "choice", "capabilities"),
    [
        ("all", "all", ""),
        ("-1", "all", ""),
        ("count=-1", "all", ""),
        ("+2", "2", ""),
        ("2", "2", ""),
        ("0", "0", ""),
        ("device=0,2", "device=0,2", ""),
        ('"device=0,2"', "device=0,2", ""),
        ('"device=0,2","capabilities=compute,utility"', "device=0,2", "compute,utility"),
        ("device=all", "all", ""),
        ('driver=cdi,"device=nvidia.com/gpu=0,nvidia.com/gpu=1"', "device=0,1", ""),
        ("count=0,device=1", "device=1", ""),
        ("all,capabilities=utility", "all", "utility"),
        ("driver=nvidia,count=all", "all", ""),
        ("driver=nvidia", "1", ""),
        ("GPU-0123", "GPU-0123", ""),
        ("0,1", "0,1", ""),
    ],
)
def test_gpus_as_docker_writes_them(text: str, choice: str, capabilities: str) -> None:
    assert devices.gpus(text) == (choice, capabilities, "")


def test_options_of_gpus_are_told_apart_from_what_chooses_them() -> None:
    assert devices.gpus('count=1,driver=nvidia,"options=foo=bar,baz=qux"') == ("1", "", "foo=bar,baz=qux")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("count=x", r"invalid count \(x\)"),
        ("memory=2g", "unexpected key 'memory' in 'memory=2g'"),
        ("count=1,count=2", "'count' can be specified only once"),
        ("all,count=1", "'count' can be specified only once"),
        ("all,all", "'all' can be specified only once"),
        ("count=1,device=0", "cannot set both Count and DeviceIDs"),
        ("driver=amd", "no driver 'amd'"),
    ],
)
def test_gpus_that_docker_or_its_engine_refuses(text: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        devices.gpus(text)


def test_what_is_wrong_names_the_option_and_the_text_as_docker_does() -> None:
    with pytest.raises(OptionError, match='invalid argument "x" for "-m, --memory" flag: invalid size: \'x\''):
        FLAGS["memory"].read(["x"])


def test_the_later_of_two_counts_and_lists_grow() -> None:
    given = {"memory": "1g", "publish": ("1:80", "2:80"), "cap_add": ("sys_admin", "all"), "rm": True, "init": False}
    options = container_options("image", (), given)
    assert options.remove
    assert options.fields == {
        "HostConfig.Memory": 1 << 30,
        "HostConfig.CapAdd": ["ALL", "CAP_SYS_ADMIN"],
        "HostConfig.PortBindings": {"80/tcp": [{"HostIp": "", "HostPort": "1"}, {"HostIp": "", "HostPort": "2"}]},
        "ExposedPorts": {"80/tcp": {}},
    }


def test_every_option_has_help_and_no_name_twice() -> None:
    flags = [*FLAGS.values(), *LEFT_OUT]
    names = [name for flag in flags for name in (*flag.names.split(", "), *flag.aliases)]
    assert len(names) == len(set(names))
    assert all(flag.help for flag in flags)
