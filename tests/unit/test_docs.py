"""The documentation's tables come from the code, and name all that there is."""

from __future__ import annotations

import csv
import math
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from support import CHECKOUT
from support.debian_packages import tool
from vgpurun import abi
from vgpurun.cli import cli
from vgpurun.config.schema import DEFAULTS
from vgpurun.docs import manpage
from vgpurun.docs import tables as docs
from vgpurun.docs.variables import VARIABLES
from vgpurun.options.table import LEFT_OUT

DOCUMENTS = sorted(
    path for path in (*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/**/*.md")) if ":begin -->" in path.read_text()
)
# Read from the environment, but not vgpurun's own.
OF_OTHERS = {
    "HOME",
    "PATH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    "XDG_CACHE_HOME",
    "SUDO_UID",
    "RAY_JOB_ID",
    "CUDA_LAUNCH_BLOCKING",
}


def shown_names(parameter: click.Parameter) -> list[str]:
    return parameter.opts if isinstance(parameter, click.Option) and not parameter.hidden else []


def test_every_refused_option_of_docker_has_its_reason_in_the_table() -> None:
    table = docs.refused_table()
    for flag in LEFT_OUT:
        assert f"| `{flag.names}` | It {flag.help}. |" in table


def test_every_option_of_every_verb_is_in_the_table() -> None:
    table = docs.options_table()
    for name, command in cli.commands.items():
        assert f"`vgpurun {name}" in table
        for parameter in command.params:
            for option in shown_names(parameter):
                assert re.search(rf"`[^`]*{re.escape(option)}\b", table), option


def test_every_variable_that_the_code_reads_is_in_the_table() -> None:
    named = {variable.name for variable in VARIABLES}
    of_library = {value for name, value in vars(abi).items() if name.startswith("ENV_")}
    sources = "".join(path.read_text() for path in (CHECKOUT / "vgpurun").rglob("*.py"))
    of_cli = set(re.findall(r"os\.environ(?:\.get\(|\[)\"(\w+)\"", sources))
    of_cli |= set(re.findall(r"envvar=\"(\w+)\"", sources))
    sources_of_library = "".join(path.read_text() for path in (CHECKOUT / "lib" / "src").rglob("*.[ch]"))
    of_library |= set(re.findall(r"getenv\(\"(\w+)\"", sources_of_library))
    assert of_library - OF_OTHERS <= named
    assert of_cli - OF_OTHERS <= named
    assert {"VGPURUN_STATE_DIR", "VGPURUN_LIBRARY", "DOCKER_HOST"} <= of_cli
    assert {key.variable for key in DEFAULTS} <= named


def test_tables_are_one_line_a_row() -> None:
    for line in docs.variables_table().splitlines():
        assert line.startswith("| ")
        assert line.count(" | ") == 1


def test_only_what_is_between_the_markers_changes() -> None:
    text = "before\n<!-- variables:begin -->\nold\n<!-- variables:end -->\nafter\n"
    new = docs.filled(text)
    assert new.startswith("before\n<!-- variables:begin -->\n\n| Variable |")
    assert new.endswith(" |\n\n<!-- variables:end -->\nafter\n")
    assert docs.filled(new) == new
    with pytest.raises(ValueError, match="pairs"):
        docs.filled("<!-- options:begin -->")


def test_writing_and_checking(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("<!-- options:begin -->\n<!-- options:end -->\n")

    def run(*arguments: str) -> int:
        return docs.main([*arguments, str(document)])

    assert run("--check") == 1
    assert run() == 0
    assert run("--check") == 0
    assert "`--mem, --gpu-mem SIZE`" in document.read_text()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_the_documents_are_up_to_date(path: Path) -> None:
    assert docs.filled(path.read_text()) == path.read_text(), "run: make docs"


def test_the_man_page_is_up_to_date() -> None:
    assert (CHECKOUT / "docs" / "vgpurun.1").read_text() == manpage.page(), "run: make docs"


def test_the_man_page_is_sound_roff_and_names_every_option() -> None:
    command = [tool("groff", "groff-base"), "-man", "-ww", "-Tutf8", "-P-cbou", "-rLL=500n"]
    done = subprocess.run(command, input=manpage.page(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for name, verb in cli.commands.items():
        assert f"VGPURUN {name.upper()}" in done.stdout
        for parameter in verb.params:
            for option in shown_names(parameter):
                assert re.search(rf"(?m)^ *[^.]*{re.escape(option)}\b", done.stdout), option


PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
_PLAIN = ("50us", "1ms", "5ms", "graph")
PAGES += [CHECKOUT / "examples" / "README.md", CHECKOUT / "examples" / "report" / "README.md"]


LINKING = {*PAGES, *CHECKOUT.glob("*.md"), *(CHECKOUT / "docs" / "dev").glob("*.md"), CHECKOUT / "lib/sim/README.md"}


def headings(page: Path) -> set[str]:
    """By what a link names them."""
    found = re.findall(r"(?m)^#+ (.*)$", page.read_text())
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", sorted(LINKING), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, heading in re.findall(r"\]\(([^)#: ]*)(?:#([^)]*))?\)", page.read_text()):
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not heading or there.suffix != ".md" or heading in headings(there), f"{target}#{heading}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_vgpurun_is_installed_from_files(page: Path) -> None:
    """No package index has it."""
    assert not re.findall(r"(?:pip|pipx|uv tool) install '?vgpurun\b.*", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_verbs_and_options_in_the_pages_exist(page: Path) -> None:
    for verb, rest in re.findall(r"(?m)^ {4}(?:\$ )?vgpurun ([a-z][a-z-]*)(.*)", page.read_text()):
        assert verb in cli.commands, f"vgpurun {verb}"
        command = cli.commands[verb]
        if isinstance(command, click.Group):
            (below,) = re.findall(r"^ ([a-z-]+)", rest)
            assert below in command.commands, f"vgpurun {verb} {below}"
            command = command.commands[below]
        known = {name for parameter in command.params for name in parameter.opts}
        if verb not in ("run", "local", "exec", "smi"):  # for these, words after the image are another program's
            assert set(re.findall(r"(?<= )--[a-z-]+", rest)) <= known, f"vgpurun {verb} {rest}"


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len((CHECKOUT / "README.md").read_text().split()) <= 1100


def test_every_picture_stands_on_a_page() -> None:
    shown = {name for page in PAGES for name in re.findall(r"pictures/([\w-]+\.\w+)", page.read_text())}
    assert shown == {picture.name for picture in (CHECKOUT / "docs" / "pictures").iterdir()}


def held(page: Path) -> list[tuple[str, str]]:
    """The rows of its table of what happened at which limit."""
    (table,) = re.findall(r"\n\| Limit \| What happened .*\n\|[-|]+\n((?:\|.*\n)+)", page.read_text())
    return [(cells[1].strip(), cells[2].strip()) for cells in (row.split("|") for row in table.splitlines())]


def test_the_figures_of_the_readme_are_those_of_the_page_that_names_their_commands() -> None:
    measured = " ".join(happened for _, happened in held(CHECKOUT / "docs" / "tested.md"))
    for limit, happened in held(CHECKOUT / "README.md"):
        for figure in re.findall(r"\d+(?:\.\d+)?(?: to \d+(?:\.\d+)?)?", happened):
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.])", measured), (limit, figure)


def test_the_figures_of_compute_are_those_that_were_measured() -> None:
    """The claims about kernels of 50 µs to 5 ms and graphs, on the GPU that the page names."""
    text = (CHECKOUT / "docs" / "tested.md").read_text()
    with (CHECKOUT / "docs" / "compute.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["library"] == "main" and row["case"] in _PLAIN]
    assert {row["gpu"] for row in rows} == {"1 x NVIDIA H200, driver 580.159.04"}

    def together(limits: str) -> str:
        found = [float(row["sum %"]) for row in rows if (row["table"], row["limits"]) == ("tenants", limits)]
        return f"{min(found):.1f} to {max(found):.1f} %"

    assert f"| {together('30 / 70')} together; {together('25 / 25 / 25 / 25')} |" in text
    off = [abs(float(row["share %"]) - int(row["limits"])) for row in rows if row["table"] == "shares"]
    assert f"| within {math.ceil(10 * max(off)) / 10} points of the limit |" in text


def test_the_architecture_is_read_in_ten_minutes() -> None:
    assert len((CHECKOUT / "ARCHITECTURE.md").read_text().split()) < 2000


def test_the_pictures_show_what_was_measured() -> None:
    script = CHECKOUT / "tests" / "bench" / "compute" / "picture.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commits_are_named_beside_measurements_alone(page: Path) -> None:
    words = re.findall(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{7}\b", page.read_text())
    assert page.name == "compute.md" or not words
