"""The policies by which pods of HAMi and of KAI get the device plugin's resources, evaluated as an API server would.

Two things of Kubernetes' own CEL are put in other words here: JSONPatch{...} is a map, and quantity(x) a number.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml

from api_server import check_schema
from support import CHECKOUT
from vgpurun.kubernetes.device_plugin.offered_resources import Offer

FOLDER = CHECKOUT / "examples" / "kubernetes" / "moving"
HAMI, KAI = "pods-of-hami.yaml", "pods-of-kai.yaml"
FRACTION, MEMORY = "gpu-fraction", "gpu-memory"


def in_plain_cel(expression: str) -> str:
    patches = expression.replace("JSONPatch{op:", '{"op":')
    for key in ("path", "value", "from"):
        patches = re.sub(rf",\s+{key}:", f', "{key}":', patches)
    return patches.replace("quantity(", "int(").replace(".asInteger()", "")


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
        assert found.type() != self._cel.Type.ERROR, f"{expression}: {found}"
        return self._plain(found)

    def _plain(self, value: Any) -> Any:
        value = value.value() if isinstance(value, self._cel.Value) else value
        if isinstance(value, dict):
            return {self._plain(key): self._plain(each) for key, each in value.items()}
        return [self._plain(each) for each in value] if isinstance(value, list) else value

    def applied(self, pod: dict[str, Any]) -> dict[str, Any]:
        """A pod as it is after its creation. Requests of extended resources are what limits are, before any policy."""
        pod = copy.deepcopy(pod)
        for container in pod["spec"]["containers"]:
            if limits := container.setdefault("resources", {}).get("limits"):
                container["resources"].setdefault("requests", {}).update(limits)
        known: dict[str, Any] = {"object": pod, "variables": {}}
        if not all(self._value(each["expression"], known) for each in self._spec["matchConditions"]):
            return pod
        for mutation in self._spec["mutations"]:
            known["variables"] = {}
            for each in self._spec["variables"]:
                known["variables"][each["name"]] = self._value(each["expression"], known)
            for operation in self._value(mutation["jsonPatch"]["expression"], known):
                patch(pod, operation)
        check_schema(pod, "1.36")
        return pod


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
    found = [each["resources"] for each in pod["spec"]["containers"]]
    assert all(each.get("limits") == each.get("requests") for each in found)
    return [each.get("limits", {}) for each in found]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}, {Offer.memory_name: "3"}),
        (
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30", "cpu": "2"},
            {Offer.memory_name: "4", Offer.compute_name: "30", "cpu": "2"},
        ),
    ],
)
def test_a_pod_of_hami(limits: dict[str, str], expected: dict[str, str]) -> None:
    assert resources(Policy(HAMI).applied(pod_with(None, limits, {"cpu": "1"}))) == [{}, expected, {"cpu": "1"}]


@pytest.mark.parametrize(
    "limits",
    [
        {"cpu": "1"},
        {"nvidia.com/gpu": "1"},
        {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "50"},
    ],
)
def test_what_is_not_understood_of_hami_stays(limits: dict[str, str]) -> None:
    assert resources(Policy(HAMI).applied(pod_with(limits))) == [limits]


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({MEMORY: "2000"}, {Offer.memory_name: "2"}),
        ({FRACTION: "0.5"}, {Offer.memory_name: "40", Offer.compute_name: "50"}),
        ({FRACTION: "0.29", f"{FRACTION}-num-devices": "1"}, {Offer.memory_name: "23", Offer.compute_name: "29"}),
    ],
)
@pytest.mark.parametrize("limits", [None, {"cpu": "1"}])
def test_a_pod_of_kai(annotations: dict[str, str], expected: dict[str, str], limits: dict[str, str] | None) -> None:
    pod = pod_with(limits, annotations={**annotations, "other": "x"}, schedulerName="kai-scheduler")
    moved = Policy(KAI).applied(pod)
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
        ({"other": "x"}, "kai-scheduler"),
        (None, "kai-scheduler"),
    ],
)
def test_what_is_not_understood_of_kai_stays(annotations: dict[str, str] | None, scheduler: str) -> None:
    moved = Policy(KAI).applied(pod_with({"cpu": "1"}, annotations=annotations, schedulerName=scheduler))
    assert resources(moved) == [{"cpu": "1"}]
    assert moved["spec"]["schedulerName"] == scheduler
    assert moved["metadata"].get("annotations") == annotations
