"""The help texts, and the modules that they load."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator

import click
import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
VERBS = ("run", "local", "build", "build-in-docker", "smi")


def test_help_names_every_verb(run: Run) -> None:
    for arguments in ((), ("--help",)):
        result = run(*arguments)
        assert result.returncode == 0
        assert all(f"  {verb} " in result.stdout for verb in VERBS)
        assert "IMAGE [COMMAND]" in result.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb(run: Run, verb: str) -> None:
    result = run(verb, "--help")
    assert result.returncode == 0
    assert result.stdout.startswith(f"Usage: vgpurun {verb}")
    assert run("help", verb).stdout == result.stdout


def test_no_line_of_a_help_is_wider_than_a_terminal() -> None:
    from vgpurun.cli import cli

    def helps(command: click.Command, name: str) -> Iterator[str]:
        context = click.Context(command, info_name=name, terminal_width=80)
        yield command.get_help(context)
        if isinstance(command, click.Group):
            for verb in command.list_commands(context):
                yield from helps(command.get_command(context, verb) or command, f"{name} {verb}")

    lines = [line for text in helps(cli, "vgpurun") for line in text.splitlines()]
    assert len(lines) > 500 and not [line for line in lines if len(line) > 80]


def test_the_help_of_run_has_a_line_for_nearly_every_option(run: Run) -> None:
    from vgpurun.cli import cli
    from vgpurun.docs.manpage import option_records

    lines = run("run", "--help").stdout.splitlines()
    assert len(lines) <= 150 and sum(line.startswith("  -") for line in lines) > 110
    command = cli.commands["run"]
    meanings = dict(option_records(command, click.Context(command)))
    assert "burst: only while another container wants the GPU" in meanings["--sm-policy POLICY"]


def test_others_and_force_mean_the_same_wherever_they_are() -> None:
    """--others: of another user. --force, as docker has it: what runs, or is in use."""
    from vgpurun.cli import cli
    from vgpurun.cli.verbs import all_commands

    helps: dict[str, dict[str, str]] = {"--others": {}, "--force": {}}
    for words, command in all_commands(cli):
        for parameter in command.params:
            for name in helps.keys() & {*parameter.opts}:
                helps[name][words] = getattr(parameter, "help", "") or ""
    assert helps["--force"].keys() == {"rm", "slice rm", "prune"}, "that of prune does nothing"
    assert not [text for text in helps["--force"].values() if "user" in text]
    changing = {"exec", "start", "restart", "stop", "kill", "rm", "update", "pause", "unpause"}
    assert helps["--others"].keys() == changing | {"suspend", "resume", "move"}
    assert len({*helps["--others"].values()}) == 1


@pytest.mark.parametrize("verb", ["stop", "kill", "start", "restart", "pause", "unpause", "suspend", "resume", "move"])
def test_the_word_of_before_leads_to_the_one_of_now(run: Run, verb: str) -> None:
    result = run(verb, "--force", "c1")
    assert (result.returncode, result.stdout) == (125, "")
    assert "--force; for a container of another user it is --others" in result.stderr


def test_help_is_fast(environment: dict[str, str]) -> None:
    def processor_seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "vgpurun", "run", "--help"]
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # The help takes about 0.12 s, and a busy machine takes longer for the same work.
    assert any(processor_seconds() < 0.4 for _ in range(5))


def test_verbs_are_loaded_where_they_are_said_to_be() -> None:
    from vgpurun.cli import cli
    from vgpurun.cli.verbs import OTHER_WORDS, VERBS

    for verb, _, line in (each for verbs in VERBS.values() for each in verbs):
        assert cli.commands[verb].name == verb and verb not in OTHER_WORDS
        assert cli.commands[verb].get_short_help_str(200) == line


@pytest.mark.parametrize("verb", ["slice", "cdi"])
def test_verbs_of_a_verb_are_listed_with_whole_sentences(run: Run, verb: str) -> None:
    listed = run(verb).stdout.partition("Commands:")[2]
    assert "\n  inspect  Show" in listed or "\n  remove    Remove" in listed
    assert not [line for line in listed.splitlines() if line.endswith("...")], listed


@pytest.mark.parametrize("verb", ["", "ps", "smi", "stop"])
def test_help_starts_without_what_is_slow_to_load(verb: str, environment: dict[str, str]) -> None:
    code = (
        "import sys\n"
        "from vgpurun.cli import main\n"
        "code = main([*sys.argv[1:], '--help'])\n"
        "print(sorted({'docker', 'requests', 'rich', 'yaml'} & set(sys.modules)))\n"
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", code, *([verb] if verb else [])]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout.splitlines()[-1]) == (0, "[]"), result
