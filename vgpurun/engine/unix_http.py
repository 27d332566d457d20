"""HTTP over the engine's unix socket, as far as docker-py asks requests and urllib3 for it.

Their import is half of a start's time. So docker-py is made of this instead where the engine is at a unix socket: each
request has a connection of its own, without proxies, redirects, cookies and TLS.
"""

import io
import json
import socket
import time
from collections.abc import Iterator, Mapping
from types import ModuleType, TracebackType
from typing import Any, ClassVar
from urllib.parse import urlencode, urlsplit

from vgpurun.util.modules import later, made

_MAX_LINE_BYTES = 64 << 10
_MAX_HEADERS = 200
_MAX_INTERIM_ANSWERS = 20  # before the answer itself
_MAX_CONTENT_BYTES = 256 << 20  # of an answer that is read whole
_MAX_PIECE_BYTES = 1 << 20  # read at once: room is made for that many, whatever the engine says will come
_LONGEST_ANSWER = 5  # in patiences for one part of it
_SWITCHING_PROTOCOLS, _OK, _NO_CONTENT, _NOT_MODIFIED, _BAD_REQUEST = 101, 200, 204, 304, 400
_CODE_DIGITS, _MAX_LENGTH_DIGITS = 3, 18
# Bases of docker-py's client with parts of the engine's API that nobody asks for here.
_UNUSED_APIS = ("config", "network", "plugin", "secret", "service", "swarm", "volume")
_SCHEME = "http+docker://"


class TransportError(OSError):
    """The engine does not answer, or not in HTTP."""

    def __init__(self, *words: object, response: "Response | None" = None) -> None:
        super().__init__(*words)
        self.response = response


class NoJsonError(TransportError, ValueError):
    """The engine answers, but not in JSON; docker-py knows that as ValueError."""


class RefusedError(TransportError):
    """The engine answers that it refuses."""


class Headers(dict[str, str]):
    """An answer's headers, whose names may be written large or small."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(str(name).lower())

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        """Return a header's value."""
        return super().get(name.lower(), default)


class Body:
    """The part behind an answer's headers, read as it arrives. Reading raises TransportError.

    docker-py also looks at what http.client and urllib3 have inside: `_fp`, `fp`, `chunked` and `chunk_left`.
    """

    def __init__(self, file: io.BufferedReader, length: int | None, chunked: bool) -> None:
        self._fp = self
        self.fp = file
        self.chunked = chunked
        self.chunk_left: int | None = None
        self._left = length  # None: until the connection's end

    @property
    def closed(self) -> bool:
        """Whether all was read, or nobody wants the rest."""
        return self.fp.closed

    def close(self) -> None:
        """Give the connection up."""
        self.fp.close()

    def read(self, amount: int | None = None) -> bytes:
        """Return that many bytes, fewer only at the end; by default all."""
        pieces, count_bytes = [], 0
        while amount != 0 and (piece := self._piece(amount, self.fp.read)):
            pieces.append(piece)
            count_bytes += len(piece)
            if count_bytes > _MAX_CONTENT_BYTES:
                raise TransportError("the answer does not end")
            amount = None if amount is None else amount - len(piece)
        return b"".join(pieces)

    def stream(self, amount: int) -> Iterator[bytes]:
        """Yield what there is, each time at most that many bytes, as soon as some have arrived."""
        while piece := self._piece(amount, self.fp.read1):
            yield piece

    def _piece(self, amount: int | None, read: Any) -> bytes:
        """Read at most that many bytes of one chunk, none at the end."""
        if self.fp.closed:
            return b""
        with _Translated():
            left = self._chunk() if self.chunked else self._left
            piece: bytes = read(min(each for each in (amount, left, _MAX_PIECE_BYTES) if each is not None))
            if left is None:
                if not piece:
                    self.close()
                return piece
            if not piece and left:
                raise TransportError("the connection was closed in the middle of an answer")
            self._left = self.chunk_left = left - len(piece)
            if left == 0:
                self.close()
            return piece

    def _chunk(self) -> int:
        """Return what is left of the chunk, or the length of the next."""
        if self.chunk_left:
            return self.chunk_left
        if self.chunk_left is not None:
            self.fp.readline(_MAX_LINE_BYTES)  # the chunk's own end
        line = self.fp.readline(_MAX_LINE_BYTES)
        try:
            length = int(line.partition(b";")[0], 16)
        except ValueError:
            length = -1
        if length < 0:
            raise TransportError(
                "a part of the answer is not HTTP" if line else "the connection was closed in the middle of an answer"
            )
        if length == 0:
            _read_headers(self.fp)
        return length


