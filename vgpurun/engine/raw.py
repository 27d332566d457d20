"""Requests to the engine that docker-py has no method for, and connections that the engine takes over.

docker-py names no signal when it stops a container, waits for an end only where it also waits for the answer, unpacks
logs, and reads ahead on a connection that becomes a container's streams, so that the first output would be lost. These
are made here of docker-py's and requests' public parts.
"""

import json
import socket
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, Literal, cast
from urllib.parse import quote, urlencode, urlsplit

from docker import APIClient
from docker.errors import APIError, create_api_error_from_http_exception
from docker.tls import TLSConfig
from requests import HTTPError, Response

from vgpurun.engine.address import Address

_CHUNK_BYTES = 64 << 10


def ask(
    client: APIClient,
    method: str,
    path: str,
    params: Mapping[str, Any] | None = None,
    body: Mapping[str, object] | None = None,
    stream: bool = False,
    patience_s: float | None = None,
) -> Response:
    """Send a request and return the answer, with its body unless it is to be streamed.

    `patience_s` is for each part of the answer; None waits for ever. Raises APIError for what the engine refuses, and
    RequestException.
    """
    url = f"{client.base_url}/v{client.api_version}{quote(path, safe='/:')}"
    return accepted(client.request(method, url, params=params, json=body, stream=stream, timeout=patience_s))


def accepted(answer: Response) -> Response:
    """Return an answer, but raise APIError with the engine's own words for a refusal."""
    try:
        answer.raise_for_status()
    except HTTPError as error:
        create_api_error_from_http_exception(error)  # raises it
    return answer


def take_over(
    client: APIClient, address: Address, path: str, params: Mapping[str, Any], body: Mapping[str, object] | None = None
) -> socket.socket:
    """Send a request after whose answer the connection is a container's streams; return the connection.

    Only an exec's start may have a body: the engine would take an attachment's for the stream. Raises APIError for
    what the engine refuses, and OSError.
    """
    connection = _connect(client, address)
    try:
        request = HTTPConnection("localhost")
        request.sock = connection
        headers = {"Connection": "Upgrade", "Upgrade": "tcp", "Content-Type": "application/json"}
        url = f"/v{client.api_version}{quote(path, safe='/:')}?{urlencode(params)}"
        request.request("POST", url, json.dumps(body) if body else None, headers)
        _check(connection)
        connection.settimeout(None)
    except BaseException as error:
        connection.close()
        if isinstance(error, HTTPException):
            raise OSError(f"the answer is not HTTP: {error or type(error).__name__}") from None
        raise
    if not isinstance(connection, ssl.SSLSocket):
        return connection
    from vgpurun.engine.relay import relayed

    return relayed(connection)


def _connect(client: APIClient, address: Address) -> socket.socket:
    parts = urlsplit(client.base_url)
    if parts.port is None:
        plain = socket.socket(socket.AF_UNIX)
        plain.settimeout(client.timeout)
        plain.connect(address.url.removeprefix("unix://"))
        return plain
    plain = socket.create_connection((parts.hostname or "", parts.port), timeout=client.timeout)
    return plain if address.tls is None else _context(address.tls).wrap_socket(plain, server_hostname=parts.hostname)


def _context(tls: TLSConfig) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca_cert)
    if not tls.verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if tls.cert:
        context.load_cert_chain(*tls.cert)
    return context


class _Unbuffered:
    """Has http.client read an answer's head, and not a byte behind it: that is the stream's."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def makefile(self, mode: Literal["rb"]) -> socket.SocketIO:
        """Return the connection as a file, as a socket does."""
        return self._connection.makefile(mode, buffering=0)


def _check(connection: socket.socket) -> None:
    """Read the answer's head; raise APIError if it is a refusal."""
    answer = HTTPResponse(cast("socket.socket", _Unbuffered(connection)), method="POST")
    answer.begin()
    if answer.status not in (HTTPStatus.SWITCHING_PROTOCOLS, HTTPStatus.OK):
        text = b"".join(iter(lambda: answer.read(_CHUNK_BYTES), b""))
        raise APIError(f"{answer.status} {answer.reason}", explanation=_message(text) or answer.reason)


def _message(text: bytes) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, LookupError, TypeError):
        return text.decode(errors="replace").strip()
