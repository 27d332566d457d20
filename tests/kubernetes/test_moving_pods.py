"""The policies by which pods of HAMi and of KAI get the device plugin's resources, evaluated as an API server would.

By Kubernetes' own code (admission.py), and quickly in other words: there JSONPatch{...} is a map, and quantity(x) a
number.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import yaml

from admission import answer, needs_admit
from api_server import check_schema
from support import CHECKOUT
from vgpurun.kubernetes.device_plugin.offered_resources import OfferedResources

FOLDER = CHECKOUT / "examples" / "kubernetes" / "moving"
HAMI, KAI = "pods-of-hami.yaml", "pods-of-kai.yaml"
FRACTION, MEMORY = "gpu-fraction", "gpu-memory"


def in_plain_cel(expression: str) -> str:
    patches = expression.replace("JSONPatch{op:", '{"op":')
    for key in ("path", "value", "from"):
        patches = re.sub(rf",\s+{key}:", f', "{key}":', patches)
    return patches.replace("quantity(", "int(").replace(".asInteger()", "")


class PolicyError(Exception):
    """An expression has no value."""


class Policy:
    """A policy of a file."""

    def __init__(self, file: str) -> None:
        self._cel = pytest.importorskip("cel_expr_python.cel")
        self._env = self._cel.NewEnv(variables=dict.fromkeys(("object", "variables"), self._cel.Type.DYN))
        policy, binding = yaml.safe_load_all((FOLDER / file).read_text())
        assert binding["spec"]["policyName"] == policy["metadata"]["name"]
        self._spec = policy["spec"]

    def _value(self, expression: str, known: dict[str, Any]) -> Any:
        found = self._env.compile(in_plain_cel(expression)).eval(data=known)
        if found.type() == self._cel.Type.ERROR:
            raise PolicyError(f"{expression}: {found}")
        return self._plain(found)

    def _plain(self, value: Any) -> Any:
        value = value.value() if isinstance(value, self._cel.Value) else value
        if isinstance(value, dict):
            return {self._plain(key): self._plain(each) for key, each in value.items()}
        return [self._plain(each) for each in value] if isinstance(value, list) else value

    def applied(self, pod: dict[str, Any]) -> dict[str, Any]:
        """A pod as it is after its creation. A mutation that fails is left out, and the others are done."""
        assert self._spec["failurePolicy"] == "Ignore"
        if not all(self._value(each["expression"], {"object": pod}) for each in self._spec["matchConditions"]):
            return pod
        for mutation in self._spec["mutations"]:
            with suppress(PolicyError, KeyError):
                pod = self._mutated(pod, mutation)
        check_schema(pod, "1.36")
        return pod

    def _mutated(self, pod: dict[str, Any], mutation: dict[str, Any]) -> dict[str, Any]:
        """Objects are typed between two mutations: a map without anything in it is none."""
        known: dict[str, Any] = {"object": pod, "variables": {}}
        for each in self._spec["variables"]:
            known["variables"][each["name"]] = self._value(each["expression"], known)
        changed = copy.deepcopy(pod)
        for operation in self._value(mutation["jsonPatch"]["expression"], known):
            patch(changed, operation)
        return without_empty_maps(changed)


def without_empty_maps(value: Any) -> Any:
    if isinstance(value, list):
        return [without_empty_maps(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: without_empty_maps(each) for key, each in value.items()}
    return {key: each for key, each in kept.items() if each != {}}


def as_asked(pod: dict[str, Any]) -> dict[str, Any]:
    """A pod as policies get it. Requests of extended resources are what limits are, before any policy."""
    pod = copy.deepcopy(pod)
    for container in pod["spec"]["containers"]:
        if limits := container.get("resources", {}).get("limits"):
            container["resources"].setdefault("requests", {}).update(limits)
    return pod


Applied = Callable[[str, dict[str, Any]], dict[str, Any]]


def by_kubernetes(file: str, pod: dict[str, Any]) -> dict[str, Any]:
    pod["metadata"]["namespace"] = "default"
    admitted = answer([FOLDER / file], "pods", object=pod)["object"]
    assert isinstance(admitted, dict)
    return admitted


@pytest.fixture(params=["in other words", pytest.param("by Kubernetes", marks=needs_admit)])
def applied(request: pytest.FixtureRequest) -> Applied:
    """Apply a file's policy to a pod."""
    if request.param == "by Kubernetes":
        return lambda file, pod: by_kubernetes(file, as_asked(pod))
    return lambda file, pod: Policy(file).applied(as_asked(pod))


def patch(pod: dict[str, Any], operation: dict[str, Any]) -> None:
    """Carry out an operation of RFC 6902, which fails for what is not there."""

    def place(pointer: str) -> tuple[Any, Any]:
        *keys, last = [key.replace("~1", "/").replace("~0", "~") for key in pointer.split("/")[1:]]
        inner: Any = pod
        for key in keys:
            inner = inner[int(key) if isinstance(inner, list) else key]
        return inner, last

    inner, key = place(operation["path"])
    if operation["op"] == "remove":
        del inner[key]
    elif operation["op"] == "move":
        source, old = place(operation["from"])
        inner[key] = source.pop(old)
    else:
        assert operation["op"] == "add" or (operation["op"] == "replace" and key in inner)
        inner[key] = operation["value"]


