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
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from docker import APIClient
from docker.errors import APIError, create_api_error_from_http_exception
from docker.tls import TLSConfig
from requests import HTTPError, Response

from vgpurun.engine.address import Address

_MAX_HEAD_BYTES = 64 << 10
_MAX_REFUSAL_BYTES = 1 << 20


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
    client: APIClient, address: Address, path: str, params: Mapping[str, Any], body: Mapping[str, object]
) -> socket.socket:
    """Send a request after whose answer the connection is a container's streams; return the connection.

    Raises APIError for what the engine refuses, and OSError.
    """
    connection = _connect(client, address)
    try:
        text = json.dumps(body).encode()
        head = [
            f"POST /v{client.api_version}{quote(path, safe='/:')}?{urlencode(params)} HTTP/1.1",
            "Host: localhost",
            "Connection: Upgrade",
            "Upgrade: tcp",
            "Content-Type: application/json",
            f"Content-Length: {len(text)}",
        ]
        connection.sendall("\r\n".join([*head, "", ""]).encode() + text)
        _check(connection)
        connection.settimeout(None)
    except BaseException:
        connection.close()
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


def _check(connection: socket.socket) -> None:
    """Read the answer's head, and not a byte behind it."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        head += byte
        if not byte or len(head) > _MAX_HEAD_BYTES:
            raise OSError("the connection was closed without an answer" if not byte else "the answer is not HTTP")
    version, _, rest = head.decode("latin-1").partition(" ")
    code, _, reason = rest.partition("\r\n")[0].partition(" ")
    if not version.startswith("HTTP/1.") or not code.isdecimal():
        raise OSError("the answer is not HTTP")
    if int(code) not in (HTTPStatus.SWITCHING_PROTOCOLS, HTTPStatus.OK):
        raise APIError(f"{code} {reason}", explanation=_refusal(connection, head) or reason)


def _refusal(connection: socket.socket, head: bytes) -> str:
    lines = head.decode("latin-1").lower().split("\r\n")
    length = next((line.partition(":")[2].strip() for line in lines if line.startswith("content-length:")), "")
    left = min(int(length), _MAX_REFUSAL_BYTES) if length.isdecimal() else 0
    text = b""
    while left > len(text) and (piece := connection.recv(left - len(text))):
        text += piece
    return _message(text)


def _message(text: bytes) -> str:
    try:
        found: Any = json.loads(text)
    except ValueError:
        return text.decode(errors="replace").strip()
    return str(found.get("message", "")) if isinstance(found, dict) else ""
