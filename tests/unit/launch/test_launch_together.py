"""Launches that cannot work at the same time as others are refused with the way out."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from vgpurun.errors import OptionError, TogetherError
from vgpurun.host import mps
from vgpurun.host.drivers import EngineFacts
from vgpurun.host.gpus import DriverFacts, Gpu
from vgpurun.launch import together
from vgpurun.launch.container_user import ContainerUser
from vgpurun.limits.model import DeviceQuota, Limits
from vgpurun.limits.nested import Share, quotas_within
from vgpurun.limits.quota import Quota
from vgpurun.options import ContainerOptions
from vgpurun.slices.store import Slice

GIB = 1 << 30
GPU = Gpu(0, "GPU-0", "a GPU", 80 * GIB, 0, "0000:01:00.0")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A host where they can; returns the program that starts servers."""
    program = tmp_path / mps.CONTROL
    program.touch()
    monkeypatch.setenv("PATH", f"/nowhere:{tmp_path}")
    monkeypatch.setattr(together, "read_driver", lambda _: DriverFacts("580.1", "13.0", ()))
    monkeypatch.setattr(together, "CONTROL_DEVICE", tmp_path)
    return program


def test_the_program_is_found_on_the_path(host: Path) -> None:
    assert together.server_program([GPU], "host") == (host, "libcuda.so.1")


def test_a_host_without_the_program_is_refused(host: Path) -> None:
    host.unlink()
    with pytest.raises(TogetherError, match=r"is not on the PATH.*nvidia-compute-utils.*without --together"):
        together.server_program([GPU], "host")


def test_an_old_driver_is_refused(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "read_driver", lambda _: DriverFacts("575.57", "12.9", ()))
    with pytest.raises(TogetherError, match=r"the driver 575\.57 is too old.*580 or newer"):
        together.server_program([GPU], "host")


def test_wsl2_and_mig_are_refused(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TogetherError, match="GPU 0:1 is a MIG instance"):
        together.server_program([replace(GPU, mig_index=1)], "host")
    monkeypatch.setattr(together, "CONTROL_DEVICE", host / "missing")
    with pytest.raises(TogetherError, match="as WSL2"):
        together.server_program([GPU], "host")


def test_gpus_of_different_time_are_refused(host: Path) -> None:
    quotas = [DeviceQuota(GPU, Quota(GIB, percent)) for percent in (30, 60)]
    with pytest.raises(OptionError, match="one --sm for all its GPUs"):
        together.for_together(quotas, "host", False, ())
    (made, _) = together.for_together([quotas[0]] * 2, "host", False, ("ann",))
    assert made.quota.together


@pytest.mark.parametrize(
    ("user", "facts", "words"),
    [
        (ContainerUser("web", 33, frozenset()), EngineFacts(), "would be user web's.*add --user"),
        (None, EngineFacts(), "a user that its image does not tell"),
        (ContainerUser("me", os.geteuid(), frozenset()), EngineFacts(is_rootless=True), "rootless"),
    ],
)
def test_containers_of_other_users_are_refused(user: ContainerUser | None, facts: EngineFacts, words: str) -> None:
    with pytest.raises(TogetherError, match=words):
        together.check_container_user(user, facts)


def test_a_container_of_this_user_is_let_in() -> None:
    together.check_container_user(ContainerUser("me", os.geteuid(), frozenset()), EngineFacts())
    together.check_options(ContainerOptions("image", fields={"HostConfig.IpcMode": "host"}))


@pytest.mark.parametrize(("scope", "is_refused"), [("0", False), ("1", True), (None, False)])
def test_a_time_limit_that_cannot_be_held_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scope: str | None, is_refused: bool
) -> None:
    """Root may look into any process; another user into its own, unless the kernel keeps them apart."""
    yama = tmp_path / "ptrace_scope"
    if scope is not None:
        yama.write_text(f"{scope}\n")
    monkeypatch.setattr(together, "YAMA", yama)
    limited = Slice("team", tmp_path, (("GPU-0", Quota(GIB, 60, together=True)),), "ann")
    if is_refused:
        with pytest.raises(TogetherError, match=r"cannot be limited.*kernel\.yama\.ptrace_scope=0"):
            together.check_slice(limited, 1000, "ann")
    else:
        together.check_slice(limited, 1000, "ann")
    together.check_slice(limited, 0, "ann")
    together.check_slice(replace(limited, quotas=(("GPU-0", Quota(GIB, together=True)),)), 1000, "ann")


def test_a_part_has_sms_and_no_time() -> None:
    whole = Share(Path("/team"), (("GPU-0", Quota(40 * GIB, 60, together=True)),))
    (part,) = quotas_within(whole, [GPU], Limits.read("10g", "50"))
    assert part.quota == Quota(10 * GIB, together=True, sms_percent=50)
    (inner,) = quotas_within(Share(Path("/part"), (("GPU-0", part.quota),), 2), [GPU], Limits.read("1g", "50"))
    assert inner.quota == Quota(GIB, together=True, sms_percent=25)
