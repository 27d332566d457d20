"""The parts of an API server that kubectl and Helm use: discovery, and objects of the kinds on docs/kubernetes.md.

It is as strict as a server: objects are checked against their published schemas, a namespace has to be there before
what is put into it, and nothing is made twice.
"""

from __future__ import annotations

import copy
import re
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

from api_server import ApiServer, RefusedError, check_schema

ADMISSION = "admissionregistration.k8s.io/v1"
KINDS = {
    "v1": ("ConfigMap", "Event", "Namespace", "Node", "Pod", "Secret", "Service", "ServiceAccount"),
    "apps/v1": ("DaemonSet",),
    ADMISSION: ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"),
    "monitoring.coreos.com/v1": ("PodMonitor",),  # of the Prometheus operator, without a schema among Kubernetes' own
}
OF_NO_NAMESPACE = ("Namespace", "Node", *KINDS[ADMISSION])
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
OPENAPI2 = b"\x0a\x032.0"  # a gnostic Document of version 2.0 that describes nothing
_PLACE = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<api>[^/]+/[^/]+))(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<part>[a-z]+))?"
)
Key = tuple[str, str, str]  # an object's kind, namespace and name


class Place(NamedTuple):
    """The place that a request is about: an object, a part of one, or, without a name, all of a kind."""

    api: str
    kind: str
    namespace: str
    name: str
    part: str

    @property
    def key(self) -> Key:
        return (self.kind, self.namespace, self.name)


