"""The few parts of Kubernetes' API server that a DRA plugin uses, over HTTP, and as strict.

An object is checked against the published schema of its Kubernetes version, unknown fields included, and a device's
request policies by the rules of the server's own validation. Quantities come back in the server's canonical form.
"""

from __future__ import annotations

import copy
import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
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
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class ApiServer:
    """Holds nodes, claims (by namespace and name) and slices (by name). `has_shares`: DRAConsumableCapacity is on.

    `granted` are the (verb, resource) that its client has a right to (None: to all); `used` are those that it has used.
    """

    def __init__(
        self, version: str = "1.36", has_shares: bool = True, granted: set[tuple[str, str]] | None = None
    ) -> None:
        self.granted = granted
        self.used: set[tuple[str, str]] = set()
        self.version = version
        self.has_shares = has_shares
        self.nodes = {"node-a": {"metadata": {"name": "node-a", "uid": "0000-node-a"}}}
        self.claims: dict[tuple[str, str], dict[str, Any]] = {}
        self.slices: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.lock = Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True

    @property
    def writes(self) -> list[str]:
        return [each for each in self.requests if not each.startswith("GET")]

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
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, target: str, body: dict[str, Any] | None) -> dict[str, Any]:
        url = urlsplit(target)
        with self.lock:
            self.requests.append(f"{method} {url.path}")
            if match := NODE.fullmatch(url.path):
                self._check_right("get", "nodes")
                return self._get(self.nodes, match[1])
            if match := CLAIM.fullmatch(url.path):
                self._check_right("get", "resourceclaims")
                return self._get(self.claims, (match[1], match[2]))
            if url.path == SLICES:
                self._check_right("create" if method == "POST" else "list", "resourceslices")
                return self._create(body) if method == "POST" else self._list(parse_qs(url.query))
            self._check_right({"GET": "get", "PUT": "update", "DELETE": "delete"}[method], "resourceslices")
            name = url.path.removeprefix(f"{SLICES}/")
            found = self._get(self.slices, name)
            if method == "PUT":
                return self._replace(name, found, body)
            if method == "DELETE":
                del self.slices[name]
            return found

    def _check_right(self, verb: str, resource: str) -> None:
        if self.granted is not None and (verb, resource) not in self.granted:
            raise RefusedError(403, f"cannot {verb} {resource}")
        self.used.add((verb, resource))

    def _get(self, among: dict[Any, dict[str, Any]], key: Any) -> dict[str, Any]:
        if key not in among:
            raise RefusedError(404, f"{key} not found")
        return among[key]

    def _list(self, query: dict[str, list[str]]) -> dict[str, Any]:
        selector = dict(part.split("=") for part in query.get("fieldSelector", [""])[0].split(",") if part)
        assert set(selector) <= {"spec.driver", "spec.nodeName"}, "only these fields can be selected by"
        items = [
            each
            for each in self.slices.values()
            if all(each["spec"][field.removeprefix("spec.")] == value for field, value in selector.items())
        ]
        return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSliceList", "metadata": {}, "items": items}

    def _create(self, body: dict[str, Any] | None) -> dict[str, Any]:
        assert body is not None
        metadata = body["metadata"]
        metadata["name"] = metadata.get("name") or f"{metadata['generateName']}{uuid.uuid4().hex[:5]}"
        return self._keep(body, 1)

    def _replace(self, name: str, found: dict[str, Any], body: dict[str, Any] | None) -> dict[str, Any]:
        assert body is not None and body["metadata"]["name"] == name
        version = found["metadata"]["resourceVersion"]
        if body["metadata"].get("resourceVersion") != version:
            raise RefusedError(409, "the object has been modified; please apply your changes to the latest version")
        for fixed in ("driver", "nodeName"):
            if body["spec"][fixed] != found["spec"][fixed]:
                raise RefusedError(422, f"spec.{fixed}: field is immutable")
        return self._keep(body, int(version) + 1)

    def _keep(self, body: dict[str, Any], version: int) -> dict[str, Any]:
        try:
            check_schema(body, self.version)
            check_slice(body["spec"])
        except (ValueError, kubernetes_validate.ValidationError) as error:
            raise RefusedError(422, str(error)) from None
        kept = copy.deepcopy(body)
        kept["metadata"]["resourceVersion"] = str(version)
        for device in kept["spec"]["devices"]:
            if not self.has_shares:
                device.pop("allowMultipleAllocations", None)
            for capacity in device["capacity"].values():
                capacity["value"] = canonical(capacity["value"])
                policy = capacity.get("requestPolicy")
                if policy and not self.has_shares:
                    del capacity["requestPolicy"]
                elif policy:
                    policy["default"] = canonical(policy["default"])
                    policy["validRange"] = {key: canonical(value) for key, value in policy["validRange"].items()}
        self.slices[kept["metadata"]["name"]] = kept
        return kept


def check_schema(body: dict[str, Any], version: str) -> None:
    """Raises kubernetes_validate.ValidationError for what a server of that version does not know."""
    kubernetes_validate.validate(body, version, strict=True)


def check_slice(spec: dict[str, Any]) -> None:
    """What the server's own validation asks for beside the schema. Raises ValueError."""
    if not spec["pool"]["resourceSliceCount"] >= 1 or not spec["pool"]["generation"] >= 1:
        raise ValueError("pool: must be greater than zero")
    if len(spec["devices"]) > 128:
        raise ValueError("devices: at most 128")
    for device in spec["devices"]:
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


def _handler(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            try:
                code, found = 200, server.answer(self.command, self.path, body)
            except RefusedError as error:
                code, found = error.code, {"kind": "Status", "status": "Failure", "message": str(error)}
            answer = json.dumps(found).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

        def log_message(self, *arguments: Any) -> None:
            pass

    return Handler
