"""The Docker Engine, as far as vgpurun needs it."""

import io
import os
import re
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from docker import APIClient
from docker.constants import DEFAULT_TIMEOUT_SECONDS
from docker.credentials.errors import StoreError
from docker.errors import APIError, DockerException, ImageNotFound, InvalidConfigFile, NotFound
from docker.utils import version_lt
from requests import RequestException, Response

from vgpurun.engine import answers, raw
from vgpurun.engine.address import (
    Address,
    check_address,
    config_file,
    find_address,
    has_this_root,
    uid_behind,
)
from vgpurun.engine.labels import LABEL_STATE, OF_A_LOOK, Record, read_record
from vgpurun.errors import EngineError, ImageError, PullError, UnreachableEngineError
from vgpurun.limits.quota import Quota
from vgpurun.util import process_identity
from vgpurun.util.times import boot_s, read_rfc3339

if TYPE_CHECKING:
    from vgpurun.host.drivers import EngineFacts

_USUAL_LEVEL = {"arm": 7, "arm64": 8}
_LOOK_TAKES_S = 60  # at the very most, from a container's making to its removal


@dataclass(frozen=True)
class Image:
    """An image that the engine has, and what it sets for a container."""

    id: str
    environment: Mapping[str, str]
    platform: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    folder: str = ""
    user: str = ""

    def is_for(self, platform: str | None) -> bool:
        """Ask whether it runs on a platform, `OS/ARCH` with a variant or without, as the engine judges it.

        A processor runs what is for an earlier variant of its architecture, and an image need not name one.
        """
        if platform is None:
            return True
        (system, name, *variant), (of_image, name_of_image, *variant_of_image) = (
            each.split("/") for each in (platform, self.platform)
        )
        if (system, name) != (of_image, name_of_image):
            return False
        return not variant_of_image or _level(name, *variant_of_image) <= _level(name, *variant)


def _level(architecture: str, variant: str = "") -> float:
    """Return the number in a variant such as v7, and that of the usual one where none is given."""
    found = re.fullmatch(r"(?a)v([0-9]+(\.[0-9]+)?)", variant)
    return float(found[1]) if found else _USUAL_LEVEL.get(architecture, 1)


@dataclass(frozen=True)
class VgpurunContainer:
    """A container that vgpurun made. `created_s` is seconds since 1970; `status` is docker's word.

    `described` is what docker ps shows as its status, such as "Up 5 minutes"; a single container has none.
    """

    id: str
    name: str
    image: str
    status: str
    record: Record
    command: str = ""
    created_s: float = 0.0
    described: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    sizes: tuple[int, int] | None = None  # its own files, and all that it sees, if asked for

    @property
    def state_folder(self) -> str:
        """Its own state folder."""
        return self.record.state_folder

    @property
    def user(self) -> str:
        """The user that started it."""
        return self.record.user

    @property
    def quotas(self) -> tuple[tuple[str, Quota], ...]:
        """Its quotas at the launch, by the UUIDs of its GPUs."""
        return self.record.quotas

    @property
    def limits_folder(self) -> Path:
        """The folder of its limits and usage: its own state folder, or that of the slice that it has joined."""
        return Path(self.state_folder if self.is_part else self.record.slice_folder or self.state_folder)

    @property
    def tenant_folder(self) -> Path:
        """The folder of the share that others on the GPU see: the outermost one."""
        return Path(self.record.parents[-1]) if self.is_part else self.limits_folder

    @property
    def is_part(self) -> bool:
        """Whether it has limits of its own within a share, such as a slice."""
        return bool(self.record.parents)

    @property
    def slice_name(self) -> str:
        """The slice that it has joined or has a part of, or nothing."""
        return Path(self.record.slice_folder).name


_STOP_S = 2
_Engine = TypeVar("_Engine", bound="Engine")


