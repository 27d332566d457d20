"""docs/dev names what there is, and whoever forgets a step of a recipe hears of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from support import CHECKOUT
from vgpurun import abi
from vgpurun.cli import cli
from vgpurun.cli.commands import docker_verbs
from vgpurun.cli.verbs import all_commands
from vgpurun.docs.memory_functions import caught_symbols, without_version
from vgpurun.options.table import DEPRECATED, FLAGS, LEFT_OUT, Flag

PAGES = [CHECKOUT / "CONTRIBUTING.md", CHECKOUT / "ARCHITECTURE.md", *sorted((CHECKOUT / "docs" / "dev").glob("*.md"))]
SOURCES = (".py", ".c", ".h", ".mk", ".yaml", ".yml", ".toml", ".json", ".sh", ".service", ".txt", ".proto", "")
FOLDERS = ("vgpurun", "lib", "tests", "examples", "docs", ".ci", ".github")
MADE_UP = {"cuFooAlloc", "body_cuFooAlloc", "check_it"}
ELSEWHERE = {"cuda.h", "nvml.h", "program.c"}
MADE = ("lib/build", "etc/limits", "run/usage", "slurm/job")  # by a build, or a launch


@cache
def files() -> list[Path]:
    """Below the checkout; what a build made is none."""
    found = [path for name in FOLDERS for path in (CHECKOUT / name).rglob("*")]
    built = set((CHECKOUT / "lib").glob("build*"))
    kept = [path for path in found if path.is_file() and built.isdisjoint(path.parents) and path.suffix != ".pyc"]
    return [*kept, *(path for path in CHECKOUT.iterdir() if path.is_file())]


@cache
def code() -> str:
    """All sources, and the names of the files; what only a page says is in none."""
    kept = [path for path in files() if path.suffix in SOURCES and path != Path(__file__)]
    return "\n".join([*(path.name for path in files()), *(path.read_text() for path in kept)])


@cache
def words() -> set[str]:
    return set(re.findall(r"\w+", code()))


def quoted(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", page.read_text())


def paths(text: str) -> Iterator[str]:
    """Yield what stands for a file or a folder, a word in capitals being any name."""
    for word in re.findall(r"[\w*./-]+", text):
        name = word.rstrip("/.")
        is_path = "/" in name.strip("/") and name.partition("/")[0] in FOLDERS
        if is_path or re.fullmatch(r"[\w-]+\.(py|c|h|md|txt|ya?ml|toml|json|csv)", name):
            yield re.sub(r"\b[A-Z]{3,}(?=[_./]|$)", "*", name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_in_a_page_is_there(page: Path) -> None:
    names = {path.name for path in files()}
    for path in {each for text in quoted(page) for each in paths(text)} - ELSEWHERE - names:
        is_there = any(True for _ in CHECKOUT.glob(path)) or any(each.match(path) for each in files())
        assert is_there or path.startswith(MADE), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_in_a_page_is_one_of_the_code(page: Path) -> None:
    named = {each for text in quoted(page) for each in re.findall(r"[A-Za-z_]\w{3,}", text)} - MADE_UP - words()
    for name in (each for each in named if re.search(r"_|[a-z][A-Z]", each)):
        assert (name.startswith("_") or name.endswith("_")) and name in code(), name


def test_every_caught_function_is_called_by_a_test() -> None:
    """On the simulated driver, or where that has none on a GPU."""
    folders = [CHECKOUT / "tests" / name for name in ("preload", "cuda_driver", "gpu")]
    every = (path for folder in folders for path in folder.rglob("*") if path.suffix in (".c", ".h", ".py"))
    sources = [path for path in every if path.name != "prototypes.py"]
    called = {without_version(name) for path in sources for name in re.findall(r"\bcu[A-Z]\w+", path.read_text())}
    assert {without_version(name) for name in caught_symbols()} - called == set()


def test_every_variable_of_the_library_is_set_by_a_test() -> None:
    folders = [CHECKOUT / "tests" / name for name in ("c", "preload", "engine", "kubernetes")]
    every = (path for folder in folders for path in folder.rglob("*") if path.suffix in (".c", ".py"))
    named = set(re.findall(r"\w+", "\n".join(path.read_text() for path in every)))
    variables = {name: value for name, value in vars(abi).items() if name.startswith("ENV_")}
    assert {name for name, value in variables.items() if not named & {value, name, f"VGPU_{name}"}} == set()


# Handles of the process, and functions, which are their module's.
OUTLIVES_CONTEXTS = {
    "CONTEXT", "GREEN_CONTEXT", "LIBRARY", "KERNEL", "FUNCTION", "GRAPH", "GRAPH_NODE", "GRAPH_EXEC", "POOL",
    "PHYSICAL_MEMORY", "MULTICAST",
}  # fmt: skip


def test_what_the_simulated_driver_makes_in_a_context_goes_with_it() -> None:
    """Else its memory would stay taken until the process ends."""
    sources = CHECKOUT / "lib" / "sim"
    kinds = set(re.findall(r"(?m)^  HANDLE_(\w+),", (sources / "handles.h").read_text())) - {"NONE"}
    text = "".join(path.read_text() for path in sources.glob("*.c"))
    deletions = re.findall(r"void (\w+_delete_of)\(const struct context \*context\) \{(.*?)\n\}", text, re.DOTALL)
    deleted = {kind for _, body in deletions for kind in re.findall(r"HANDLE_(\w+)", body)}
    assert kinds == deleted | OUTLIVES_CONTEXTS and not deleted & OUTLIVES_CONTEXTS
    (ends,) = re.findall(r"void context_deactivate\(.*?\n\}", text, re.DOTALL)
    assert {name for name, _ in deletions} == set(re.findall(r"\w+_delete_of(?=\(context\))", ends))


def words_of(name: str) -> set[str]:
    """The words of the lines of a file of command lines, an option without its value."""
    lines = (CHECKOUT / "tests" / "engine" / name).read_text().splitlines()
    return {word.partition("=")[0] for line in lines if not line.startswith("#") for word in split(line)}


def split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a line that is wrong on purpose
        return line.split()


def names_of(flag: Flag) -> set[str]:
    return {*flag.names.split(", "), *flag.aliases}


def test_every_option_of_docker_run_is_compared_with_dockers() -> None:
    compared = words_of("command_lines.txt")
    assert [flag.names for flag in FLAGS.values() if not names_of(flag) & compared] == []


def test_every_value_of_our_own_options_is_given_wrongly() -> None:
    given = words_of("wrong_inputs.txt")
    dockers = set().union(*map(names_of, (*FLAGS.values(), *LEFT_OUT, *DEPRECATED)))
    for option in cli.commands["run"].params:
        if isinstance(option, click.Option) and not option.is_flag and option.type is not click.BOOL:
            assert {*option.opts} & (given | dockers), option.opts


def test_every_verb_is_given_something_wrong() -> None:
    lines = (CHECKOUT / "tests" / "engine" / "wrong_inputs.txt").read_text().splitlines()
    given = {" ".join(words[1 : 1 + count]) for words in map(split, lines) for count in (1, 2)}
    handed_over = {name for name, command in vars(docker_verbs).items() if isinstance(command, click.Command)}
    assert {words for words, _ in all_commands(cli)} - given == handed_over


def test_the_page_of_slices_has_the_options_of_placement() -> None:
    page = (CHECKOUT / "docs" / "slices.md").read_text()
    create = dict(all_commands(cli))["slice create"]
    names = [option.opts[0] for option in create.params if getattr(option, "group", "") == "Placement"]
    assert len(names) > 5 and [name for name in names if f"`{name}`" not in page] == []
