"""The Docker Engine, as far as vgpurun needs it. The only file that imports docker."""

import io
import os
import shutil
import socket
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import urlsplit

import docker
import requests
from docker.context import ContextAPI
from docker.context.config import get_current_context_name
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.utils import kwargs_from_env
from docker.utils.ports import build_port_bindings

from vgpurun import __version__
from vgpurun.api_json import mount_json, request_json
from vgpurun.drivers import EngineFacts, read_cdi_devices
from vgpurun.errors import (
    CommandNotExecutableError,
    CommandNotFoundError,
    EngineError,
    ImageError,
    NoEngineError,
    OptionError,
    VgpurunError,
)
from vgpurun.plan import LABEL_QUOTA, LABEL_USER, LABEL_VERSION, LaunchPlan
from vgpurun.state import LABEL_STATE

DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
_TCP_SCHEMES = ("tcp", "http", "https")
_TCP_PORT = 2375
_THIS_HOST = ("localhost", "127.0.0.1", "::1")
_RUNTIME_MARKERS = (
    "unable to start container process: ",
    "starting container process caused: ",
    "OCI runtime create failed: ",
)
# The runtime's words for exit codes 127 and 126, which docker goes by too.
_NOT_FOUND = ("executable file not found", "no such file or directory")
_NOT_EXECUTABLE = ("permission denied", "is a directory", "exec format error")
_MAX_FILE_BYTES = 64 << 20


@dataclass(frozen=True)
class Image:
    """An image that the engine has, and the environment that it sets."""

    id: str
    environment: Mapping[str, str]


@dataclass(frozen=True)
class VgpurunContainer:
    """A container that vgpurun made, from its labels. `created_s` is seconds since 1970; `status` is docker's word.

    `described` is what docker ps shows as its status, such as "Up 5 minutes"; a single container has none.
    """

    id: str
    name: str
    image: str
    status: str
    state_folder: str
    quota_json: str
    user: str = ""
    command: str = ""
    created_s: float = 0.0
    described: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


_Engine = TypeVar("_Engine", bound="Engine")


