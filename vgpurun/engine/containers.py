"""Docker's own verbs for containers that vgpurun made. Errors have docker's words."""

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from docker.errors import APIError, DockerException
from requests import RequestException
from urllib3.exceptions import HTTPError

from vgpurun.engine import raw
from vgpurun.engine.client import Engine, VgpurunContainer, one_line
from vgpurun.engine.labels import Record, read_record
from vgpurun.errors import ContainerError, EngineError
from vgpurun.util.times import read_rfc3339
from vgpurun.util.users import current_user

_LONG_S = 365 * 86400  # for longer than this an answer is waited for without a limit
_SLACK_S = 30  # added to the time that the engine gives a container to stop


@dataclass(frozen=True)
class LogOptions:
    """The options of `docker logs`. Times are seconds since 1970."""

    follow: bool = False
    tail: str = "all"
    since_s: float | None = None
    until_s: float | None = None
    timestamps: bool = False
    details: bool = False


@dataclass(frozen=True)
class ExecOptions:
    """The options of `docker exec`."""

    command: Sequence[str]
    environment: Mapping[str, str]
    user: str = ""
    working_dir: str | None = None
    interactive: bool = False
    tty: bool = False
    detach: bool = False
    privileged: bool = False
    detach_keys: str | None = None


class ChunkedAnswer:
    """An answer that comes piece by piece, to be received from like a socket."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def recv(self, count: int, /) -> bytes:
        """Return up to that many bytes, none at the end. Raises EngineError when the engine is lost."""
        try:
            while not self._rest:
                self._rest = next(self._chunks)
        except StopIteration:
            return b""
        except (RequestException, HTTPError) as error:
            raise EngineError(f"the engine was lost while it answered: {one_line(error)}") from None
        piece, self._rest = self._rest[:count], self._rest[count:]
        return piece


class ContainerEngine(Engine):
    """The engine's verbs for one container. Each raises ContainerError for what the engine refuses."""

    def version(self) -> str:
        """Return the engine's name and version."""
        with _refusals():
            found = self._api.version()
        platform = (found.get("Platform") or {}).get("Name") or "Docker Engine"
        return f"{platform} {found.get('Version', '?')}"

    def describe(self, name: str) -> dict[str, Any]:
        """Return all that the engine knows of a container that vgpurun made, by its name or its id's beginning."""
        name = name.lstrip("/")  # the engine's own descriptions have one
        if not {"", ".", ".."}.isdisjoint(name.split("/")):  # else the path of something else
            raise ContainerError(f"No such container: {name}")
        with _refusals():
            found: dict[str, Any] = self._api.inspect_container(name)
        if _record(found) is None:
            raise ContainerError(f"container {name} was not made by vgpurun: use docker itself for it")
        return found

    def find(self, name: str) -> VgpurunContainer:
        """Return a container that vgpurun made, by its name or its id's beginning."""
        return from_description(self.describe(name))

    def find_own(self, name: str, others: bool = False) -> VgpurunContainer:
        """Return the same, but refuse one that another user started: root and `others` may have it.

        The engine makes no difference between its users, so this keeps them from accidents, not from each other.
        """
        found = self.find(name)
        if not others and os.geteuid() != 0 and found.user not in ("", current_user()):
            raise ContainerError(f"container {name} belongs to user {found.user}; give --others to act on it")
        return found

    def start_again(self, container: str) -> None:
        """Start a container that has ended; nothing happens if it runs."""
        self._post(f"/containers/{container}/start", {}, None)

    def stop_in_time(self, container: str, timeout_s: int | None, signal: str | None) -> None:
        """End a container with its stop signal, and SIGKILL after that time (None: what the container says)."""
        self._post_with_time(f"/containers/{container}/stop", timeout_s, signal)
        self._await_its_listing(container)

    def restart(self, container: str, timeout_s: int | None, signal: str | None) -> None:
        """End a container as stop_in_time does, and start it again."""
        self._post_with_time(f"/containers/{container}/restart", timeout_s, signal)

    def _post_with_time(self, path: str, timeout_s: int | None, signal: str | None) -> None:
        # docker-py's stop() knows no signal, and waits for its answer as long as a container without a time of its own.
        given = {"t": timeout_s, "signal": signal}
        params = {name: value for name, value in given.items() if value is not None}
        self._post(path, params, timeout_s + _SLACK_S if timeout_s is not None and 0 <= timeout_s < _LONG_S else None)

    def send_signal(self, container: str, signal: str) -> None:
        """Send a signal, by its name or number."""
        with _refusals():
            self._api.kill(container, signal)
        self._await_its_listing(container)

    def _await_its_listing(self, container: str) -> None:
        """Wait until the engine lists a container in its present state: it answers before it records an end.

        Otherwise the next reader, such as a launch that wants the room, would find it running. Inspecting waits for
        the record.
        """
        self.state_of(container)

    def set_paused(self, container: str, paused: bool) -> None:
        """Suspend all processes of a container, or let them go on."""
        with _refusals():
            (self._api.pause if paused else self._api.unpause)(container)

    def remove_for_good(self, container: str, force: bool, volumes: bool) -> None:
        """Remove a container, one that runs only by force; with its anonymous volumes or without."""
        with _refusals():
            self._api.remove_container(container, force=force, v=volumes)

    def remove_link(self, name: str) -> None:
        """Remove a link between containers, by its name: CONTAINER/ALIAS."""
        with _refusals():
            self._api.remove_container(name, link=True)

    def logs(self, container: str, options: LogOptions) -> "ChunkedAnswer":
        """Return what a container has written, as the engine sends it: framed, unless it has a terminal."""
        params = {
            "stdout": 1, "stderr": 1, "follow": int(options.follow), "tail": options.tail,
            "since": options.since_s, "until": options.until_s,
            "timestamps": int(options.timestamps), "details": int(options.details),
        }  # fmt: skip
        with _refusals():
            response = raw.ask(self._api, "GET", f"/containers/{container}/logs", params, stream=True)
        return ChunkedAnswer(response.raw.stream(1 << 16))

    def exec_create(self, container: str, options: ExecOptions) -> str:
        """Prepare a further command in a running container; return the exec's id."""
        with _refusals():
            created = self._api.exec_create(
                container, list(options.command), stdin=options.interactive, tty=options.tty, user=options.user,
                environment=dict(options.environment), workdir=options.working_dir, privileged=options.privileged,
                detach_keys=options.detach_keys,
            )  # fmt: skip
        return str(created["Id"])

    def exec_start(self, exec_id: str, tty: bool) -> socket.socket:
        """Start a prepared command; return its standard streams."""
        with _refusals():
            body = {"Detach": False, "Tty": tty}
            return raw.take_over(self._api, self.address, f"/exec/{exec_id}/start", {}, body)

    def exec_detached(self, exec_id: str, tty: bool) -> None:
        """Start a prepared command and leave it."""
        with _refusals():
            self._api.exec_start(exec_id, tty=tty, detach=True)

    def exec_resize(self, exec_id: str, columns: int, rows: int) -> None:
        """Tell the command's terminal its size; nothing happens if it has ended."""
        try:
            self._api.exec_resize(exec_id, height=rows, width=columns)
        except (DockerException, RequestException):
            return

    def exec_state(self, exec_id: str) -> tuple[bool, int]:
        """Return whether the command still runs, and its exit code."""
        with _refusals():
            found = self._api.exec_inspect(exec_id)
        return bool(found["Running"]), int(found["ExitCode"] or 0)

    def _post(self, path: str, params: Mapping[str, object], patience_s: float | None) -> None:
        with _refusals():
            raw.ask(self._api, "POST", path, params, patience_s=patience_s)  # 304: it had ended already


