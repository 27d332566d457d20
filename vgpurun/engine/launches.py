"""A launch's requests to the Docker Engine: make a container, attach to it, start it, and ask how it ended."""

import io
import socket
import tarfile
from collections.abc import Callable, Collection
from pathlib import Path, PurePosixPath
from typing import Any

from docker.errors import APIError, DockerException, NotFound
from docker.utils import version_lt
from docker.utils.config import load_general_config
from docker.utils.proxy import ProxyConfig
from requests import RequestException

from vgpurun.engine import raw
from vgpurun.engine.address import another_host
from vgpurun.engine.client import Engine, one_line, translated
from vgpurun.engine.labels import LABEL_STATE, OF_A_LOOK
from vgpurun.engine.request import endpoint_json
from vgpurun.errors import CommandNotExecutableError, CommandNotFoundError, EngineError, VgpurunError
from vgpurun.options import ContainerOptions
from vgpurun.options.network import Network
from vgpurun.options.values import DEFAULT_DETACH_KEYS

_ENDPOINTS_API = "1.44"  # older engines make a container with one network, and its hardware address is elsewhere
_NO_BIND_SOURCE = "bind source path does not exist"
_RUNTIME_MARKERS = (
    "unable to start container process: ",
    "starting container process caused: ",
    "OCI runtime create failed: ",
)
# The words for exit codes 127 and 126, by which docker goes too.
_BY_WORDS: tuple[tuple[type[VgpurunError], tuple[str, ...]], ...] = (
    (CommandNotFoundError, ("executable file not found", "no such file or directory")),
    (CommandNotExecutableError, ("permission denied", "is a directory")),
)
_MAX_FILE_BYTES = 64 << 20


class LaunchEngine(Engine):
    """The engine of a launch."""

    def create(self, options: ContainerOptions, body: dict[str, Any], folder: Path) -> tuple[str, list[str]]:
        """Create a container by its request; return its id and what the engine warns of.

        `folder` is the one that is mounted for its limits: an engine that cannot find it is another host's. Raises
        EngineError.
        """
        later = self._adapt_networks(body, options.networks)
        with translated(f"the container cannot be made from {options.image}"):
            try:
                created = self._api.create_container_from_config(body, options.name, options.platform)
            except APIError as error:
                if f"{_NO_BIND_SOURCE}: {folder}" in str(error.explanation):
                    raise another_host(self.address) from None
                raise launch_error(f"the container cannot be made from {options.image}: {one_line(error)}") from None
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
            body = {"Container": container, "EndpointConfig": settings}
            raw.ask(self._api, "POST", f"/networks/{network}/connect", body=body, patience_s=self._api.timeout)
        except DockerException:
            self.remove(container)
            raise

    def proxies(self) -> dict[str, str]:
        """Return the variables that docker's own configuration gives every container."""
        configured = load_general_config().get("proxies", {})
        found = configured.get(self.address.url, configured.get("default", {}))
        return {name: str(value) for name, value in ProxyConfig.from_dict(found).get_environment().items()}

    def create_to_read(self, image: str, platform: str | None = None) -> str:
        """Create a container that is never started, to read files of its image; return its id.

        By its label, which no image has, the next launch knows what a killed process has left.
        """
        with translated(f"the container cannot be made from {image}"):
            body = {"Image": image, "Cmd": ["-"], "Labels": {LABEL_STATE: OF_A_LOOK}}
            return str(self._api.create_container_from_config(body, None, platform)["Id"])

    def read_file(self, container: str, path: str) -> bytes | None:
        """Return a file of a container that need not run, through symbolic links; None if there is no such file."""
        for _ in range(8):
            try:
                chunks, status = self._api.get_archive(container, path)
            except NotFound:
                return None
            except (DockerException, RequestException) as error:
                raise EngineError(f"{path} cannot be read from the container: {one_line(error)}") from None
            if not status.get("linkTarget"):
                return _only_file(b"".join(chunks)) if status["size"] <= _MAX_FILE_BYTES else None
            chunks.close()
            path = str(PurePosixPath(path).parent / status["linkTarget"])
        return None

    def configured_detach_keys(self) -> str:
        """Return the keys that docker's own configuration says, or docker's default."""
        return str(load_general_config().get("detachKeys") or DEFAULT_DETACH_KEYS)

    def attach(self, container: str, streams: Collection[str], detach_keys: str) -> socket.socket:
        """Return a socket with some of the container's standard streams; to be called before the start."""
        with translated("the container's output cannot be read"):
            params = {**dict.fromkeys(streams, 1), "stream": 1, "detachKeys": detach_keys}
            return raw.take_over(self._api, self.address, f"/containers/{container}/attach", params)

    def expect_end(self, container: str, is_removed: bool) -> Callable[[], int]:
        """Begin to wait for the container's end, before its start; the result returns the exit code.

        The engine answers with headers as soon as it waits: no end can be missed, however short the container lives.
        """
        with translated("the container's end cannot be waited for"):
            params = {"condition": "removed" if is_removed else "next-exit"}
            response = raw.ask(self._api, "POST", f"/containers/{container}/wait", params, stream=True)

        def wait() -> int:
            with translated("the engine was lost before the container's end"):
                return int(response.json()["StatusCode"])

        return wait

    def start(self, container: str) -> None:
        """Start a container. Raises EngineError, or 126 and 127's errors when its command cannot be started."""
        try:
            self._api.start(container)
        except (DockerException, RequestException) as error:
            raise launch_error(f"the container cannot be started: {_runtime_reason(one_line(error))}") from None


def launch_error(message: str) -> VgpurunError:
    """Return the error of a launch that has the exit code which docker gives for such words."""
    kind = next((kind for kind, words in _BY_WORDS if any(word in message for word in words)), EngineError)
    return kind(message)


def _runtime_reason(text: str) -> str:
    """Cut what runc and containerd put around the one thing that went wrong."""
    for marker in _RUNTIME_MARKERS:
        if marker in text:
            text = text.split(marker, 1)[1]
            break
    return text.removesuffix(": unknown")


def _only_file(archive: bytes) -> bytes | None:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        member = tar.next()
        file = tar.extractfile(member) if member is not None and member.isfile() else None
        return file.read() if file else None