class Engine:
    """A connection to the engine of this host."""

    def __init__(self, client: docker.APIClient, address: str) -> None:
        self._api: Any = client  # docker-py's own types are incomplete
        self.address = address

    @classmethod
    def connect(cls: type[_Engine]) -> _Engine:
        """Connect to the engine that DOCKER_HOST or Docker's current context names. Raises EngineError."""
        address = _address()
        _check_address(address)
        try:
            return cls(docker.APIClient(base_url=address, version="auto", **_tls(address)), address)
        except (DockerException, requests.exceptions.RequestException, OSError) as error:
            raise EngineError(f"the Docker Engine at {address} does not answer: {one_line(error)}") from None

    def facts(self) -> EngineFacts:
        """Return what the engine can inject, and its id. Raises EngineError."""
        with _translated("the engine cannot describe itself"):
            info = self._api.info()
        listed = [device.get("ID", "") for device in info.get("DiscoveredDevices") or []]
        return EngineFacts(
            id=info.get("ID", ""),
            runtimes=frozenset(info.get("Runtimes") or {}),
            cdi_devices=frozenset(listed) or read_cdi_devices(info.get("CDISpecDirs") or []),
            has_toolkit_hook=shutil.which("nvidia-container-runtime-hook") is not None,
        )

    def image(self, name: str) -> Image | None:
        """Return an image, or None if the engine does not have it. Raises EngineError."""
        with _translated(f"image {name}"):
            try:
                config = self._api.inspect_image(name)
            except ImageNotFound:
                return None
        entries = (config.get("Config") or {}).get("Env") or []
        return Image(config["Id"], dict(entry.split("=", 1) for entry in entries if "=" in entry))

    def pull(self, name: str) -> Iterator[dict[str, Any]]:
        """Pull an image, yielding the engine's progress messages. Raises ImageError."""
        try:
            for event in self._api.pull(name, stream=True, decode=True):
                if "error" in event:
                    raise ImageError(f"image {name} cannot be pulled: {one_line(event['error'])}")
                yield event
        except (DockerException, requests.exceptions.RequestException) as error:
            raise ImageError(f"image {name} cannot be pulled: {one_line(error)}") from None

    def build(self, context: bytes, tag: str, arguments: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Build an image from a tar file with a Dockerfile, yielding the engine's messages. Raises ImageError."""
        try:
            stream = self._api.build(
                fileobj=io.BytesIO(context), custom_context=True, tag=tag, buildargs=dict(arguments), rm=True,
                forcerm=True, decode=True,
            )  # fmt: skip
            for event in stream:
                yield event
                if "error" in event:
                    raise ImageError(f"the builder image cannot be made: {one_line(event['error'])}")
        except (DockerException, requests.exceptions.RequestException) as error:
            raise ImageError(f"the builder image cannot be made: {one_line(error)}") from None

    def create(self, plan: LaunchPlan) -> str:
        """Create the planned container and return its id. Raises EngineError, OptionError or ImageError."""
        options = plan.options
        host_config = self._api.create_host_config(
            binds=[str(volume) for volume in options.volumes if volume.source],
            mounts=[mount_json(mount) for mount in (*options.mounts, *plan.mounts)],
            devices=list(plan.devices),
            device_requests=[request_json(request) for request in plan.device_requests],
            runtime=plan.runtime,
            port_bindings=port_bindings(options.ports),
            network_mode=options.network,
            ipc_mode=options.ipc,
            shm_size=options.shm_size_bytes,
            auto_remove=options.remove,
        )
        with _translated(f"the container cannot be made from {options.image}"):
            created = self._api.create_container(
                image=options.image,
                command=list(options.command) or None,
                entrypoint=None if options.entrypoint is None else [options.entrypoint],
                environment=dict(plan.environment),
                user=options.user,
                working_dir=options.working_dir,
                name=options.name,
                labels=dict(plan.labels),
                ports=[tuple(port.split("/")) for port in host_config.get("PortBindings") or {}],
                volumes=[volume.target for volume in options.volumes if not volume.source],
                tty=options.tty,
                stdin_open=options.interactive,
                detach=options.detach,
                host_config=host_config,
            )
        return str(created["Id"])

    def create_for_copy(self, image: str, state_folder: Path | None = None) -> str:
        """Create a container that is never started, to copy a file from its image; return its id.

        By the state folder of a launch the next one knows that it is to be removed, should this one be killed.
        """
        labels = {LABEL_VERSION: __version__, LABEL_STATE: str(state_folder)} if state_folder else None
        with _translated(f"the container cannot be made from {image}"):
            return str(self._api.create_container(image=image, command=["-"], labels=labels)["Id"])

    def read_file(self, container: str, path: str) -> bytes | None:
        """Return a file of a container that need not run, through symbolic links; None if there is no such file."""
        for _ in range(8):
            try:
                chunks, status = self._api.get_archive(container, path)
            except NotFound:
                return None
            except (DockerException, requests.exceptions.RequestException) as error:
                raise EngineError(f"{path} cannot be read from the container: {one_line(error)}") from None
            if not status.get("linkTarget"):
                return _only_file(b"".join(chunks)) if status["size"] <= _MAX_FILE_BYTES else None
            chunks.close()
            path = str(PurePosixPath(path).parent / status["linkTarget"])
        return None

    def attach(self, container: str, stdin: bool) -> socket.socket:
        """Return a socket with the container's standard streams; to be called before the start."""
        with _translated("the container's output cannot be read"):
            params = {"stdin": int(stdin), "stdout": 1, "stderr": 1, "stream": 1}
            return plain_socket(self._api.attach_socket(container, params=params))

    def expect_end(self, container: str, is_removed: bool) -> Callable[[], int]:
        """Begin to wait for the container's end, before its start; the result returns the exit code.

        The engine answers with headers as soon as it waits: no end can be missed, however short the container lives.
        """
        with _translated("the container's end cannot be waited for"):
            response = self._api._post(
                self._api._url("/containers/{0}/wait", container),
                params={"condition": "removed" if is_removed else "next-exit"},
                stream=True,
                timeout=None,
            )
            self._api._raise_for_status(response)

        def wait() -> int:
            with _translated("the engine was lost before the container's end"):
                return int(response.json()["StatusCode"])

        return wait

    def start(self, container: str) -> None:
        """Start a container. Raises EngineError, or 126 and 127's errors when its command cannot be started."""
        try:
            self._api.start(container)
        except (DockerException, requests.exceptions.RequestException) as error:
            raise self._start_error(container, error) from None

    def _start_error(self, container: str, error: Exception) -> VgpurunError:
        reason = _runtime_reason(one_line(error))
        exit_code = None
        with suppress(DockerException, requests.exceptions.RequestException):  # with --rm it may be gone
            exit_code = self._api.inspect_container(container)["State"]["ExitCode"]
        if exit_code == CommandNotFoundError.exit_code or _is_about_command(reason, _NOT_FOUND):
            return CommandNotFoundError(f"the command is not in the image: {reason}")
        if exit_code == CommandNotExecutableError.exit_code or _is_about_command(reason, _NOT_EXECUTABLE):
            return CommandNotExecutableError(f"the command cannot be executed: {reason}")
        return EngineError(f"the container cannot be started: {reason}")

    def state_of(self, container: str) -> str | None:
        """Return a container's state in docker's words (created, running, exited, ...), or None when it is gone."""
        with _translated("the container cannot be looked at"):
            try:
                return str(self._api.inspect_container(container)["State"]["Status"])
            except NotFound:
                return None

    def kill(self, container: str, signal_number: int) -> None:
        """Send a signal to a container; nothing happens if it has ended."""
        with suppress(DockerException, requests.exceptions.RequestException):
            self._api.kill(container, signal_number)

    def stop(self, container: str) -> None:
        """End a container: SIGTERM, and SIGKILL two seconds later; nothing happens if it has ended."""
        with suppress(DockerException, requests.exceptions.RequestException):
            self._api.stop(container, timeout=2)

    def resize(self, container: str, columns: int, rows: int) -> None:
        """Tell the container's terminal its size; nothing happens if it has ended."""
        with suppress(DockerException, requests.exceptions.RequestException):
            self._api.resize(container, height=rows, width=columns)

    def remove(self, container: str) -> None:
        """Remove a container, running or not, with its anonymous volumes; nothing happens if it is gone."""
        with suppress(DockerException, requests.exceptions.RequestException):
            self._api.remove_container(container, force=True, v=True)

    def containers(self, everything: bool = True) -> list[VgpurunContainer]:
        """Return the containers that vgpurun made, or the running ones of them. Raises EngineError."""
        with _translated("the containers cannot be listed"):
            found = self._api.containers(all=everything, filters={"label": LABEL_VERSION})
        return [
            VgpurunContainer(
                id=each["Id"],
                name=each["Names"][0].lstrip("/") if each.get("Names") else each["Id"][:12],
                image=each.get("Image", ""),
                status=each.get("State", ""),
                state_folder=each["Labels"].get(LABEL_STATE, ""),
                quota_json=each["Labels"].get(LABEL_QUOTA, "[]"),
                user=each["Labels"].get(LABEL_USER, ""),
                command=each.get("Command", ""),
                created_s=float(each.get("Created", 0)),
                described=each.get("Status", ""),
                labels=each["Labels"],
            )
            for each in found
        ]


def port_bindings(ports: tuple[str, ...]) -> dict[str, Any]:
    """Read all -p, in docker's syntax. Raises OptionError."""
    try:
        return dict(build_port_bindings(list(ports)))
    except ValueError as error:
        raise OptionError(f"-p: {error}") from None


def _address() -> str:
    if given := os.environ.get("DOCKER_HOST"):
        return given
    name = os.environ.get("DOCKER_CONTEXT") or None
    try:
        context = ContextAPI.get_context(name)
    except (DockerException, OSError, ValueError) as error:
        raise EngineError(f"Docker's context cannot be read: {one_line(error)}") from None
    if context is None:
        which = f"DOCKER_CONTEXT={name}" if name else f"Docker's current context {get_current_context_name()}"
        raise EngineError(f"{which} does not exist; `docker context ls` lists those that do")
    return str(context.Host or DEFAULT_ADDRESS).replace("http+unix://", "unix://")


def _check_address(address: str) -> None:
    """Refuse an engine of another host, and say exactly what is wrong with a socket. Raises EngineError."""
    parts = urlsplit(address)
    path = parts.netloc + parts.path
    if not parts.scheme or not path:
        raise EngineError(f"DOCKER_HOST={address} is no engine's address; one is {DEFAULT_ADDRESS}")
    if parts.scheme != "unix" and (parts.scheme not in _TCP_SCHEMES or parts.hostname not in _THIS_HOST):
        raise EngineError(
            f"the Docker Engine at {address} is not this host's: vgpurun gives containers this host's files and "
            "GPUs; run it on that host, or unset DOCKER_HOST"
        )
    try:
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(path)
        else:
            socket.create_connection((parts.hostname, parts.port or _TCP_PORT), timeout=10).close()
    except PermissionError:
        raise EngineError(
            f"no permission on the Docker Engine's socket {path}; add yourself to its group "
            "(`sudo usermod -aG docker $USER`, then log in again), or use sudo"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a port that is none
        reason = getattr(error, "strerror", None) or error
        raise NoEngineError(
            f"no Docker Engine answers at {path} ({reason}); start it, or set DOCKER_HOST to its address"
        ) from None


def _tls(address: str) -> dict[str, Any]:
    if address.startswith("unix:"):
        return {}
    return {key: value for key, value in kwargs_from_env().items() if key == "tls"}


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn docker-py's errors into one line."""
    try:
        yield
    except (DockerException, requests.exceptions.RequestException, OSError) as error:
        raise EngineError(f"{what}: {one_line(error)}") from None


def one_line(error: object) -> str:
    """Return an error's words, the engine's own where it has said some, on one line."""
    text = str(error.explanation or error) if isinstance(error, APIError) else str(error)
    return " ".join(text.split())


def _runtime_reason(text: str) -> str:
    """Cut what runc and containerd put around the one thing that went wrong."""
    for marker in _RUNTIME_MARKERS:
        if marker in text:
            text = text.split(marker, 1)[1]
            break
    return text.removesuffix(": unknown")


def _is_about_command(reason: str, words: tuple[str, ...]) -> bool:
    return reason.startswith("exec") and any(word in reason for word in words)


def plain_socket(wrapped: Any) -> socket.socket:
    """Return the socket itself: docker-py wraps it for reading only, and leaves a timeout on it."""
    plain: socket.socket = getattr(wrapped, "_sock", wrapped)
    plain.settimeout(None)
    return plain.dup()  # the wrapper closes its own when it is collected


def _only_file(archive: bytes) -> bytes | None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        member = tar.next()
        file = tar.extractfile(member) if member is not None and member.isfile() else None
        return file.read() if file else None
