"""The few parts of Kubernetes' API server that a DRA plugin uses, over HTTP, and as strict.

An object is checked against the published schema of its Kubernetes version, unknown fields included, and a device's
request policies by the rules of the server's own validation. Quantities come back in the server's canonical form, lists
that are empty not at all, and what a feature gate is about is dropped where the gate is off, unless the object had it.
"""

from __future__ import annotations

import copy
import json
import re
import socket
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import yaml
from kubernetes.utils.quantity import parse_quantity

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIM = re.compile(r"/apis/resource\.k8s\.io/v1/namespaces/([^/]+)/resourceclaims/([^/]+)")
NODE = re.compile(r"/api/v1/nodes/([^/]+)")


class RefusedError(Exception):
    def __init__(self, code: int, message: str, more: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = {"kind": "Status", "status": "Failure", "message": message, "code": code, **(more or {})}


class ApiServer:
    """Holds nodes, claims (by namespace and name) and slices (by name). `has_shares`: DRAConsumableCapacity is on.

    `granted` are the (verb, resource) that its client has a right to (None: all); `requests` is how often it used each.
    `writes` are the changes of slices, dry runs not among them.
    """

    def __init__(
        self, version: str = "1.36", has_shares: bool = True, granted: set[tuple[str, str]] | None = None
    ) -> None:
        self.granted = granted
        self.requests: Counter[tuple[str, str]] = Counter()
        self.version = version
        self.has_shares = has_shares
        self.nodes = {"node-a": {"metadata": {"name": "node-a", "uid": "0000-node-a"}}}
        self.claims: dict[tuple[str, str], dict[str, Any]] = {}
        self.slices: dict[str, dict[str, Any]] = {}
        self.writes: list[str] = []
        self.fault: tuple[int, bytes] | None = None  # what every request is answered with instead
        self.answers_after_s = 0.0
        self.asked = 0  # how often
        self.lock = Lock()
        self._watches: dict[SimpleQueue[dict[str, Any] | None], dict[str, str]] = {}  # what each selects by
        self._connections: set[socket.socket] = set()
        self._version = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True

    def kubeconfig(self, folder: Path) -> str:
        """A file that leads here."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}}],
            "users": [{"name": "me", "user": {}}],
        }
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return str(path)

    def add_claim(self, claim: dict[str, Any]) -> None:
        check_schema(claim, self.version)
        with self.lock:
            self.claims[claim["metadata"]["namespace"], claim["metadata"]["name"]] = claim

    @contextmanager
    def running(self) -> Iterator[ApiServer]:
        thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self.stop()
            thread.join()

    def stop(self) -> None:
        """The process ends, and with it all that is connected to it."""
        self._server.shutdown()
        self._server.server_close()
        self.close_watches()
        with self.lock:
            for each in self._connections:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def connection(self, connected: socket.socket) -> Iterator[None]:
        with self.lock:
            self._connections.add(connected)
        try:
            yield
        finally:
            with self.lock:
                self._connections.remove(connected)

    def close_watches(self) -> None:
        """Close the watches, as a server does now and then."""
        with self.lock:
            for each in self._watches:
                each.put(None)

    @property
    def watches(self) -> int:
        """How many are open."""
        with self.lock:
            return len(self._watches)

    def delete_slices(self, node: str) -> None:
        """Do what kubelet asks for when it starts: none of the drivers of its node is there."""
        with self.lock:
            for name in [name for name, each in self.slices.items() if each["spec"]["nodeName"] == node]:
                self._delete(name)

    def watch(self, target: str) -> Iterator[dict[str, Any]]:
        """Return what there is and then what changes, until the time is over that the client has named."""
        query = parse_qs(urlsplit(target).query)
        events: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        with self.lock:
            self._check_right("watch", "resourceslices")
            for each in self._list(query)["items"]:
                events.put({"type": "ADDED", "object": each})
            self._watches[events] = _selector(query)
        return self._until(time.monotonic() + int(query["timeoutSeconds"][0]), events)

    def _until(self, ends_s: float, events: SimpleQueue[dict[str, Any] | None]) -> Iterator[dict[str, Any]]:
        try:
            with suppress(Empty):
                while event := events.get(timeout=max(0.0, ends_s - time.monotonic())):
                    yield event
        finally:
            with self.lock:
                del self._watches[events]

    def answer(self, method: str, target: str, body: dict[str, Any] | None) -> dict[str, Any] | bytes:
        """Return an object, or what is none as it is. Raises RefusedError."""
        url = urlsplit(target)
        with self.lock:
            if match := NODE.fullmatch(url.path):
                self._check_right("get", "nodes")
                return self._get(self.nodes, match[1])
            if match := CLAIM.fullmatch(url.path):
                self._check_right("get", "resourceclaims")
                return self._get(self.claims, (match[1], match[2]))
            if url.path == SLICES:
                query = parse_qs(url.query)
                self._check_right("create" if method == "POST" else "list", "resourceslices")
                return self._create(body, "dryRun" in query) if method == "POST" else self._list(query)
            self._check_right({"GET": "get", "PUT": "update", "DELETE": "delete"}[method], "resourceslices")
            name = url.path.removeprefix(f"{SLICES}/")
            found = self._get(self.slices, name)
            if method == "PUT":
                return self._replace(name, found, body)
            if method == "DELETE":
                self._delete(name)
            return found

    def _check_right(self, verb: str, resource: str) -> None:
        if self.granted is not None and (verb, resource) not in self.granted:
            raise RefusedError(403, f"cannot {verb} {resource}")
        self.requests[verb, resource] += 1

    def _get(self, among: dict[Any, dict[str, Any]], key: Any) -> dict[str, Any]:
        if key not in among:
            name = key if isinstance(key, str) else key[-1]
            raise RefusedError(404, f'"{name}" not found', {"reason": "NotFound", "details": {"name": name}})
        return among[key]

    def _list(self, query: dict[str, list[str]]) -> dict[str, Any]:
        items = [each for each in self.slices.values() if _is_selected(each, _selector(query))]
        return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSliceList", "metadata": {}, "items": items}

    def _create(self, body: dict[str, Any] | None, is_dry: bool) -> dict[str, Any]:
        assert body is not None
        metadata = body["metadata"]
        metadata["name"] = metadata.get("name") or f"{metadata['generateName']}{uuid.uuid4().hex[:5]}"
        made = self._made(body, None)
        if not is_dry:
            self.slices[metadata["name"]] = made
            self._tell("ADDED", made)
        return made

    def _replace(self, name: str, found: dict[str, Any], body: dict[str, Any] | None) -> dict[str, Any]:
        assert body is not None and body["metadata"]["name"] == name
        if body["metadata"].get("resourceVersion") != found["metadata"]["resourceVersion"]:
            raise RefusedError(409, "the object has been modified; please apply your changes to the latest version")
        for fixed in ("driver", "nodeName"):
            if body["spec"][fixed] != found["spec"][fixed]:
                raise RefusedError(422, f"spec.{fixed}: field is immutable")
        self.slices[name] = self._made(body, found)
        self._tell("MODIFIED", self.slices[name])
        return self.slices[name]

    def _delete(self, name: str) -> None:
        self._tell("DELETED", self.slices.pop(name))

    def _tell(self, kind: str, changed: dict[str, Any]) -> None:
        self.writes.append(kind)
        for events, selector in self._watches.items():
            if _is_selected(changed, selector):
                events.put({"type": kind, "object": changed})

    def _made(self, body: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
        """An object as it is kept."""
        try:
            check_schema(body, self.version)
            check_slice(body["spec"])
        except (ValueError, kubernetes_validate.ValidationError) as error:
            raise RefusedError(422, str(error)) from None
        kept = copy.deepcopy(body)
        self._version += 1
        kept["metadata"]["resourceVersion"] = str(self._version)
        keeps_shares = self.has_shares or (old is not None and _uses_shares(old))
        for device in kept["spec"].get("devices", []):
            if not keeps_shares:
                device.pop("allowMultipleAllocations", None)
            for capacity in device["capacity"].values():
                capacity["value"] = canonical(capacity["value"])
                policy = capacity.get("requestPolicy")
                if policy and not keeps_shares:
                    del capacity["requestPolicy"]
                elif policy:
                    policy["default"] = canonical(policy["default"])
                    policy["validRange"] = {key: canonical(value) for key, value in policy["validRange"].items()}
        if not kept["spec"].get("devices"):
            kept["spec"].pop("devices", None)
        return kept


def devices_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The devices of a slice."""
    return list(found["spec"].get("devices", []))


def _uses_shares(found: dict[str, Any]) -> bool:
    return any("allowMultipleAllocations" in each for each in devices_of(found))


def _selector(query: dict[str, list[str]]) -> dict[str, str]:
    selector = dict(part.split("=") for part in query.get("fieldSelector", [""])[0].split(",") if part)
    assert set(selector) <= {"spec.driver", "spec.nodeName"}, "only these fields can be selected by"
    return selector


def _is_selected(found: dict[str, Any], selector: dict[str, str]) -> bool:
    return all(found["spec"][field.removeprefix("spec.")] == value for field, value in selector.items())


def check_schema(body: dict[str, Any], version: str) -> None:
    """Raises kubernetes_validate.ValidationError for what a server of that version does not know."""
    kubernetes_validate.validate(body, version, strict=True)


def check_slice(spec: dict[str, Any]) -> None:
    """Check what the server's own validation asks for beside the schema. Raises ValueError."""
    if not spec["pool"]["resourceSliceCount"] >= 1 or not spec["pool"]["generation"] >= 1:
        raise ValueError("pool: must be greater than zero")
    devices = spec.get("devices", [])
    if len(devices) > 128:
        raise ValueError("devices: at most 128")
    for device in devices:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", device["name"]):
            raise ValueError(f"{device['name']}: no DNS label")
        for name, attribute in device["attributes"].items():
            check_attribute(name, attribute)
        for capacity in device["capacity"].values():
            if capacity.get("requestPolicy"):
                check_policy(Decimal(parse_quantity(capacity["value"])), capacity["requestPolicy"])


def check_attribute(name: str, attribute: dict[str, Any]) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,31}", name) or len(attribute) != 1:
        raise ValueError(f"{name}: not one value by a C identifier")
    if len(attribute.get("string", "")) > 64:
        raise ValueError(f"{name}: too long")
    number = r"(0|[1-9][0-9]*)"
    if not re.fullmatch(rf"{number}\.{number}\.{number}", attribute.get("version", "0.0.0")):
        raise ValueError(f"{name}: no semantic version")