class ObjectServer(ApiServer):
    """Holds objects by kind, namespace and name, and the logs of pods by name."""

    def __init__(self, *nodes: str) -> None:
        super().__init__()
        self.objects: dict[Key, dict[str, Any]] = {}
        self.logs: dict[str, str] = {}
        for kind, name in (("Namespace", "default"), *(("Node", name) for name in nodes)):
            self._create(Place("v1", kind, "", name, ""), {"metadata": {"name": name}})

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Return all objects of a kind."""
        with self.lock:
            return [copy.deepcopy(each) for key, each in self.objects.items() if key[0] == kind]

    def tell(self, pod: str, phase: str, reason: str, message: str) -> None:
        """Do as kubelet does where a pod of the default namespace gets on: set its phase and make an event."""
        with self.lock:
            found = self.objects["Pod", "default", pod]
            found["status"] = {"phase": phase}
            about = {"kind": "Pod", "namespace": "default", "name": pod, "uid": found["metadata"]["uid"]}
            event = {"metadata": {"name": f"{pod}.{len(self.objects)}"}, "involvedObject": about}
            event |= {"type": "Warning", "reason": reason, "message": message, "source": {"component": "kubelet"}}
            self._create(Place("v1", "Event", "default", event["metadata"]["name"], ""), event)

    def answer(self, method: str, target: str, body: dict[str, Any] | None) -> dict[str, Any] | bytes:
        url = urlsplit(target)
        if method == "GET" and (told := _told(url.path)) is not None:
            return told
        place = _place(url.path)
        with self.lock:
            if method == "POST":
                assert body is not None
                return self._create(place._replace(name=body["metadata"]["name"]), body)
            if not place.name:
                return self._of_kind(place, parse_qs(url.query))
            is_applied = method == "PATCH" and body is not None and "kind" in body  # by the server's own apply
            if is_applied and place.key not in self.objects:
                return self._create(place, body)
            found = self._get(self.objects, place.key)
            if place.part == "log":
                return self.logs[place.name].encode()
            if method == "DELETE":
                del self.objects[place.key]
            if method in ("PUT", "PATCH"):
                changed = body if method == "PUT" else merged(found, body)
                self._check(place, changed)
                self.objects[place.key] = found = self._kept(place, changed, found["metadata"])
            return found

    def _create(self, place: Place, body: dict[str, Any]) -> dict[str, Any]:
        if place.namespace:
            self._get(self.objects, ("Namespace", "", place.namespace))
        if place.key in self.objects:
            raise RefusedError(409, f'"{place.name}" already exists', {"reason": "AlreadyExists"})
        self._check(place, body)
        self.objects[place.key] = self._kept(place, body, {"uid": str(uuid.uuid4())})
        return self.objects[place.key]

    def _check(self, place: Place, body: dict[str, Any]) -> None:
        if place.kind == "PodMonitor":
            return
        try:
            check_schema({**body, "apiVersion": place.api, "kind": place.kind}, self.version)
        except kubernetes_validate.ValidationError as error:
            raise RefusedError(422, str(error), {"reason": "Invalid"}) from None

    def _kept(self, place: Place, body: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        metadata = {**body["metadata"], "uid": known["uid"], "resourceVersion": str(self._version)}
        metadata |= {"namespace": place.namespace} if place.namespace else {}
        return {**copy.deepcopy(body), "apiVersion": place.api, "kind": place.kind, "metadata": metadata}

    def _of_kind(self, place: Place, query: dict[str, list[str]]) -> dict[str, Any]:
        wanted = [(kind, part.split("=")) for kind in ("field", "label") for part in _selected(query, kind)]
        items = [
            each
            for (kind, namespace, _), each in self.objects.items()
            if kind == place.kind and place.namespace in ("", namespace)
            if all(_has(each, kind, *pair) for kind, pair in wanted)
        ]
        return {"apiVersion": place.api, "kind": f"{place.kind}List", "metadata": {}, "items": items}


def merged(found: Any, change: Any) -> Any:
    """Return what RFC 7386 makes of an object; a strategic merge does the same where no list is changed."""
    if not isinstance(change, dict) or not isinstance(found, dict):
        return copy.deepcopy(change)
    both = {key: merged(found[key], change[key]) for key in change if key in found}
    new = {key: value for key, value in change.items() if key not in found}
    return {key: value for key, value in {**found, **both, **new}.items() if value is not None}


def _selected(query: dict[str, list[str]], kind: str) -> list[str]:
    return [part for part in query.get(f"{kind}Selector", [""])[0].split(",") if part]


def _has(found: dict[str, Any], kind: str, path: str, value: str) -> bool:
    if kind == "label":
        return bool(found["metadata"].get("labels", {}).get(path) == value)
    inner: Any = found
    for key in path.split("."):
        inner = inner.get(key, {})
    return bool(inner == value)


def _place(path: str) -> Place:
    if found := _PLACE.fullmatch(path):
        api = found["core"] or found["api"]
        for kind in KINDS.get(api, ()):
            if plural(kind) == found["plural"]:
                return Place(api, kind, found["namespace"] or "", found["name"] or "", found["part"] or "")
    raise RefusedError(404, "the server could not find the requested resource", {"reason": "NotFound"})


def plural(kind: str) -> str:
    return f"{kind[:-1]}ies".lower() if kind.endswith("y") else f"{kind}s".lower()


def _told(path: str) -> dict[str, Any] | bytes | None:
    """Return what a server tells of itself at this path, if anything."""
    root = {"v1": "/api/v1", **{api: f"/apis/{api}" for api in KINDS if "/" in api}}
    groups = [
        {"name": api.split("/")[0], "versions": [{"groupVersion": api, "version": api.split("/")[1]}]}
        for api in KINDS
        if "/" in api
    ]
    told: dict[str, dict[str, Any] | bytes] = {
        "/version": {"major": "1", "minor": "36", "gitVersion": "v1.36.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
        "/openapi/v2": OPENAPI2,
        "/openapi/v3": {"paths": {place[1:]: {"serverRelativeURL": f"/openapi/v3{place}"} for place in root.values()}},
    }
    for api, place in root.items():
        resources = {"kind": "APIResourceList", "groupVersion": api, "resources": [*_resources(api)]}
        told[place] = resources
        told[f"/openapi/v3{place}"] = _described(api, place)
    return told.get(path)


def _resources(api: str) -> Iterator[dict[str, Any]]:
    for kind in KINDS[api]:
        names = {"name": plural(kind), "singularName": kind.lower(), "kind": kind}
        yield {**names, "namespaced": kind not in OF_NO_NAMESPACE, "verbs": VERBS}


def _described(api: str, place: str) -> dict[str, Any]:
    """By this kubectl knows that the server finds unknown fields itself."""
    group, _, version = api.rpartition("/")
    parameters = [{"name": name, "in": "query"} for name in ("fieldValidation", "dryRun")]
    paths = {
        f"{place}/{plural(kind)}/{{name}}": {
            "patch": {
                "parameters": parameters,
                "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
                "responses": {},
            }
        }
        for kind in KINDS[api]
    }
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.36.0"}, "paths": paths}
