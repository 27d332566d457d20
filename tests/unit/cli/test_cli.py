"""The command line without an engine: what is parsed, what is refused, and in which words.

Every run is a process of its own, as a user starts it. Where GPUs are needed they are the simulated ones.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

import vgpurun
from support import CHECKOUT, command_line, unavailable

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def simulated() -> None:
    if not (CHECKOUT / "lib" / "build" / "sim" / "libnvidia-ml.so.1").exists():
        unavailable("the simulated driver is not built: make lib")


def states(environment: dict[str, str]) -> list[Path]:
    return list((Path(environment["VGPURUN_STATE_DIR"]) / "containers").glob("*"))


def refused(result: subprocess.CompletedProcess[str], *words: str, exit_code: int = 125) -> None:
    assert (result.returncode, result.stdout) == (exit_code, ""), result
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith("vgpurun: ")
    for word in words:
        assert word in result.stderr


def test_version(run: Run) -> None:
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"vgpurun {vgpurun.__version__}\n")


def test_help_as_a_verb(run: Run) -> None:
    assert run("help").stdout == run("--help").stdout
    refused(run("help", "me"), "'me'", "build-in-docker")


@pytest.mark.usefixtures("simulated")
def test_a_mistyped_verb_is_pointed_out(run: Run) -> None:
    nowhere = "unix:///nowhere.sock"
    for words in (("biuld", "--gpus", "9"), ("strat", "name"), ("udpate",), ("slcie", "ls"), ("rnu", "image")):
        not_a_verb = f"'{words[0]}' is neither a verb nor an image"
        refused(run(*words, DOCKER_HOST=nowhere), not_a_verb, f"vgpurun run {words[0]}")
    assert "did you mean: vgpurun start?" in run("strat", "name", DOCKER_HOST=nowhere).stderr, "and not stats"
    assert "neither a verb" not in run("run", "biuld", DOCKER_HOST=nowhere).stderr
    assert "neither a verb" not in run("--rm", "rum", DOCKER_HOST=nowhere).stderr  # not `vgpurun rm`
    assert "neither a verb" not in run("tops:1", DOCKER_HOST=nowhere).stderr
    assert "neither a verb" not in run("ubuntu", DOCKER_HOST=nowhere).stderr


@pytest.mark.usefixtures("simulated")
def test_a_time_after_wait_is_its_time(run: Run) -> None:
    """In every verb with --wait: neither an image, nor a command, nor a container, nor a slice."""
    nowhere = {"DOCKER_HOST": "unix:///nowhere.sock"}
    for words in (("--wait", "10m"), ("run", "--mem", "1g", "--wait", "90"), ("local", "--wait", "60s")):
        refused(run(*words, **nowhere), "requires at least 1 argument", exit_code=1)
    for verb in ("resume", "move"):
        refused(run(verb, "--wait", "1m", **nowhere), "name a container")
    refused(run("slice", "create", "--wait", "1m", **nowhere), "requires at least 1 argument", exit_code=1)
    (plan,) = yaml.safe_load_all(run("local", "--driver", "sim", "--dry-run", "--wait", "5m", "--", "true").stdout)
    assert plan["command"] == ["true"]
    for words in (("--wait", "10m:latest"), ("--wait=5m", "10m"), ("10m",)):
        assert "requires at least" not in run(*words, **nowhere).stderr


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (("-L",), "GPU 0: Simulated GPU (UUID: GPU-"),
        (("--query-gpu=index,memory.total", "--format=csv,noheader"), "0, 8192 MiB"),
        (("--format=csv,noheader", "--query-gpu=index"), "0"),
        (("-i", "0", "--query-gpu=name", "--format=csv,noheader"), "Simulated GPU"),
        (("-q", "-x"), '<?xml version="1.0" ?>'),
        (("--", "-L"), "GPU 0: Simulated GPU (UUID: GPU-"),
        (("--mem", "1g", "--query-gpu=memory.total", "--format=csv,noheader"), "1024 MiB"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_questions_of_nvidia_smi_s_are_its_own(run: Run, asked: tuple[str, ...], answer: str) -> None:
    result = run("smi", "--driver", "sim", *asked)
    assert (result.returncode, result.stderr) == (0, "") and result.stdout.startswith(answer)


def test_a_missing_nvidia_smi_is_said(run: Run) -> None:
    refused(run("smi", "--driver", "host", "-L", PATH="/nowhere"), "nvidia-smi is not on the PATH")
    refused(run("smi", "--fromat", "json"), "Did you mean '--format'")


@pytest.mark.usefixtures("simulated")
def test_no_path_is_printed_where_nothing_was_written(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "vgpurun.yaml"
    result = run("cdi", "generate", "--driver", "sim", "-o", str(path))
    assert (result.returncode, result.stdout, path.exists()) == (0, "", False)
    assert result.stderr == f"vgpurun: there is no slice yet, and so no {path}; vgpurun slice create makes both\n"
    assert run("slice", "create", "--driver", "sim", "--mem", "1g", "first").returncode == 0
    assert path.exists(), "it is kept up to date from now on"
    assert run("cdi", "generate", "--driver", "sim", "-o", str(path)).stdout == f"{path}\n"


def test_no_verb_of_docker_s_is_pulled() -> None:
    """The verbs are those that `docker --help` of 29.0 lists. A page says what ours of these names do."""
    from vgpurun.cli import cli
    from vgpurun.cli.verbs import OTHER_WORDS

    common = "run exec ps build bake pull push images login logout search version info"
    management = "builder buildx checkpoint compose container context image manifest model network plugin system volume"
    swarm = "config node secret service stack swarm trust scout"
    commands = (
        "attach commit cp create diff events export history import inspect kill load logs pause port rename restart rm"
        " rmi save start stats stop tag top unpause update wait"
    )
    page = (CHECKOUT / "docs" / "from-docker-run.md").read_text()
    for word in " ".join((common, management, swarm, commands)).split():
        assert f"`{word}`" in page if word in cli.commands else word in OTHER_WORDS, word


@pytest.mark.parametrize(
    ("word", "way_out"),
    [
        ("swarm", "docker swarm"), ("images", "docker images"), ("version", "vgpurun --version"),
        ("ls", "vgpurun ps"), ("compose", "docker compose"), ("nvidia-smi", "vgpurun smi"),
        ("gpus", "vgpurun smi"), ("profile", "vgpurun run --profile"), ("user", "vgpurun run --user"),
        ("quota", "vgpurun config (docs/config.md says where they are set)"),
    ],
)  # fmt: skip
def test_a_word_of_docker_is_no_image(run: Run, word: str, way_out: str) -> None:
    for arguments in ((word,), (word, "--gpus", "9", "name")):
        result = run(*arguments, DOCKER_HOST="unix:///nowhere.sock")
        assert (result.returncode, result.stdout) == (125, "")
        words = f"'{word}' is not a verb of vgpurun: use {way_out}; for an image of that name: vgpurun run {word}"
        assert result.stderr == f"vgpurun: {words}. See: vgpurun --help\n"
    assert "is not a verb" not in run("run", word, DOCKER_HOST="unix:///nowhere.sock").stderr
    assert "is not a verb" not in run("--rm", word, DOCKER_HOST="unix:///nowhere.sock").stderr


@pytest.mark.parametrize("verb", ["attach", "cp", "port", "stats", "wait"])
def test_a_verb_that_is_dockers_is_handed_over_as_it_is(run: Run, tmp_path: Path, verb: str) -> None:
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\necho "$@"\nexit 7\n')
    docker.chmod(0o755)
    result = run(verb, "--help", "-x", "a b", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (result.returncode, result.stdout, result.stderr) == (7, f"{verb} --help -x a b\n", "")
    refused(run(verb, "name", PATH=str(tmp_path / "none")), f"`docker {verb}`", "is not installed")


def test_the_options_of_dockers_own_command_line(run: Run, environment: dict[str, str]) -> None:
    assert run("-v").stdout == f"vgpurun {vgpurun.__version__}\n"
    assert "/n.sock" in run("-H", "unix:///n.sock", "ps").stderr
    assert "/n.sock" in run("--host=unix:///n.sock", "run", "--driver", "sim", "IMAGE").stderr
    assert "/n.sock" in run("-Hunix:///n.sock", "--driver", "sim", "IMAGE").stderr, "run is the default verb here too"
    assert "no-such-context does not exist" in run("--context", "no-such-context", "ps").stderr
    assert "/a" in run("-v", "/a:/b", "--dry-run", "--driver", "sim", "IMAGE").stdout, "a volume, as docker run has it"
    assert run("prune", "-f").returncode == run("prune").returncode


def as_plugin(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return command_line.run(arguments, environment, program="/usr/libexec/docker/cli-plugins/docker-vgpurun")


def test_dockers_command_line_has_it_as_a_plugin(environment: dict[str, str]) -> None:
    about = json.loads(as_plugin(environment, "docker-cli-plugin-metadata").stdout)
    assert about["SchemaVersion"] == "0.1.0" and about["Vendor"] and about["Version"] == vgpurun.__version__
    assert as_plugin(environment, "vgpurun", "--version").stdout == f"vgpurun {vgpurun.__version__}\n"
    result = as_plugin(environment, "-D", "--log-level", "warn", "--host=unix:///n.sock", "vgpurun", "ps")
    assert "/n.sock" in result.stderr
    result = as_plugin(environment, "-H", "unix:///n.sock", "-c", "no-such-context", "vgpurun", "ps")
    assert "no-such-context" in result.stderr, "the later one counts"
    refused(as_plugin(environment, "--tls", "vgpurun", "ps"), "--tls", "DOCKER_HOST", exit_code=1)


def test_a_mistake_says_where_the_help_is(run: Run) -> None:
    refused(run("exporter", "more"), "vgpurun: got ", "(more). See: vgpurun exporter --help")
    refused(run("completion", "tcsh"), "vgpurun: invalid value for 'SHELL': 'tcsh' is not one of 'bash'")
    refused(run("slice", "mkae"), "'mkae'; the verbs are create, ls,", ". See: vgpurun slice --help")


@pytest.mark.parametrize("size", ["x", "1", "50%"])
def test_the_size_of_the_history_is_no_limit_of_a_gpu(run: Run, size: str) -> None:
    refused(run("exporter", "--driver", "sim", "--history-size", size), f"'{size}' is not a size of at least 1m")


@pytest.mark.usefixtures("simulated")
def test_arguments_are_utf8_whatever_the_locale_is(environment: dict[str, str]) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "vgpurun", "--driver", "sim", "--dry-run", "-e", "WHO=Jürgen", "image"]
    result = subprocess.run(command, env=environment | ascii_only, capture_output=True, encoding="utf-8")
    assert (result.returncode, "WHO: Jürgen" in result.stdout) == (0, True), result


def test_colours_in_a_terminal_only_and_not_with_no_color(environment: dict[str, str]) -> None:
    def shown(**variables: str) -> bytes:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "vgpurun", "doctor"]
        with subprocess.Popen(command, env=environment | variables, stdout=theirs, stdin=subprocess.DEVNULL) as process:
            os.close(theirs)
            text = b""
            with suppress(OSError):  # how a terminal ends
                while more := os.read(ours, 1 << 16):
                    text += more
            process.wait(60)
        os.close(ours)
        return text

    assert b"\x1b[" in shown()
    plain = shown(NO_COLOR="1")
    assert b"engine" in plain and b"\x1b[" not in plain


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("verb", [("run",), ()])
def test_options_after_the_image_belong_to_the_command(run: Run, verb: tuple[str, ...]) -> None:
    result = run(*verb, "--driver", "sim", "--dry-run", "-it", "--mem", "2g", "IMAGE", "sh", "--mem", "1g", "--", "-d")
    shown = yaml.safe_load(result.stdout)
    assert (shown["image"], shown["command"]) == ("IMAGE", ["sh", "--mem", "1g", "--", "-d"])
    assert (shown["interactive"], shown["tty"]) == (True, True)
    assert "detach" not in shown


@pytest.mark.usefixtures("simulated")
def test_a_dry_run_changes_nothing_and_needs_no_engine(run: Run, environment: dict[str, str]) -> None:
    result = run("--driver", "sim", "--dry-run", "IMAGE")
    assert result.returncode == 0
    assert "planned without an engine" in result.stderr
    assert states(environment) == []


def test_a_verb_after_options_is_not_guessed_at(run: Run) -> None:
    refused(run("--mem", "2g", "smi"), "'smi'", "vgpurun smi", "vgpurun run ... smi")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "--colour", "x"), ("--colour",)),
        (("--colour", "x"), ("--colour",)),
        (("run", "--driver", "magic", "x"), ("magic",)),
        (("run", "--pull", "maybe", "x"), ("maybe",)),
        (("run", ""), ("IMAGE", "empty")),
        (("--mem",), ("--mem", "vgpurun run --help")),
        (("local", "--sm"), ("--sm", "vgpurun local --help")),
        (("run", "-v", "/a:b", "x"), ("'b'", "absolute")),
        (("run", "--mount", "type=bind,target=/x,odd=1", "x"), ("odd",)),
        (("run", "--shm-size", "big", "x"), ("big",)),
        (("run", "--env-file", "/no/such/file", "x"), ("/no/such/file",)),
        (("run", "--name", "-", "x"), ("--name",)),
        (("run", "--label", "=x", "x"), ("--label",)),
        (("build", "extra"), ("extra",)),
    ],
    ids=lambda value: " ".join(value),
)
def test_what_cannot_work_is_one_line(run: Run, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    refused(run(*arguments), *words)


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("arguments", [("build-in-docker",), ("smi", "CONTAINER"), ("run", "--driver", "sim", "IMAGE")])
def test_an_engine_that_cannot_be_reached_is_1_as_with_docker(run: Run, arguments: tuple[str, ...]) -> None:
    refused(run(*arguments), "no-engine.sock", exit_code=1)


@pytest.mark.parametrize(("verb", "argument"), [("run", "IMAGE"), ("local", "COMMAND"), ("exec", "CONTAINER")])
def test_a_verb_without_its_arguments_is_1_as_with_docker(run: Run, verb: str, argument: str) -> None:
    refused(run(verb), f"'vgpurun {verb}' requires", argument, exit_code=1)


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--mem", "2x"), ("2x", "2g")),
        (("--mem", "900g"), ("900g", "8 GiB")),
        (("--sm", "101"), ("101",)),
        (("--mem", "7=1g"), ("'7'",)),
        (("--gpus", "device=9"), ("'9'",)),
        (("--gpus", "0"), ("--gpus 0",)),
        (("-e", "CUDA_DEVICE_MEMORY_LIMIT=lots"), ("CUDA_DEVICE_MEMORY_LIMIT", "lots")),
        (("-p", "http"), ("http",)),
        (("-v", "/x:/.vgpurun/etc"), ("/.vgpurun/etc",)),
    ],
    ids=lambda value: " ".join(value),
)
def test_what_cannot_work_on_the_simulated_gpu(
    run: Run, environment: dict[str, str], arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    dry = ("--dry-run",) if arguments[:1] == ("-v",) else ()
    result = run("run", "--driver", "sim", *dry, *arguments, "IMAGE")
    lines = [line for line in result.stderr.splitlines() if "warning: planned without" not in line]
    refused(subprocess.CompletedProcess((), result.returncode, result.stdout, "\n".join(lines)), *words)
    assert states(environment) == []


@pytest.mark.usefixtures("simulated")
def test_the_drivers_variable_holds_for_every_verb(run: Run) -> None:
    for verb in (("run", "--dry-run", "IMAGE"), ("local", "--dry-run", "true"), ("smi", "--mem", "1g")):
        assert "Simulated GPU" in run(*verb, VGPURUN_DRIVER="sim").stdout
        refused(run(*verb, VGPURUN_DRIVER="magic"), "VGPURUN_DRIVER=magic", "auto, toolkit")


@pytest.mark.usefixtures("simulated")
def test_a_wrong_simulated_gpu_is_not_called_a_missing_driver(run: Run) -> None:
    result = run("smi", "--driver", "sim", VGPUSIM_CONFIG="/etc/passwd")
    assert result.returncode == 125
    assert "/etc/passwd:1:" in result.stderr
    assert "no NVIDIA driver" not in result.stderr


def test_a_wrong_library_is_named(run: Run, tmp_path: Path) -> None:
    if not (CHECKOUT / "lib" / "build" / "sim" / "libnvidia-ml.so.1").exists():
        unavailable("the simulated driver is not built: make lib")
    refused(run("local", "--driver", "sim", "true", VGPURUN_LIBRARY=str(tmp_path / "none.so")), "none.so")


def test_debug_shows_where(run: Run) -> None:
    result = run("--mem", "2g", "smi", VGPURUN_DEBUG="1")
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("vgpurun: ")


def test_what_an_encoding_lacks_is_written_otherwise() -> None:
    """A mark for a text that is cut, and names of others, in a terminal that is not UTF-8."""
    program = "from vgpurun.cli import main; print(main(['--version']), 'caf\u00e9\u2026 \u4e2d')"
    environment = {**os.environ, "PYTHONIOENCODING": "iso8859-1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=60)
    assert done.stdout.splitlines()[-1] == b"0 caf\xe9~ \\u4e2d", done


def test_output_to_a_closed_pipe_is_quiet(environment: dict[str, str]) -> None:
    command = f"{sys.executable} -m vgpurun run --help | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)
    assert result.stderr == ""
    assert result.returncode in (0, 141)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_to_a_full_disk_is_one_line(environment: dict[str, str], unbuffered: str) -> None:
    environment["PYTHONUNBUFFERED"] = unbuffered
    command = [sys.executable, "-m", "vgpurun", "--help"]
    with open("/dev/full", "wb") as full:
        result = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (
        125,
        "vgpurun: the output cannot be written: No space left on device\n",
    )


@pytest.mark.usefixtures("simulated")
def test_a_current_folder_that_is_gone_is_named(environment: dict[str, str], tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone}; exec {sys.executable} -m vgpurun run --driver sim --dry-run -v ./data:/data image"
    result = subprocess.run(["sh", "-c", command], env=environment, cwd=gone, capture_output=True, text=True)
    refused(result, "the current folder: No such file or directory")


@pytest.mark.parametrize("module", ["enum", "vgpurun.cli"])
def test_ctrl_c_while_it_is_loaded_leaves_no_traceback(
    environment: dict[str, str], tmp_path: Path, module: str
) -> None:
    """`enum` is what Python's own `signal` would import first."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\n"
        "class Slow:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == '{module}': print('loading', flush=True); time.sleep(30)\n"
        "sys.meta_path.insert(0, Slow())\n"
    )
    command = [sys.executable, "-c", "from vgpurun.__main__ import main; main()"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment |= {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(command, env=environment, text=True, **streams) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20)[1] == ""
    assert process.returncode == -signal.SIGINT


@pytest.mark.usefixtures("simulated", "built_library")
class TestLocal:
    """`vgpurun local` on the simulated GPU: exit codes, signals and what is left behind."""

    @pytest.mark.parametrize(("command", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
    def test_exit_codes(self, run: Run, environment: dict[str, str], command: str, code: int) -> None:
        assert run("local", "--driver", "sim", "--mem", "1g", "--", "sh", "-c", command).returncode == code
        assert states(environment) == []

    def test_a_missing_command_is_127_and_one_that_cannot_run_is_126(
        self, run: Run, environment: dict[str, str]
    ) -> None:
        for command, code in (("no-such-command", 127), ("/no/such/command", 127), ("/etc/passwd", 126), ("/etc", 126)):
            result = run("local", "--driver", "sim", command)
            assert (result.returncode, len(result.stderr.splitlines())) == (code, 1), result
            assert command in result.stderr
        assert states(environment) == []

    def test_the_limit_is_what_nvml_shows(self, run: Run) -> None:
        result = run("local", "--driver", "sim", "--mem", "1g", "nvidia-smi")
        assert "1024MiB" in result.stdout, result
        assert "1024MiB" in run("smi", "--driver", "sim", "--mem", "1g").stdout

    def test_the_limits_have_longer_names_too(self, run: Run) -> None:
        command = ("sh", "-c", "echo $CUDA_DEVICE_MEMORY_LIMIT_0 $CUDA_DEVICE_SM_LIMIT_0")
        by_alias = run("local", "--driver", "sim", "--gpu-mem", "3g", "--compute=30", *command)
        assert (
            by_alias.stdout
            and by_alias.stdout == run("local", "--driver", "sim", "--mem", "3g", "--sm", "30", *command).stdout
        )

    def test_variables(self, run: Run) -> None:
        script = "echo $GIVEN $CUDA_DEVICE_MEMORY_LIMIT_0"
        result = run("local", "--driver", "sim", "--mem", "1g", "-e", "GIVEN=x", "sh", "-c", script)
        assert result.stdout == f"x {1 << 30}\n"
        assert run("local", "--driver", "sim", "-e", f"PATH={CHECKOUT}", "Makefile").returncode == 126

    def test_signals_are_the_commands(self, environment: dict[str, str]) -> None:
        """Let it go on, or end as it likes to."""
        names = ("HUP", "USR1", "TERM", "INT")
        traps = [f"trap 'echo {name}{'; exit 9' * (name == names[-1])}' {name}" for name in names]
        script = "; ".join((*traps, "echo ready", "while :; do sleep 0.05; done"))
        # A signal that the tests' own caller ignores, as nohup does, would stay ignored.
        heeded = "--default-signal=" + ",".join(names)
        command = ["env", heeded, sys.executable, "-m", "vgpurun", "local", "--driver", "sim", "sh", "-c", script]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "ready\n"
            for name in names:
                process.send_signal(signal.Signals[f"SIG{name}"])
                assert process.stdout.readline() == f"{name}\n"
        assert process.returncode == 9
        assert states(environment) == []

    def test_a_killed_vgpurun_leaves_what_the_next_one_sweeps(self, run: Run, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "vgpurun", "local", "--driver", "sim", "sh", "-c", "echo $$; exec sleep 30"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            child = int(process.stdout.readline())
            (folder,) = states(environment)
            process.kill()
        assert run("local", "--driver", "sim", "true").returncode == 0
        assert states(environment) == [folder], "its command still runs under these limits"
        os.kill(child, signal.SIGKILL)

    def test_smi_shows_a_local_process(self, run: Run, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "vgpurun", "local", "--driver", "sim", "--mem", "1g", "--sm", "30", "cat"]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, env=environment, **streams) as process:  # type: ignore[call-overload]
            process.stdin.write(b"ready\n")
            process.stdin.flush()
            process.stdout.readline()
            result = run("smi", "--driver", "sim", "--format", "json")
            (seen,) = yaml.safe_load(result.stdout)["processes"]
            assert seen["command"] == "cat"
            assert seen["devices"][0]["memory_limit_bytes"] == 1 << 30
            assert seen["devices"][0]["sm_limit_percent"] == 30
            assert seen["devices"][0]["sm_used_percent"] == seen["devices"][0]["sm_used_60s_percent"] == 0
            assert seen["devices"][0]["not_enforced"] == []
            assert "cat" in run("smi", "--driver", "sim").stdout
            process.stdin.close()
        assert process.returncode == 0


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("limit", [("--mem", "2x"), ("--sm", "150"), ("--mem", "0=1g,0=2g")])
def test_a_limit_that_cannot_be_read_is_said_before_all_else(run: Run, limit: tuple[str, str]) -> None:
    no_gpu = {"VGPUSIM_CONFIG": "/etc/passwd"}
    assert "/etc/passwd:1:" in run("--driver", "sim", "image", **no_gpu).stderr
    refused(run("--driver", "sim", *limit, "image", **no_gpu), limit[1])