class Response:
    """An answer: its headers are there, its body comes when it is asked for."""

    def __init__(self, url: str, status: int, reason: str, headers: Headers, raw: Body) -> None:
        self.url = url
        self.status_code = status
        self.reason = reason
        self.headers = headers
        self.raw = raw
        self._content: bytes | None = None

    @property
    def content(self) -> bytes:
        """The whole body."""
        if self._content is None:
            self._content = self.raw.read()
            self.close()
        return self._content

    @property
    def text(self) -> str:
        """The whole body as text."""
        return self.content.decode(errors="replace")

    def json(self) -> Any:
        """Return what the body says. Raises NoJsonError."""
        try:
            found = json.loads(self.content)
        except (ValueError, RecursionError):
            raise NoJsonError("the answer is not JSON") from None
        if self.status_code >= _BAD_REQUEST and not (isinstance(found, dict) and "message" in found):
            raise NoJsonError("the refusal does not say why")  # docker-py shows the text then
        return found

    def iter_content(self, amount: int = 1, _decode: bool = False) -> Iterator[bytes]:
        """Yield the body as it arrives."""
        return self.raw.stream(amount)

    def raise_for_status(self) -> None:
        """Raise RefusedError where the engine refuses."""
        if self.status_code >= _BAD_REQUEST:
            raise RefusedError(f"{self.status_code} {self.reason} for {self.url}", response=self)

    def close(self) -> None:
        """Give the connection up."""
        self.raw.close()


class UnixHTTPAdapter:
    """The place of a socket, from docker-py's address of it."""

    def __init__(self, socket_url: str, *_: Any, **__: Any) -> None:
        self.socket_path = "/" + socket_url.removeprefix("http+unix://").lstrip("/")


class Session:
    """The base of docker-py's client."""

    __attrs__: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.adapters: dict[str, Any] = {"http://": None, "https://": None}

    def mount(self, prefix: str, adapter: UnixHTTPAdapter) -> None:
        """Take an adapter for addresses that begin so."""
        self.adapters[prefix] = adapter

    def get(self, url: str, **given: Any) -> Response:
        """Send a GET request. Raises TransportError."""
        return self.request("GET", url, **given)

    def post(self, url: str, data: Any = None, **given: Any) -> Response:
        """Send a POST request. Raises TransportError."""
        return self.request("POST", url, data=data, **given)

    def put(self, url: str, data: Any = None, **given: Any) -> Response:
        """Send a PUT request. Raises TransportError."""
        return self.request("PUT", url, data=data, **given)

    def delete(self, url: str, **given: Any) -> Response:
        """Send a DELETE request. Raises TransportError."""
        return self.request("DELETE", url, **given)

    def request(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, Any] | None = None,
        data: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stream: bool = False,
    ) -> Response:
        """Send a request and return the answer, with its body unless it is to be streamed. Raises TransportError."""
        body = data.read() if hasattr(data, "read") else data or b""
        body = body.encode() if isinstance(body, str) else body
        given = {name: value for name, value in (params or {}).items() if value is not None}
        target = url.removeprefix(f"{_SCHEME}{urlsplit(url).netloc}") + (f"?{urlencode(given, True)}" if given else "")
        fields = {"Host": "localhost", "Connection": "close", **self.headers, **(headers or {})}
        if body or method != "GET":
            fields["Content-Length"] = str(len(body))
        head = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        if any("\r" in line or "\n" in line for line in head):
            raise TransportError("a header for the engine has more than one line")
        with _Translated(timeout):
            with socket.socket(socket.AF_UNIX) as connection:  # closed with the file that is made of it
                connection.settimeout(timeout)
                connection.connect(self.adapters[_SCHEME].socket_path)
                connection.sendall("\r\n".join([*head, "", ""]).encode("latin-1") + body)
                arriving = _Arriving(connection, "r")
                connection._io_refs += 1  # type: ignore[attr-defined]  # as makefile() does
            arriving.ends_s = None if timeout is None else time.monotonic() + timeout * _LONGEST_ANSWER
            answer = _read_answer(url, io.BufferedReader(arriving))
            if not stream and answer.status_code != _SWITCHING_PROTOCOLS:
                answer.content  # noqa: B018  # read now
            arriving.ends_s = None
            return answer

    def close(self) -> None:
        """Do nothing: no connection is kept."""