def pod_with(*limits: dict[str, str] | None, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    containers = [
        {"name": f"c{i}", "image": "an-image", **({"resources": {"limits": each}} if each else {})}
        for i, each in enumerate(limits)
    ]
    metadata = {"name": "pod", **({"annotations": annotations} if annotations else {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers, **spec}}


def resources(pod: dict[str, Any]) -> list[dict[str, str]]:
    """Return what each container asks for, the same in limits and requests."""
    found = [each.get("resources", {}) for each in pod["spec"]["containers"]]
    assert all(each.get("limits") == each.get("requests") for each in found)
    return [each.get("limits", {}) for each in found]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}, {OfferedResources.memory_name: "3"}),
        (
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30", "cpu": "2"},
            {OfferedResources.memory_name: "4", OfferedResources.compute_name: "30", "cpu": "2"},
        ),
    ],
)
def test_a_pod_of_hami(applied: Applied, limits: dict[str, str], expected: dict[str, str]) -> None:
    assert resources(applied(HAMI, pod_with(None, limits, {"cpu": "1"}))) == [{}, expected, {"cpu": "1"}]


@pytest.mark.parametrize(
    "limits",
    [
        {"cpu": "1"},
        {"nvidia.com/gpu": "1"},
        {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3001"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "50"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1500m"},
    ],
)
def test_what_is_not_understood_of_hami_stays(applied: Applied, limits: dict[str, str]) -> None:
    assert resources(applied(HAMI, pod_with(limits))) == [limits]


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({MEMORY: "2000"}, {OfferedResources.memory_name: "2"}),
        ({FRACTION: "0.5"}, {OfferedResources.memory_name: "40", OfferedResources.compute_name: "50"}),
        (
            {FRACTION: "0.29", f"{FRACTION}-num-devices": "1"},
            {OfferedResources.memory_name: "23", OfferedResources.compute_name: "29"},
        ),
    ],
)
@pytest.mark.parametrize("limits", [None, {"cpu": "1"}])
def test_a_pod_of_kai(
    applied: Applied, annotations: dict[str, str], expected: dict[str, str], limits: dict[str, str] | None
) -> None:
    pod = pod_with(limits, annotations={**annotations, "other": "x"}, schedulerName="kai-scheduler")
    moved = applied(KAI, pod)
    assert resources(moved) == [{**(limits or {}), **expected}]
    assert moved["spec"]["schedulerName"] == "default-scheduler"
    assert moved["metadata"]["annotations"] == {"other": "x"}


@pytest.mark.parametrize(
    ("annotations", "scheduler"),
    [
        ({FRACTION: "0.5"}, "default-scheduler"),
        ({FRACTION: "0.5", f"{FRACTION}-num-devices": "2"}, "kai-scheduler"),
        ({FRACTION: "0.5", f"{FRACTION}-container-name": "c0"}, "kai-scheduler"),
        ({FRACTION: "0.5", MEMORY: "2000"}, "kai-scheduler"),
        ({MEMORY: "2 GiB"}, "kai-scheduler"),
        ({"other": "x"}, "kai-scheduler"),
        (None, "kai-scheduler"),
    ],
)
def test_what_is_not_understood_of_kai_stays(
    applied: Applied, annotations: dict[str, str] | None, scheduler: str
) -> None:
    moved = applied(KAI, pod_with({"cpu": "1"}, annotations=annotations, schedulerName=scheduler))
    assert resources(moved) == [{"cpu": "1"}]
    assert moved["spec"]["schedulerName"] == scheduler
    assert moved["metadata"].get("annotations") == annotations


@needs_admit
@pytest.mark.parametrize(
    ("writer", "node", "driver", "refused"),
    [
        ("vgpurun-system:vgpurun", "node-a", "gpu.vgpurun.io", ""),
        ("vgpurun-system:vgpurun", "node-b", "gpu.vgpurun.io", "may write the resource slices of its own node alone"),
        ("vgpurun-system:vgpurun", "node-a", "gpu.other.io", "may write the resource slices of its own driver alone"),
        ("others:others", "node-b", "gpu.other.io", ""),
    ],
)
def test_slices_of_other_nodes_by_kubernetes(writer: str, node: str, driver: str, refused: str) -> None:
    """The policy of examples/kubernetes/dra; test_manifests.py has more of it, in other words."""
    spec = {"driver": driver, "nodeName": node, "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}
    written = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}
    extra = {"authentication.kubernetes.io/node-name": ["node-a"]}
    user = {"username": f"system:serviceaccount:{writer}", "extra": extra}
    policy = [FOLDER.parent / "dra" / "slices-of-own-node.yaml"]
    for what in ({"object": written}, {"operation": "DELETE", "oldobject": written}):
        said = answer(policy, "resourceslices", user=user, **what).get("error", "")
        assert refused in said and bool(said) == bool(refused)
