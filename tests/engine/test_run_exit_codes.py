"""Docker's exit codes, and nothing left behind whatever they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import Cli


@pytest.mark.parametrize("code", [0, 1, 3, 125, 126, 127, 255])
def test_the_exit_code_is_the_commands(vgpurun: Cli, debian: str, code: int) -> None:
    result = vgpurun.run("--mem", "1g", debian, "sh", "-c", f"exit {code}")
    assert (result.exit_code, result.stdout) == (code, "")
    vgpurun.assert_nothing_left()


def test_a_command_killed_by_a_signal_gives_128_and_its_number(vgpurun: Cli, debian: str) -> None:
    # Process 1 of a container ignores signals, so it is the shell that reports its child.
    result = vgpurun.run(debian, "sh", "-c", "sh -c 'kill -9 $$'; exit $?")
    assert result.exit_code == 137
    vgpurun.assert_nothing_left()


def test_pull_always_asks_for_an_image_that_is_here(vgpurun: Cli, debian: str) -> None:
    """No registry has the tests' images: that it was asked shows in its answer."""
    result = vgpurun.run("--pull", "always", debian, "true")
    assert result.exit_code == 125 and f"image {debian} cannot be pulled" in result.stderr
    assert vgpurun.run("--pull", "missing", debian, "true").exit_code == 0


def test_a_word_that_cannot_be_pulled_is_no_verb_either(vgpurun: Cli) -> None:
    vgpurun.environment["VGPURUN_DRIVER"] = "sim"
    for words, is_hinted in ((("fancyword",), True), (("run", "fancyword"), False), (("fancyword:1",), False)):
        result = vgpurun(*words)
        assert result.exit_code == 125 and "cannot be pulled" in result.stderr
        assert ("nor is 'fancyword' a verb, which vgpurun --help lists" in result.stderr) == is_hinted
        assert "Traceback" not in result.stderr
    vgpurun.assert_nothing_left()


def test_a_helper_for_credentials_that_is_missing_is_named_once(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"credsStore": "nowhere"}')
    vgpurun.environment["DOCKER_CONFIG"] = str(tmp_path)
    result = vgpurun.run("--pull", "always", debian, "true")
    assert result.exit_code == 125 and result.stderr.count("docker-credential-nowhere") == 1, result.stderr


def test_a_name_that_is_taken_is_125_and_leaves_its_owner_alone(vgpurun: Cli, debian: str) -> None:
    assert vgpurun.run("-d", "--name", "taken", debian, "sleep", "60").exit_code == 0
    states = vgpurun.states()
    vgpurun.run("--name", "taken", debian, "true").assert_refused("taken")
    assert [container.name for container in vgpurun.containers()] == ["taken"]
    assert vgpurun.containers()[0].status == "running"
    assert vgpurun.states() == states


def test_output_and_errors_stay_apart_and_whole(vgpurun: Cli, debian: str) -> None:
    script = "import sys; sys.stdout.write('o' * 300000); sys.stderr.write('e' * 200000)"
    result = vgpurun.run(debian, "python3", "-c", script)
    assert result == type(result)(0, "o" * 300000, "e" * 200000)