def from_description(found: Mapping[str, Any]) -> VgpurunContainer:
    """Return a container that vgpurun made from what the engine's inspection says."""
    return VgpurunContainer(
        id=found["Id"],
        name=found["Name"].lstrip("/"),
        image=found["Config"].get("Image", ""),
        status=found["State"]["Status"],
        record=_record(found) or Record(""),
        command=" ".join([found.get("Path", ""), *(found.get("Args") or [])]),
        created_s=read_rfc3339(found.get("Created", "")),
        labels=found["Config"].get("Labels") or {},
    )


def _record(found: Mapping[str, Any]) -> Record | None:
    return read_record(found["Id"], found["Config"].get("Labels") or {}, found.get("Mounts") or [])


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise docker's error for a request that the engine refuses, and ours for one that does not reach it."""
    try:
        yield
    except APIError as error:
        raise ContainerError(one_line(error)) from None
    except (DockerException, RequestException, OSError) as error:
        raise EngineError(f"the Docker Engine does not answer: {one_line(error)}") from None


def each_of(names: Sequence[str], act: Callable[[str], None], complain: Callable[[str], None]) -> int:
    """Do something to each container, the others too when it fails for one; return docker's exit code."""
    exit_code = 0
    for name in names:
        try:
            act(name)
        except ContainerError as error:
            complain(str(error))
            exit_code = error.exit_code
    return exit_code
