"""The Docker Engine, as far as vgpurun needs it. The only file that imports docker."""

import io
import shutil
import socket
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import docker
import requests
from docker.constants import DEFAULT_TIMEOUT_SECONDS
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.utils import version_lt

from vgpurun import __version__, terminal
from vgpurun.container_body import endpoint_json, plan_body
from vgpurun.drivers import EngineFacts, read_cdi_devices
from vgpurun.engine_address import Address, another_host, check_address, find_address
from vgpurun.errors import (
    CommandNotExecutableError,
    CommandNotFoundError,
    EngineError,
    ImageError,
    VgpurunError,
)
from vgpurun.options.network import Network
from vgpurun.options.values import DEFAULT_DETACH_KEYS
from vgpurun.plan import LABEL_QUOTA, LABEL_USER, LABEL_VERSION, LaunchPlan
from vgpurun.state import LABEL_STATE

_ENDPOINTS_API = "1.44"  # older engines make a container with one network, and its hardware address is elsewhere
_NO_BIND_SOURCE = "bind source path does not exist"
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
    platform: str = ""

    def is_for(self, platform: str | None) -> bool:
        """Ask whether it is for a platform: `OS/ARCH`, with a variant or without, or `OS`."""
        return platform is None or f"{self.platform}/".startswith(f"{platform.lower()}/")


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

    def __init__(self, client: docker.APIClient, address: Address) -> None:
        self._api: Any = client  # docker-py's own types are incomplete
        self.address = address

    @classmethod
    def connect(cls: type[_Engine], timeout_s: int = DEFAULT_TIMEOUT_SECONDS) -> _Engine:
        """Connect to the engine that DOCKER_HOST or Docker's current context names. Raises EngineError.

        An answer that takes longer than `timeout_s` is none, unless a method says otherwise.
        """
        address = find_address()
        check_address(address)
        try:
            client = docker.APIClient(address.url, "auto", timeout_s, tls=address.tls or False)
        except (DockerException, requests.exceptions.RequestException, OSError) as error:
            raise EngineError(f"the Docker Engine at {address.url} does not answer: {one_line(error)}") from None
        return cls(client, address)

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
        platform = "/".join(filter(None, (config.get(key) for key in ("Os", "Architecture", "Variant"))))
        return Image(config["Id"], dict(entry.split("=", 1) for entry in entries if "=" in entry), platform)

    def pull(self, name: str, platform: str | None = None) -> Iterator[dict[str, Any]]:
        """Pull an image, yielding the engine's progress messages. Raises ImageError."""
        try:
            for event in self._api.pull(name, stream=True, decode=True, platform=platform):
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

    def create(self, plan: LaunchPlan) -> tuple[str, list[str]]:
        """Create the planned container; return its id and what the engine warns of. Raises EngineError."""
        options = plan.options
        body = plan_body(plan, self._proxies(), terminal.size())
        later = self._adapt_networks(body, options.networks)
        with _translated(f"the container cannot be made from {options.image}"):
            try:
                created = self._api.create_container_from_config(body, options.name, options.platform)
            except APIError as error:
                if f"{_NO_BIND_SOURCE}: {plan.state_folder}" in str(error.explanation):
                    raise another_host(self.address) from None
                raise
            for network in later:
                self._connect(created["Id"], network.name, endpoint_json(network))
        return str(created["Id"]), list(created.get("Warnings") or [])

    def _adapt_networks(self, body: dict[str, Any], networks: tuple[Network, ...]) -> tuple[Network, ...]:
        """Change a request for an engine of old; return the networks to be connected to later."""
        if not version_lt(self._api.api_version, _ENDPOINTS_API):
            return ()
        first, *others = networks
        body["MacAddress"] = first.mac_address
        for network in others:
            body["NetworkingConfig"]["EndpointsConfig"].pop(network.name, None)
        return tuple(others)

    def _connect(self, container: str, network: str, settings: dict[str, Any]) -> None:
        try:
            url = self._api._url("/networks/{0}/connect", network)
            body = {"Container": container, "EndpointConfig": settings}
            self._api._raise_for_status(self._api._post_json(url, data=body))
        except DockerException:
            self.remove(container)
            raise

    def _proxies(self) -> dict[str, str]:
        """Return the variables that docker's own configuration gives every container."""
        return dict(self._api._proxy_configs.get_environment())

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

    def configured_detach_keys(self) -> str:
        """Return the keys that docker's own configuration says, or docker's default."""
        return str(self._api._general_configs.get("detachKeys") or DEFAULT_DETACH_KEYS)

    def attach(self, container: str, streams: Collection[str], detach_keys: str) -> socket.socket:
        """Return a socket with some of the container's standard streams; to be called before the start."""
        with _translated("the container's output cannot be read"):
            params = {**dict.fromkeys(streams, 1), "stream": 1, "detachKeys": detach_keys}
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
