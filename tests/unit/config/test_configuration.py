"""Configuration files: what may stand in them, which value counts, and what a mistake is called."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support import command_line
from vgpurun.cli import cli
from vgpurun.cli.verbs import all_commands
from vgpurun.config import values as config
from vgpurun.config.file import ConfigFile, read_config
from vgpurun.config.schema import DEFAULTS, MAXIMA
from vgpurun.config.values import Config
from vgpurun.errors import ConfigError
from vgpurun.limits.quota import parse_size

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "config.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


ADMIN = """\
defaults:
  mem: 25%
  sm: 50
  gpus: [0, 1]
  overcommit: true
quotas:
  default:
    memory: 16g
    containers: 4
  groups:
    staff: {memory: 32g, overcommit: false}
    students:
      memory: 8g
      sm_per_gpu: 30
  users:
    alice: {memory: unlimited, gpus: [2]}
"""


def test_every_value_and_its_line(write: Write) -> None:
    path = write(ADMIN)
    admin = read_config(path, is_admins=True)
    found = {name: (each.value, each.origin) for name, each in admin.defaults.items()}
    assert found == {
        "mem": ("25%", f"{path}:2"),
        "sm": ("50", f"{path}:3"),
        "gpus": ("device=0,1", f"{path}:4"),
        "overcommit": (True, f"{path}:5"),
    }
    assert admin.everybody["memory"].value == parse_size("16g")
    assert admin.users["alice"]["memory"].value is None
    assert admin.users["alice"]["gpus"].value == ("2",)
    assert admin.groups["students"]["sm_per_gpu"].origin == f"{path}:14"


@pytest.mark.parametrize("where", ["defaults: {mem: 4}", "quotas: {default: {memory_per_gpu: 4}}"])
def test_a_size_without_its_unit_is_a_slip(write: Write, where: str) -> None:
    with pytest.raises(ConfigError, match=r"'4' is 4 bytes, .* write 4g or 4m"):
        read_config(write(where), is_admins=True)


@pytest.mark.parametrize(
    ("user", "groups", "expected"),
    [
        ("bob", [], {"memory": "16g", "containers": 4}),
        ("bob", ["students"], {"memory": "8g", "sm_per_gpu": 30, "containers": 4}),
        ("bob", ["students", "staff"], {"memory": "32g", "sm_per_gpu": 30, "containers": 4, "overcommit": False}),
        ("alice", ["students"], {"memory": None, "sm_per_gpu": 30, "containers": 4, "gpus": ("2",)}),
    ],
    ids=["default", "group", "two groups", "own"],
)
def test_whose_quota_counts(write: Write, user: str, groups: list[str], expected: dict[str, object]) -> None:
    """Each value by itself: the user's, the first group's in the file, everybody's."""
    both = Config(read_config(write(ADMIN), is_admins=True), ConfigFile())
    found = {name: getattr(each.value, "text", each.value) for name, each in both.quotas(user, groups).items()}
    assert found == expected


def test_the_order_of_precedence(write: Write) -> None:
    admin = read_config(write("defaults: {mem: 1g, sm: 10, place: binpack}"), is_admins=True)
    user = read_config(write("defaults: {mem: 2g, sm: 20}", "user.yaml"), is_admins=False)
    both = Config(admin, user)
    environment = {"VGPURUN_MEM": "3g", "VGPURUN_SM": " "}
    names = ("mem", "sm", "place", "pull")
    assert [both.default(name, environment).value for name in names] == ["3g", "20", "binpack", "missing"]
    assert both.default("mem", environment).origin == "VGPURUN_MEM"
    assert both.default("sm", environment).origin.endswith("user.yaml:1")
    assert both.default("pull", environment).origin == "built in"


