"""The address of the Docker Engine, as docker's own command line decides it, and whether it can be this host's."""

import json
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vgpurun.errors import EngineError, NoEngineError, UnreachableEngineError

DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
_DEFAULT_CONTEXT = "default"
_TCP_SCHEMES = ("tcp", "http", "https")
_TCP_PORT = 2375
_CONNECT_S = 10


@dataclass(frozen=True)
class Address:
    """An engine's address, where it was found (for messages), and docker-py's settings for TLS."""

    url: str
    origin: str
    tls: Any = None


def find_address() -> Address:
    """Return what DOCKER_HOST, DOCKER_CONTEXT or Docker's current context names. Raises EngineError."""
    if given := os.environ.get("DOCKER_HOST"):
        return Address(given, f"DOCKER_HOST={given}", _tls_of_environment(given))
    given = os.environ.get("DOCKER_CONTEXT")
    name = given or _current_context()
    if name == _DEFAULT_CONTEXT:
        return Address(DEFAULT_ADDRESS, "Docker's default")
    return _of_context(name, f"DOCKER_CONTEXT={name}" if given else f"Docker's current context {name}")


def _current_context() -> str:
    try:
        return str(json.loads(Path(config_file()).read_bytes()).get("currentContext") or _DEFAULT_CONTEXT)
    except (OSError, ValueError, AttributeError):  # docker, too, takes what it cannot read for none
        return _DEFAULT_CONTEXT


def config_fault() -> str | None:
    """Say what is wrong with docker's own configuration; docker warns of that, and goes on without."""
    try:
        json.loads(Path(config_file()).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        return f"Error parsing config file ({config_file()}): {reason}"
    return None


def config_file() -> str:
    """Return the path of docker's own configuration, which need not be there."""
    folder = os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")  # noqa: PTH111
    return os.path.join(folder, "config.json")  # noqa: PTH118


def _of_context(name: str, origin: str) -> Address:
    """Return the engine of a context as docker's command line keeps it, in a folder named by the name's hash."""
    import hashlib  # few have a context

    key, contexts = hashlib.sha256(name.encode()).hexdigest(), Path(config_file()).parent / "contexts"
    try:
        described = json.loads((contexts / "meta" / key / "meta.json").read_bytes())
        endpoint = described["Endpoints"]["docker"]
        url = str(endpoint.get("Host") or DEFAULT_ADDRESS)
        is_unchecked = bool(endpoint.get("SkipTLSVerify"))
    except FileNotFoundError:
        raise UnreachableEngineError(
            f"{origin} does not exist; `docker context ls` lists those that do, and DOCKER_CONTEXT=default is the "
            "engine of this host"
        ) from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UnreachableEngineError(f"{origin} cannot be read: {' '.join(str(error).split())}") from None
    tls = _tls_of_context(contexts / "tls" / key / "docker", is_unchecked) if _is_tcp(url) else None
    return Address(url, origin, tls)


def _tls_of_context(folder: Path, is_unchecked: bool) -> Any:
    found = {name: folder / f"{name}.pem" for name in ("ca", "cert", "key")}
    authority, certificate, key = (str(path) if path.is_file() else None for path in found.values())
    if not (authority or certificate or is_unchecked):
        return None
    from docker.tls import TLSConfig

    own = (certificate, key) if certificate and key else None
    return TLSConfig(client_cert=own, ca_cert=authority, verify=not is_unchecked)


def _tls_of_environment(url: str) -> Any:
    if not _is_tcp(url) or not (os.environ.get("DOCKER_TLS_VERIFY") or os.environ.get("DOCKER_CERT_PATH")):
        return None
    from docker.errors import DockerException
    from docker.utils import kwargs_from_env

    try:
        return kwargs_from_env().get("tls")
    except (DockerException, OSError) as error:
        raise EngineError(f"the certificates of DOCKER_CERT_PATH cannot be used: {error}") from None


def _is_tcp(url: str) -> bool:
    return urlsplit(url).scheme in _TCP_SCHEMES


def check_address(address: Address) -> None:
    """Refuse an engine of another host, and say exactly what is wrong with a socket. Raises EngineError."""
    parts = urlsplit(address.url)
    path = parts.netloc + parts.path
    if parts.scheme == "ssh":
        raise another_host(address, f"ssh {parts.hostname} vgpurun ...")
    if parts.scheme not in ("unix", *_TCP_SCHEMES) or not path:
        raise UnreachableEngineError(f"{address.origin} is not the address of an engine; use e.g. {DEFAULT_ADDRESS}")
    try:
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as probe:
                # Not settimeout(), with which a busy engine's full queue is an error at once.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(_CONNECT_S), 0))
                probe.connect(path)
        else:
            _probe(address, parts.hostname or "", parts.port or _TCP_PORT)
    except PermissionError:
        raise UnreachableEngineError(
            f"no permission on the Docker Engine's socket {path}; add yourself to its group "
            "(`sudo usermod -aG docker $USER`, then log in again), or use sudo"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a port that is none
        reason = getattr(error, "strerror", None) or error
        raise NoEngineError(
            f"no Docker Engine answers at {path} ({reason}); start it, or set DOCKER_HOST to its address"
        ) from None


def has_this_root(address: Address) -> bool:
    """Ask whether the engine surely sees the files that this process sees: not where this is in a container."""
    path = address.url.removeprefix("unix://")
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(path)
            pid, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return os.path.samestat(os.stat("/"), os.stat(f"/proc/{pid}/root/"))  # noqa: PTH116 (short for two of them)
    except OSError:
        return False


def _probe(address: Address, host: str, port: int) -> None:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if not any(_is_local(family, where) for family, _, _, _, where in found):
        raise another_host(address)
    socket.create_connection((host, port), timeout=_CONNECT_S).close()


def _is_local(family: int, where: Any) -> bool:
    """Ask whether an address is one of this host: only those can be bound."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((where[0], 0, *where[2:]))
        except OSError:
            return False
    return True


def another_host(address: Address, command: str = "vgpurun") -> EngineError:
    """Return the refusal of an engine that does not see this host's files and GPUs."""
    return EngineError(
        f"the Docker Engine at {address.url} is not this host's ({address.origin}): vgpurun gives containers this "
        f"host's files and GPUs; run it on that host ({command}), or unset DOCKER_HOST"
    )


def uid_behind(address: Address) -> int | None:
    """Return the user whose socket an address is, None for one that is none of this host's."""
    with suppress(OSError):
        return Path(address.url.removeprefix("unix://")).stat().st_uid if address.url.startswith("unix://") else None
    return None