class _Arriving(socket.SocketIO):
    """A socket's bytes as they arrive, until `ends_s`: one that sends a byte now and then is not waited for forever."""

    ends_s: float | None = None

    def readinto(self, buffer: Any) -> int | None:
        """Wait for more, as long as the socket's timeout. Raises TimeoutError also when all was to be there."""
        if self.ends_s is not None and time.monotonic() > self.ends_s:
            raise TimeoutError
        return super().readinto(buffer)


def _read_answer(url: str, file: io.BufferedReader) -> Response:
    for _ in range(_MAX_INTERIM_ANSWERS):
        line = file.readline(_MAX_LINE_BYTES).decode("latin-1")
        version, _, rest = line.strip().partition(" ")
        code, _, reason = rest.partition(" ")
        if not version.startswith("HTTP/1.") or not (code.isdecimal() and len(code) == _CODE_DIGITS):
            raise TransportError("the answer is not HTTP" if line else "the connection was closed without an answer")
        status, headers = int(code), _read_headers(file)
        if status >= _OK or status == _SWITCHING_PROTOCOLS:
            break
    else:
        raise TransportError("the engine goes on to say that an answer will come")
    chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
    length = headers.get("Content-Length", "")
    is_empty = status in (_NO_CONTENT, _NOT_MODIFIED)
    if length and not (length.isdecimal() and len(length) <= _MAX_LENGTH_DIGITS):
        raise TransportError("the answer is not HTTP")
    left = 0 if is_empty else int(length) if length else None
    return Response(url, status, reason, headers, Body(file, left, chunked and not is_empty))


def _read_headers(file: io.BufferedReader) -> Headers:
    headers = Headers()
    for _ in range(_MAX_HEADERS):
        line = file.readline(_MAX_LINE_BYTES).decode("latin-1").strip()
        if not line:
            return headers
        name, _, value = line.partition(":")
        dict.__setitem__(headers, name.strip().lower(), value.strip())
    raise TransportError("the answer has too many headers")


class _Translated:
    """Raise TransportError for what the socket says. A class, which begins faster than a generator."""

    def __init__(self, timeout_s: float | None = None) -> None:
        self._timeout_s = timeout_s

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, TimeoutError):
            raise TransportError(f"no answer within {self._timeout_s:g} s" if self._timeout_s else "no answer")
        if isinstance(error, OSError) and not isinstance(error, TransportError):
            raise TransportError(error.strerror or str(error)) from None


class _Logger:
    """A logger of Python's, which is made when something is written to it that is shown."""

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, *_: object) -> None:
        """Do nothing, as Python does while nobody has asked for it."""

    def __getattr__(self, attribute: str) -> Any:
        import logging

        return getattr(logging.getLogger(self._name), attribute)


def _unused_type(name: str) -> None:
    """Stand for each type of a module."""
    if name.startswith("__"):
        raise AttributeError(name)


def _no_auth_yet(**_: object) -> None:
    """Answer a new client; docker-py asks again when it talks to a registry."""


def stand_ins() -> dict[str, ModuleType]:
    """Return the modules that docker-py is to find under these names while it is imported."""
    exceptions = made("requests.exceptions", RequestException=TransportError, HTTPError=RefusedError)
    adapters = made("requests.adapters")
    of_urllib3 = made("urllib3.exceptions", HTTPError=TransportError, ProtocolError=TransportError)
    ours = (
        exceptions,
        adapters,
        made("requests", Session=Session, exceptions=exceptions, adapters=adapters),
        made("urllib3", exceptions=of_urllib3),
        of_urllib3,
        made("docker.transport", UnixHTTPAdapter=UnixHTTPAdapter),
        *(made(f"docker.api.{name}", **{f"{name.title()}ApiMixin": type(name, (), {})}) for name in _UNUSED_APIS),
        made("docker.types", __getattr__=_unused_type),
        later("docker.auth", load_config=_no_auth_yet),
        made("docker.client", DockerClient=None, from_env=None, from_context=None),  # on top of APIClient
        made("docker.context", Context=None, ContextAPI=None),
        later("logging", getLogger=_Logger),
    )
    return {each.__name__: each for each in ours}