def test_a_variable_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ConfigError, match=r"VGPURUN_PLACE=wide: 'wide' is not one of spread, binpack; .*unset"):
        Config(ConfigFile(), ConfigFile()).default("place", {"VGPURUN_PLACE": "wide"})


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("default:\n  mem: 1g\n", 1, "unknown key 'default' in the file; did you mean 'defaults'?"),
        ("defaults:\n  memm: 1g\n", 2, "unknown key 'memm' in defaults; did you mean 'mem'?"),
        ("defaults:\n  color: red\n", 2, "unknown key 'color' in defaults; there are mem, sm, gpus"),
        (
            "quotas:\n  users:\n    bob:\n      memroy: 1g\n",
            4,
            "unknown key 'memroy' in quotas; did you mean 'memory'?",
        ),
        ("quotas:\n  user: {}\n", 2, "did you mean 'users'?"),
        ("defaults:\n  sm: 50\n  mem: lots\n", 3, "mem: memory limit 'lots' is not a size"),
        ("defaults:\n  sm: 101\n", 2, "sm: compute limit '101' is more than the whole GPU"),
        ("defaults:\n  mem: [1g]\n", 2, "mem needs one value, such as 25%"),
        ("defaults:\n  mem:\n", 2, "mem needs one value"),
        ("defaults:\n  mem: {a: b}\n", 2, "mem needs one value"),
        ("defaults:\n  gpus: [[0]]\n", 2, "gpus needs a value or a list of values"),
        ("defaults:\n  gpus: some of them\n", 2, "gpus: 'some of them' is not all, a count, or a list"),
        ("defaults:\n  place: tight\n", 2, "place: 'tight' is not one of spread, binpack"),
        ("defaults:\n  overcommit: maybe\n", 2, "overcommit: 'maybe' is neither true nor false"),
        ("defaults:\n  wait: soon\n", 2, "wait: --wait=soon is not a time"),
        ("quotas:\n  default:\n    sm_per_gpu: 200\n", 3, "sm_per_gpu: '200' is not a whole number from 0 to 100"),
        ("quotas:\n  default:\n    containers: -1\n", 3, "containers: '-1' is not a whole number"),
        ("quotas:\n  default:\n    gpus: [a b]\n", 3, "gpus: 'a b' is not a list of GPUs"),
        ("defaults:\n  mem: 1g\n  mem: 2g\n", 3, "mem is there twice"),
        ("- mem\n", 1, "the file must be lines of the form 'key: value'"),
        ("defaults: 5\n", 1, "defaults must be lines of the form"),
        ("quotas:\n  users: [bob]\n", 2, "users must be lines of the form"),
        ("defaults:\n  ? [a]\n  : b\n", 2, "a key in defaults must be one word"),
        ("defaults:\n  mem: 1g\n bad\n", 3, "this is not YAML"),
        ("defaults:\n\tmem: 1g\n", 2, "this is not YAML"),
        ("defaults: {}\n---\ndefaults: {}\n", 2, "this is not YAML"),
        ("defaults: *nowhere\n", 1, "this is not YAML"),
    ],
    ids=lambda value: value if isinstance(value, str) and "\n" in value else "",
)
def test_a_mistake_is_one_line_with_its_place(write: Write, text: str, line: int, words: str) -> None:
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        read_config(path, is_admins=True)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_quotas_are_the_administrators(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"/etc/vgpurun/config\.yaml"):
        read_config(write(ADMIN), is_admins=False)


@pytest.mark.parametrize("text", ["", "# nothing\n", "defaults:\nquotas:\n  users:\n    bob:\n", "{}"], ids=repr)
def test_what_says_nothing_is_valid(write: Write, text: str) -> None:
    both = Config(read_config(write(text), is_admins=True), ConfigFile())
    assert both.quotas("bob", []) == {}
    assert both.default("mem", {}).value is None


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert read_config(tmp_path / "none" / "config.yaml", is_admins=True) == ConfigFile()
    with pytest.raises(ConfigError, match=f"{tmp_path}: Is a directory"):
        read_config(tmp_path, is_admins=True)
    (tmp_path / "latin").write_bytes(b"defaults: {mem: \xff}")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_config(tmp_path / "latin", is_admins=True)


def test_nonsense_is_a_mistake_and_no_crash(write: Write) -> None:
    with pytest.raises(ConfigError):
        read_config(write("a: &a [*a]"), is_admins=True)
    with pytest.raises(ConfigError, match="nested"):
        read_config(write("[" * 1_000), is_admins=True)


def test_the_examples_of_the_schema_are_valid(write: Write) -> None:
    lines = ["defaults:", *(f"  {key.name}: {key.example}" for key in DEFAULTS)]
    lines += ["quotas:", "  default:", *(f"    {key.name}: {key.example}" for key in MAXIMA)]
    found = read_config(write("\n".join(lines)), is_admins=True)
    assert len(found.defaults) == len(DEFAULTS)
    assert len(found.everybody) == len(MAXIMA)


def test_the_examples_of_the_page_are_valid(write: Write) -> None:
    page = (Path(__file__).parents[3] / "docs" / "config.md").read_text()
    examples = [part for part in page.split("\n\n") if part.startswith(("    defaults:", "    quotas:"))]
    assert len(examples) == 2
    for example in examples:
        read_config(write(example), is_admins=True)