_OF_ANOTHER_FORM = (AttributeError, LookupError, TypeError, ValueError)  # docker-py's errors for such a file
_ANY_VERSION = "1.24"  # no request that depends on the version is sent with this


def _client(address: Address, timeout_s: int) -> APIClient:
    """Return docker-py's client for an engine, of the API's version that docker's own command line would take.

    docker-py asks for /version, for which the engine asks containerd and runc; the answer to a ping says it too. And
    DOCKER_API_VERSION decides. Raises EngineError, DockerException and RequestException.
    """
    given = os.environ.get("DOCKER_API_VERSION", "").removeprefix("v")
    first = _connected(address, _ANY_VERSION, timeout_s)
    answer = raw.accepted(first.get(f"{first.base_url}/_ping", timeout=timeout_s))
    if "Libpod-Api-Version" in answer.headers:
        raise EngineError(
            "this is Podman's socket, which cannot do all that vgpurun asks of a Docker Engine; Podman can give "
            "containers a part of a GPU by CDI: see `vgpurun slice --help` and `vgpurun cdi --help`"
        )
    found = given or str(answer.headers.get("Api-Version") or first.version(api_version=False)["ApiVersion"])
    if not re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}", found, re.ASCII) or version_lt(found, _ANY_VERSION):
        where = "DOCKER_API_VERSION" if given else "the engine"
        raise EngineError(
            f"{where} says '{found}', which is not a version of Docker's API from {_ANY_VERSION} on; use e.g. 1.45"
        )
    first.close()
    client = _connected(address, found, timeout_s)
    client.hooks["response"].append(_check_form)
    return client


def _connected(address: Address, version: str, timeout_s: int) -> APIClient:
    try:
        client = APIClient(address.url, version, timeout_s, tls=address.tls or False)
    except (InvalidConfigFile, *_OF_ANOTHER_FORM) as error:
        raise EngineError(f"docker's configuration {config_file()} is not understood: {one_line(error)}") from None
    # The engine is this host's: no proxy is on the way, and REQUESTS_CA_BUNDLE would go before DOCKER_CERT_PATH.
    client.trust_env = False
    return client


def _check_form(answer: Response, *, stream: bool = False, **_: object) -> None:
    if not stream and answer.ok and answers.has_form(answer.url):
        answers.check(answer.url, answer.json())


