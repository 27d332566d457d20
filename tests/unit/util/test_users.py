"""Owners of containers."""

from __future__ import annotations

import os
import pwd

import pytest

from support.second_user import UID, as_second_user, needs_two_users
from vgpurun.util import users


def test_the_process_s_own_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    assert users.current_user() == users.name_of(os.getuid())


@needs_two_users
def test_under_sudo_it_is_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "1")
    assert users.current_user() == pwd.getpwuid(1).pw_name


@needs_two_users
def test_only_root_can_be_under_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "1")
    with as_second_user():
        assert users.current_user() == str(UID)


def test_a_user_without_a_name_is_a_number() -> None:
    assert users.name_of(3_999_999_999) == "3999999999"