def test_where_the_users_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative/is/ignored")
    assert config.user_file() == Path("/home/user/.config/vgpurun/config.yaml")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/somewhere")
    assert config.user_file() == Path("/somewhere/vgpurun/config.yaml")


@pytest.fixture
def vgpurun(tmp_path: Path, write: Write) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command line with files of its own, in place of the host's and the user's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VGPU", "SUDO_"))}

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        here = {"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "COLUMNS": "200", "DOCKER_HOST": "unix:///nowhere.sock"}
        environment = kept | here | variables
        return command_line.run(arguments, environment, admin_file=tmp_path / "admin.yaml")

    return run


def test_config_shows_values_and_origins(
    vgpurun: Callable[..., subprocess.CompletedProcess[str]], write: Callable[..., Path]
) -> None:
    admin = write("defaults: {mem: 25%}\nquotas:\n  default: {memory: 8g, gpus: [0, 1]}\n", "admin.yaml")
    user = write("defaults:\n  sm: 50\n", "xdg/vgpurun/config.yaml")
    shown = [line.split() for line in vgpurun("config", VGPURUN_PLACE="binpack").stdout.splitlines()]
    assert ["--preempt-idle", "false", "built", "in"] in shown
    assert ["--mem", "25%", f"{admin}:1"] in shown
    assert ["--sm", "50", f"{user}:2"] in shown
    assert ["--place", "binpack", "VGPURUN_PLACE"] in shown
    assert ["--pull", "missing", "built", "in"] in shown
    assert ["memory", "8g", f"{admin}:3"] in shown
    assert ["gpus", "0,1", f"{admin}:3"] in shown
    described = json.loads(vgpurun("config", "--format", "json").stdout)
    assert described["quotas"]["gpus"] == {"value": ["0", "1"], "origin": f"{admin}:3"}


def test_what_is_unlimited(
    vgpurun: Callable[..., subprocess.CompletedProcess[str]], write: Callable[..., Path]
) -> None:
    admin = write("quotas:\n  default: {memory: Unlimited, gpus: all, containers: 2}\n", "admin.yaml")
    shown = [line.split() for line in vgpurun("config").stdout.splitlines()]
    assert ["memory", "unlimited", f"{admin}:2"] in shown and ["gpus", "unlimited", f"{admin}:2"] in shown
    assert read_config(admin, is_admins=True).everybody["gpus"].value is None, "no GPU is called all"


def test_a_percentage_may_have_its_sign(write: Write) -> None:
    everybody = read_config(write("quotas: {default: {sm: 150%, sm_per_gpu: 50 %}}"), is_admins=True).everybody
    assert {name: each.value for name, each in everybody.items()} == {"sm": 150, "sm_per_gpu": 50}
    with pytest.raises(ConfigError, match="'101' is not a whole number from 0 to 100"):
        read_config(write("quotas: {default: {sm_per_gpu: 101%}}"), is_admins=True)


def test_config_check(vgpurun: Callable[..., subprocess.CompletedProcess[str]], write: Callable[..., Path]) -> None:
    good, bad = write(ADMIN, "good.yaml"), write("defaults: {meem: 1g}", "bad.yaml")
    result = vgpurun("config", "check", str(good))
    assert (result.returncode, result.stdout) == (0, f"{good}: valid\n")
    assert "this host knows no user alice, whose" in result.stderr
    assert "students, whose values apply to nobody" in result.stderr
    known = vgpurun("config", "check", str(write("quotas: {users: {root: {}}, groups: {root: {}}}", "known.yaml")))
    assert (known.returncode, known.stderr) == (0, "")
    numbers = write('quotas: {users: {"40123": {containers: 1}, "0": {containers: 1}}}', "numbers.yaml")
    warned = vgpurun("config", "check", str(numbers)).stderr
    assert "knows no user 0, whose" in warned, "a user goes by the number where there is no name, root by the name"
    result = vgpurun("config", "check", str(bad))
    assert (result.returncode, result.stdout) == (125, "")
    assert result.stderr == f"vgpurun: {bad}:1: unknown key 'meem' in defaults; did you mean 'mem'?\n"
    assert vgpurun("config", "check", str(good) + "x").returncode == 125
    assert vgpurun("config", "chekc").returncode == 125


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("quotas: {default: {memory_per_gpu: 50%}}", "without --mem a launch of any user counts as the whole GPU"),
        ("quotas: {groups: {root: {sm_per_gpu: 25}}}", "without --sm a launch of group root"),
        ("quotas: {users: {root: {containers: 0}}}", "no launch of user root is admitted (containers, "),
        ("quotas: {users: {root: {gpus: []}}}", "no launch of user root is admitted (gpus, "),
        ("defaults: {mem: 1g}\nquotas: {default: {memory_per_gpu: 50%}}", ""),
        ("defaults: {groups: {root: {sm: 10}}}\nquotas: {groups: {root: {sm_per_gpu: 25}}}", ""),
        ("quotas: {default: {memory_per_gpu: 100%, sm_per_gpu: 100}, users: {root: {memory_per_gpu: unlimited}}}", ""),
    ],
)
def test_maxima_that_let_nothing_in_are_found(
    vgpurun: Callable[..., subprocess.CompletedProcess[str]], write: Callable[..., Path], text: str, words: str
) -> None:
    result = vgpurun("config", "check", str(write(text, "lab.yaml")))
    assert result.returncode == 0
    assert words in result.stderr and len(result.stderr.splitlines()) == bool(words), result.stderr