class Engine:
    """A connection to the engine of this host."""

    def __init__(self, client: APIClient, address: Address) -> None:
        self._api: Any = client  # docker-py's own types are incomplete
        self.address = address
        self.listed: list[VgpurunContainer] | None = None  # by the last call of containers() for all of them
        self.left_looks: list[str] = []  # looks at images that killed launches have left, by then

    @classmethod
    def connect(cls: type[_Engine], timeout_s: int = DEFAULT_TIMEOUT_SECONDS) -> _Engine:
        """Connect to the engine that DOCKER_HOST or Docker's current context names. Raises EngineError.

        An answer that takes longer than `timeout_s` is none, unless a method says otherwise.
        """
        address = find_address()
        check_address(address)
        try:
            client = _client(address, timeout_s)
        except (DockerException, RequestException, OSError) as error:
            words = one_line(error)
            way_out = "; set DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH" if "HTTPS server" in words else ""
            raise UnreachableEngineError(
                f"the Docker Engine at {address.url} does not answer: {words}{way_out}"
            ) from None
        return cls(client, address)

    def facts(self) -> "EngineFacts":
        """Return what the engine can inject, and its id. Raises EngineError."""
        from vgpurun.host.drivers import EngineFacts, read_cdi_devices

        with translated("the engine cannot describe itself"):
            info = self._api.info()
        listed = [device.get("ID", "") for device in info.get("DiscoveredDevices") or []]
        is_rootless = "name=rootless" in (info.get("SecurityOptions") or ())
        return EngineFacts(
            id=info.get("ID", ""),
            runtimes=frozenset(info.get("Runtimes") or {}),
            cdi_devices=frozenset(listed) or read_cdi_devices(info.get("CDISpecDirs") or []),
            cdi_folders=tuple(info.get("CDISpecDirs") or ()),
            has_this_root=os.geteuid() == 0 and has_this_root(self.address),
            is_rootless=is_rootless,
            rootless_uid=uid_behind(self.address) if is_rootless else None,
            cgroup_driver=info.get("CgroupDriver", ""),
            default_runtime=info.get("DefaultRuntime", ""),
            has_toolkit_hook=shutil.which("nvidia-container-runtime-hook") is not None,
        )

    def image(self, name: str) -> Image | None:
        """Return an image, or None if the engine does not have it. Raises EngineError."""
        with translated(f"image {name}"):
            try:
                config = self._api.inspect_image(name)
            except ImageNotFound:
                return None
        sets = config.get("Config") or {}
        entries = sets.get("Env") or []
        platform = "/".join(filter(None, (config.get(key) for key in ("Os", "Architecture", "Variant"))))
        return Image(
            config["Id"],
            dict(entry.split("=", 1) for entry in entries if "=" in entry),
            platform,
            tuple(sets.get("Entrypoint") or ()),
            tuple(sets.get("Cmd") or ()),
            sets.get("WorkingDir") or "",
            sets.get("User") or "",
        )

    def image_names(self) -> list[str]:
        """Return the names of the images that the engine has, with their tags. Raises EngineError."""
        with translated("images"):
            listed = self._api.images()
        return sorted(name for each in listed for name in each.get("RepoTags") or () if name != "<none>:<none>")

    def pull(self, name: str, platform: str | None = None) -> Iterator[dict[str, Any]]:
        """Pull an image, yielding the engine's progress messages. Raises ImageError."""
        no_login = ""
        try:
            try:
                events = self._pull(name, platform)
            except DockerException as error:
                if not isinstance(error.__cause__, StoreError):
                    raise
                no_login = f"no login was found: {one_line(error.__cause__)}"
                events = self._pull(name, platform, {})  # like docker: the image may be for all
            for event in events:
                if "error" in event:
                    raise PullError(_not_pulled(name, event["error"], no_login))
                yield event
        except (DockerException, RequestException) as error:
            raise PullError(_not_pulled(name, error, no_login)) from None

    def _pull(self, name: str, platform: str | None, login: Mapping[str, str] | None = None) -> Any:
        with _no_warning_of_helpers():
            return self._api.pull(name, stream=True, decode=True, platform=platform, auth_config=login)

    def build(self, context: bytes, tag: str, arguments: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Build an image from a tar file with a Dockerfile, yielding the engine's messages. Raises ImageError."""
        try:
            with _no_warning_of_helpers():
                stream = self._api.build(
                    fileobj=io.BytesIO(context), custom_context=True, tag=tag, buildargs=dict(arguments), rm=True,
                    forcerm=True, decode=True,
                )  # fmt: skip
            for event in stream:
                yield event
                if "error" in event:
                    raise ImageError(f"the builder image cannot be made: {one_line(event['error'])}")
        except (DockerException, RequestException, StoreError) as error:
            raise ImageError(f"the builder image cannot be made: {one_line(error)}") from None

    def state_of(self, container: str, patience_s: float | None = None) -> str | None:
        """Return a container's state in docker's words (created, running, exited, ...), or None when it is gone.

        While a container is started the engine has no answer. `patience_s`: how long to wait for one, instead of the
        connection's time. Raises EngineError.
        """
        with translated("the container cannot be looked at"):
            try:
                patience_s = self._api.timeout if patience_s is None else patience_s
                answer = raw.ask(self._api, "GET", f"/containers/{container}/json", patience_s=patience_s)
                return str(answer.json()["State"]["Status"])
            except NotFound:
                return None

    def started_s(self, container: str) -> float | None:
        """Return when a container was started, by the boot clock; None if it does not run. Raises EngineError."""
        with translated("the container cannot be looked at"):
            try:
                found = self._api.inspect_container(container)["State"]
            except NotFound:
                return None
        if not found.get("Running"):
            return None
        with suppress(OSError, ValueError):  # a process of another PID namespace cannot be seen
            return process_identity.started_s(int(found["Pid"]))
        return boot_s() + read_rfc3339(found.get("StartedAt", "")) - time.time()

    def kill(self, container: str, signal_number: int) -> None:
        """Send a signal to a container; nothing happens if it has ended."""
        with suppress(DockerException, RequestException):
            self._api.kill(container, signal_number)

    def stop(self, container: str, patience_s: float | None = None, grace_s: int | None = _STOP_S) -> None:
        """End a container: its signal, and SIGKILL after `grace_s`; nothing happens if it has ended.

        None as grace is what the container says, or 10. It may take longer, while the engine writes the log.
        `patience_s`: how long to wait for that, instead of the connection's time; the engine goes on with it when
        nobody waits.
        """
        patience_s = self._api.timeout + _STOP_S if patience_s is None else patience_s
        with suppress(DockerException, RequestException):
            params = {} if grace_s is None else {"t": grace_s}
            raw.ask(self._api, "POST", f"/containers/{container}/stop", params, patience_s=patience_s)

    def resize(self, container: str, columns: int, rows: int) -> None:
        """Tell the container's terminal its size; nothing happens if it has ended."""
        with suppress(DockerException, RequestException):
            self._api.resize(container, height=rows, width=columns)

    def remove(self, container: str, force: bool = True) -> None:
        """Remove a container with its anonymous volumes, a running one only by force; nothing happens if it is gone."""
        with suppress(DockerException, RequestException):
            self._api.remove_container(container, force=force, v=True)

    def containers(self, everything: bool = True, with_sizes: bool = False) -> list[VgpurunContainer]:
        """Return the containers that vgpurun made, or the running ones of them. Raises EngineError."""
        with translated("the containers cannot be listed"):
            found = self._api.containers(all=everything, size=with_sizes, filters={"label": LABEL_STATE})
        made = [
            VgpurunContainer(
                id=each["Id"],
                name=each["Names"][0].lstrip("/") if each.get("Names") else each["Id"][:12],
                image=each.get("Image", ""),
                status=each.get("State", ""),
                record=record,
                command=each.get("Command", ""),
                created_s=float(each.get("Created", 0)),
                described=each.get("Status", ""),
                labels=each["Labels"],
                sizes=(int(each.get("SizeRw") or 0), int(each.get("SizeRootFs") or 0)) if with_sizes else None,
            )
            for each in found
            if (record := read_record(each["Id"], each["Labels"], each.get("Mounts") or []))
        ]
        if everything:
            self.listed = made
            self.left_looks = [each["Id"] for each in found if _is_left_look(each)]
        return made


def _is_left_look(container: Mapping[str, Any]) -> bool:
    is_look = container["Labels"].get(LABEL_STATE) == OF_A_LOOK and container.get("State") == "created"
    return is_look and time.time() - float(container.get("Created", 0)) > _LOOK_TAKES_S


@contextmanager
def _no_warning_of_helpers() -> Iterator[None]:
    """Keep docker-py from warning of a login's helper that is not there: its error says the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _not_pulled(name: str, error: object, no_login: str) -> str:
    return f"image {name} cannot be pulled: {one_line(error)}{no_login and f'; {no_login}'}"


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn docker-py's errors into one line."""
    try:
        yield
    except (DockerException, RequestException, OSError) as error:
        raise EngineError(f"{what}: {one_line(error)}") from None


def one_line(error: object) -> str:
    """Return an error's words, the engine's own where it has said some, on one line."""
    text = str(error.explanation or error) if isinstance(error, APIError) else str(error)
    return " ".join(text.split())