def check_policy(value: Decimal, policy: dict[str, Any]) -> None:
    lowest, step = (Decimal(parse_quantity(policy["validRange"][key])) for key in ("min", "step"))
    default = Decimal(parse_quantity(policy["default"]))
    if not lowest <= default <= value or (default - lowest) % step or lowest + step > value:
        raise ValueError(f"requestPolicy {policy} does not go with {value}")


def canonical(text: str) -> str:
    """A quantity as the server prints it: the largest suffix of its kind that leaves a whole number."""
    amount = parse_quantity(text)
    suffixes = ["", "Ki", "Mi", "Gi", "Ti"] if text.endswith("i") else ["", "k", "M", "G", "T"]
    base = 1024 if text.endswith("i") else 1000
    power = max(i for i in range(5) if amount % base**i == 0) if amount else 0
    return f"{int(amount / base**power)}{suffixes[power]}"


def decoded(content: bytes) -> Any:
    """Return an object; of one that is sent as protobuf, as Helm 4 sends its own records, the name alone."""
    if not content.startswith(b"k8s\0"):
        return json.loads(content)
    metadata = _of_field(1, _of_field(2, content[4:]))  # of the object, which is the second field of an envelope
    return {"metadata": {"name": _of_field(1, metadata).decode()}}


def _of_field(number: int, message: bytes) -> bytes:
    """Return a field of a message whose fields up to it have a length."""
    at = found = 0
    while found != number:
        found, at, length, shift = message[at] >> 3, at + 1, 0, 0
        while message[at] & 0x80:
            length, at, shift = length | (message[at] & 0x7F) << shift, at + 1, shift + 7
        length, at = length | message[at] << shift, at + 1
        start, at = at, at + length
    return message[start:at]


def _handler(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # else head and body are two packets, and the second waits for the first to be confirmed

        def handle(self) -> None:
            with server.connection(self.connection), suppress(ConnectionError):
                super().handle()

        def finish(self) -> None:
            with suppress(ConnectionError):  # the client has gone while something was told
                super().finish()

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = decoded(self.rfile.read(length)) if length else None
            with server.lock:
                server.asked += 1
            time.sleep(server.answers_after_s)
            if server.fault:
                self._answer(*server.fault)
                return
            try:
                if "watch=True" in self.path or "watch=true" in self.path:
                    self._stream(server.watch(self.path))
                    return
                code = 200
                found: dict[str, Any] | bytes = server.answer(self.command, self.path, body)
            except RefusedError as error:
                code, found = error.code, error.status
            self._answer(code, found if isinstance(found, bytes) else json.dumps(found).encode())

        def _answer(self, code: int, answer: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            if code == 429:
                self.send_header("Retry-After", "3600")
            self.end_headers()
            self.wfile.write(answer)

        def _stream(self, events: Iterator[dict[str, Any]]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            for event in events:
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

        def log_message(self, *arguments: Any) -> None:
            pass

    return Handler