def test_defaults_of_a_group_go_before_those_for_everybody(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "current_user", lambda: "ann")
    monkeypatch.setattr(config, "groups_of", {"ann": {"staff", "students"}}.get)
    text = "defaults:\n  mem: 1g\n  sm: 10\n  groups:\n    staff: {mem: 2g}\n    students: {mem: 3g, sm: 30}\n"
    both = Config(read_config(write(text), is_admins=True), ConfigFile())
    found = {name: (both.default(name, {}).value, both.default(name, {}).origin[-2:]) for name in ("mem", "sm", "wait")}
    assert found == {"mem": ("2g", ":5"), "sm": ("30", ":6"), "wait": ("0", "in")}
    user = read_config(write("defaults: {mem: 4g}", "user.yaml"), is_admins=False)
    assert replace(both, user=user).default("mem", {}).value == "4g"
    with pytest.raises(ConfigError, match="belong in the administrator's file"):
        read_config(write(text, "user.yaml"), is_admins=False)


def test_a_mistake_in_a_file_stops_a_launch(
    vgpurun: Callable[..., subprocess.CompletedProcess[str]], write: Callable[..., Path]
) -> None:
    admin = write("quotas: {default: {memory: 8g}}\nx: 1\n", "admin.yaml")
    result = vgpurun("run", "--driver", "sim", "image")
    assert (result.returncode, result.stderr) == (
        125,
        f"vgpurun: {admin}:2: unknown key 'x' in the file; there are defaults, quotas, guard, outside\n",
    )


LOOKING = (
    "config", "doctor", "free", "queue", "ps", "top --once", "smi", "inspect x", "exporter --listen nowhere",
    "slice ls", "slice inspect x", "slice rm x", "update --sm 10 x", "slice update --sm 10 x", "suspend x", "resume x",
    "move --gpus 0 x", "defrag --mem 1g", "prune",
)  # fmt: skip
LAUNCHING = ("run image", "ubuntu", "run --slice x image", "local true", "slice create x", "start x", "verify")


_SLIP = "quotas: {default: {memroy: 8g}}\n"


@pytest.mark.parametrize(
    ("verb", "content"), [*((verb, _SLIP) for verb in LOOKING), ("config", "\xff"), ("config", "]"), ("config", None)]
)
def test_a_mistake_in_a_file_does_not_end_what_only_looks(
    vgpurun: Callable[..., subprocess.CompletedProcess[str]], write: Callable[..., Path], verb: str, content: str | None
) -> None:
    admin = write("", "admin.yaml")
    if content is None:
        admin.unlink()
        admin.symlink_to(admin.parent)
    else:
        admin.write_text(content, encoding="latin-1")
    result = vgpurun(*verb.split(), DOCKER_HOST="unix:///nowhere.sock", VGPURUN_STATE_DIR=str(admin.parent / "state"))
    lines = result.stderr.splitlines()
    said = [line for line in lines if str(admin) in line]
    if verb == "doctor":
        assert said == [] and "FAIL  configuration" in result.stdout and str(admin) in result.stdout
    else:
        assert len(said) == 1 and said == lines[:1] and said[0].startswith("vgpurun: warning: a file is left out"), (
            lines
        )
    assert result.returncode == 0 or len(lines) > 1 or verb == "doctor", "it ends for another reason"


