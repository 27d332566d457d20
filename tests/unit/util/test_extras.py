"""The way out where an optional package is not installed."""

from __future__ import annotations

import sys

import pytest

from support import CHECKOUT
from vgpurun.errors import ExtraError
from vgpurun.util import extras


def said(extra: str) -> str:
    with pytest.raises(ExtraError) as caught, extras.needs_extra(extra):
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401
    return str(caught.value).partition("no_such_package is missing: ")[2]


def test_pip_where_it_is_and_otherwise_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", {"pip": "there"}.get)
    assert said("report") == f"{sys.executable} -m pip install 'vgpurun[report]'"
    monkeypatch.setattr(extras, "find_spec", {}.get)
    assert said("report") == f"uv pip install --python {sys.executable} 'vgpurun[report]'"


def test_debian_s_own_packages_beside_the_deb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "__file__", "/usr/lib/vgpurun/vgpurun/util/extras.py")
    packages = said("report").removeprefix("apt install ")
    assert f"Suggests: {packages.replace(' ', ', ')}\n" in (CHECKOUT / "lib/packaging/debian/control").read_text()
    assert said("k8s") == 'in a virtual environment, pip install "$(echo vgpurun-*.whl)[k8s]"'
