"""Images of a registry that asks for a login, which docker's own configuration has in one of three ways."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest

from cli import Cli
from images import busybox
from support import wait_until
from support.debian_packages import UnavailableError, tool
from support.scraping import free_port

USER, PASSWORD = "reader", "secret"
CONFIG = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}/storage}}}}
http: {{addr: "{name}"}}
auth: {{htpasswd: {{realm: tests, path: {folder}/htpasswd}}}}
"""
# Answers as docker-credential-pass does: for the registry named on standard input, or with a list of names.
HELPER = """\
#!/bin/sh
case $1 in
  get) printf '{"ServerURL": "%s", "Username": "USER", "Secret": "PASSWORD"}' "$(cat)" ;;
  list) echo '{"REGISTRY": "USER"}' ;;
  *) exit 1 ;;
esac
"""


@dataclass(frozen=True)
class Registry:
    name: str
    image: str


@pytest.fixture(scope="module")
def registry(engine: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    folder = tmp_path_factory.mktemp("registry")
    name = f"127.0.0.1:{free_port()}"  # engines ask no TLS of this address
    try:
        program, htpasswd = tool("docker-registry", "docker-registry"), tool("htpasswd", "apache2-utils")
    except UnavailableError as error:
        pytest.skip(str(error))
    login = subprocess.run([htpasswd, "-Bbn", USER, PASSWORD], check=True, capture_output=True, text=True).stdout
    (folder / "htpasswd").write_text(login)
    (folder / "config.yml").write_text(CONFIG.format(folder=folder, name=name))
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen([program, "serve", folder / "config.yml"], stdout=log, stderr=log) as process,
    ):
        try:
            yield Registry(name, _pushed(engine, f"{name}/private/busybox"))
        finally:
            process.terminate()


def _pushed(engine: docker.DockerClient, image: str) -> str:
    busybox(engine, f"{image}:1")
    login = {"username": USER, "password": PASSWORD}

    def push() -> bool:
        with suppress(docker.errors.APIError):
            lines = list(engine.api.push(image, "1", stream=True, decode=True, auth_config=login))
            return not any("error" in line for line in lines)
        return False

    wait_until(push, "registry that takes an image")
    engine.images.remove(f"{image}:1", force=True)
    return f"{image}:1"


def _login_in_config(registry: Registry, _home: Path) -> dict[str, object]:
    return {"auths": {registry.name: {"auth": base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}}}


def _helper_of_the_registry(registry: Registry, home: Path) -> dict[str, object]:
    return {"credHelpers": {registry.name: _write_helper(registry, home)}}


def _store_of_all(registry: Registry, home: Path) -> dict[str, object]:
    return {"credsStore": _write_helper(registry, home), "auths": {registry.name: {}}}


def _write_helper(registry: Registry, home: Path) -> str:
    program = home / "bin" / "docker-credential-tests"
    program.parent.mkdir()
    program.write_text(HELPER.replace("USER", USER).replace("PASSWORD", PASSWORD).replace("REGISTRY", registry.name))
    program.chmod(0o755)
    return "tests"


@pytest.fixture(params=[_login_in_config, _helper_of_the_registry, _store_of_all])
def with_login(request: pytest.FixtureRequest, vgpurun: Cli, registry: Registry) -> Cli:
    """The command line of a user who has logged in."""
    write: Callable[[Registry, Path], dict[str, object]] = request.param
    home = Path(vgpurun.environment["HOME"])
    (home / ".docker").mkdir()
    (home / ".docker" / "config.json").write_text(json.dumps(write(registry, home)))
    vgpurun.environment["PATH"] = f"{home}/bin:{vgpurun.environment['PATH']}"
    return vgpurun


@pytest.fixture
def not_here(engine: docker.DockerClient, registry: Registry) -> Iterator[str]:
    """The name of the registry's image, which the engine does not have."""
    yield registry.image
    with suppress(docker.errors.ImageNotFound):
        engine.images.remove(registry.image, force=True)


def test_a_private_image_is_pulled_with_the_login(with_login: Cli, not_here: str) -> None:
    for options in ((), ("--pull", "always")):
        done = with_login.run("--mem", "1g", *options, not_here, "echo", "here")
        assert (done.exit_code, done.stdout) == (0, "here\n"), done


def test_the_library_is_built_on_a_private_image(with_login: Cli, not_here: str) -> None:
    done = with_login("build-in-docker", "--base-image", not_here, "--output", f"{with_login.state_dir}/lib.so")
    assert done.exit_code == 125 and "gcc" in done.stderr, done  # busybox has none: so far it came


def test_without_a_login_the_registry_s_words_are_shown(vgpurun: Cli, not_here: str) -> None:
    done = vgpurun.run("--mem", "1g", not_here, "true")
    assert done.exit_code == 125 and f"{not_here} cannot be pulled: " in done.stderr, done
    assert "no basic auth credentials" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("with_login", [_helper_of_the_registry, _store_of_all], indirect=True)
@pytest.mark.parametrize("is_there", [True, False])
def test_a_helper_that_fails_is_named(with_login: Cli, not_here: str, is_there: bool) -> None:
    """An image is pulled without a login then, as docker does: it may be for all, which this one is not."""
    helper = Path(with_login.environment["HOME"]) / "bin" / "docker-credential-tests"
    helper.unlink()
    if is_there:
        helper.write_text("#!/bin/sh\necho locked >&2\nexit 1\n")
        helper.chmod(0o755)
    pulled = with_login.run("--mem", "1g", not_here, "true")
    assert "no basic auth credentials" in pulled.stderr.splitlines()[-1], pulled
    built = with_login("build-in-docker", "--base-image", not_here, "--output", f"{with_login.state_dir}/lib.so")
    for done in (pulled, built):
        assert done.exit_code == 125 and "docker-credential-tests" in done.stderr.splitlines()[-1], done
        assert "Warning" not in done.stderr and "Traceback" not in done.stderr, done