@pytest.mark.parametrize("verb", LAUNCHING)
def test_a_mistake_in_a_file_ends_what_launches(
    vgpurun: Callable[..., subprocess.CompletedProcess[str]], write: Callable[..., Path], verb: str
) -> None:
    admin = write(_SLIP, "admin.yaml")
    result = vgpurun(*verb.split(), DOCKER_HOST="unix:///nowhere.sock", VGPURUN_STATE_DIR=str(admin.parent / "state"))
    assert (result.returncode, result.stdout) == (125, "")
    assert result.stderr == f"vgpurun: {admin}:1: unknown key 'memroy' in quotas; did you mean 'memory'?\n"


def test_every_verb_says_what_a_mistake_in_a_file_does_to_it() -> None:
    """A verb that launches nothing goes on."""
    launching = {"run", "local", "start", "restart", "slice create", "verify", "device-plugin", "dra-plugin"}
    reading = {words: each for words, each in all_commands(cli) if any(callable(one.default) for one in each.params)}
    ending = {words for words, each in reading.items() if getattr(each, "on_broken_config", None) is None}
    assert len(reading) > 20 and ending == launching


def test_config_says_which_values_still_count(
    vgpurun: Callable[..., subprocess.CompletedProcess[str]], write: Callable[..., Path]
) -> None:
    admin = write("x: 1\n", "admin.yaml")
    user = write("defaults:\n  sm: 50\n", "xdg/vgpurun/config.yaml")
    shown = vgpurun("config")
    assert shown.returncode == 0 and ["--sm", "50", f"{user}:2"] in [line.split() for line in shown.stdout.splitlines()]
    assert f"is not known: {admin} is broken" in shown.stdout and "No quotas" not in shown.stdout
    assert json.loads(vgpurun("config", "--format", "json").stdout)["quotas"] is None
    admin.unlink()
    user.write_text("y: 1\n")
    shown = vgpurun("config")
    assert "No quotas" in shown.stdout and str(user) in shown.stderr


def test_a_link_to_nowhere_drops_no_quota(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").symlink_to(tmp_path / "none")
    with pytest.raises(ConfigError, match="a link to what is not there"):
        read_config(tmp_path / "config.yaml", is_admins=True)
    assert read_config(tmp_path / "none", is_admins=True) == ConfigFile()


def test_what_the_guard_does(write: Write) -> None:
    built_in = {name: setting.value for name, setting in Config(ConfigFile(), ConfigFile()).guard().items()}
    assert (built_in["memory"], built_in["compute"], built_in["outside"]) == ("freeze", "hold", "warn")
    assert (built_in["grace"], built_in["counted_grace"], built_in["users"]) == (0.4, 10.0, ("root",))
    assert "nv-hostengine" in built_in["programs"]
    path = write("guard:\n  memory: kill\n  grace: 2s\n  users: [ann, bob]\n  programs: []\n")
    configured = Config(read_config(path, is_admins=True), ConfigFile()).guard()
    found = {name: (each.value, each.origin) for name, each in configured.items() if each.origin != "built in"}
    assert found == {
        "memory": ("kill", f"{path}:2"), "grace": (2.0, f"{path}:3"), "users": (("ann", "bob"), f"{path}:4"),
        "programs": ((), f"{path}:5"),
    }  # fmt: skip
    with pytest.raises(ConfigError, match="guard is the administrator's"):
        read_config(path, is_admins=False)
    for wrong in ("memory: maim", "grace: soon", "speed: 3"):
        with pytest.raises(ConfigError, match=f"{wrong[:5]}"):
            read_config(write(f"guard:\n  {wrong}\n"), is_admins=True)


def test_time_slices_of_programs_outside(write: Write) -> None:
    path = write("outside:\n  users: {ann: low, bob: 20}\n  cgroups: {/slurm: 50%}\n")
    configured = Config(read_config(path, is_admins=True), ConfigFile())
    assert configured.outside() == ({"ann": 150, "bob": 4000}, {"/slurm": 10000})
    assert Config(ConfigFile(), ConfigFile()).outside() == ({}, {})
    with pytest.raises(ConfigError, match="outside is the administrator's"):
        read_config(path, is_admins=False)
    for wrong in ("users: {ann: high}", "users: {ann: 101}", "groups: {ann: low}", "users: low"):
        with pytest.raises(ConfigError, match=r":2: "):
            read_config(write(f"outside:\n  {wrong}\n"), is_admins=True)
