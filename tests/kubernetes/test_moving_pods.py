"""The policies by which pods of HAMi and of KAI get the device plugin's resources, evaluated as an API server would.

By Kubernetes' own code (admission.py), and quickly in other words: there JSONPatch{...} is a map, and quantity(x) the
number that x is, in thousands with a k.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
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
    return re.sub(r"quantity\((.*?\])\)\.asInteger\(\)", r'int(\1.replace("k", "000"))', patches)


class PolicyError(Exception):
    """An expression has no value."""


class Policy:
    """A policy of a file."""

    def __init__(self, file: str) -> None:
        self._cel = pytest.importorskip("cel_expr_python.cel")
        strings = pytest.importorskip("cel_expr_python.ext.ext_strings")
        names = dict.fromkeys(("object", "variables"), self._cel.Type.DYN)
        self._env = self._cel.NewEnv(variables=names, extensions=[strings.ExtStrings()])
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
    """A pod as policies get it: its scheduler is named, and requests of extended resources are what limits are."""
    pod = copy.deepcopy(pod)
    pod["spec"].setdefault("schedulerName", "default-scheduler")
    for container in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]:
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


def container_with(name: str, limits: dict[str, str] | None) -> dict[str, Any]:
    return {"name": name, "image": "an-image", **({"resources": {"limits": {**limits}}} if limits else {})}


def pod_with(
    *limits: dict[str, str] | None,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    containers = [container_with(f"c{i}", each) for i, each in enumerate(limits)]
    given = {"annotations": annotations, "labels": labels}
    metadata = {"name": "pod", **{key: value for key, value in given.items() if value}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers, **spec}}


def without_defaults(pod: dict[str, Any]) -> dict[str, Any]:
    """The parts of a pod that a policy may change, without what Kubernetes' types add in writing."""
    metadata = {key: pod["metadata"].get(key) for key in ("annotations", "labels")}
    spec = {key: pod["spec"].get(key) for key in ("schedulerName", "initContainers", "volumes")}
    containers = [{**each, "resources": each.get("resources") or {}} for each in pod["spec"]["containers"]]
    inits = [{**each, "resources": each.get("resources") or {}} for each in spec.pop("initContainers") or []]
    return {**metadata, **spec, "containers": containers, "initContainers": inits}


def resources(pod: dict[str, Any]) -> list[dict[str, str]]:
    """Return what each container asks for, the same in limits and requests."""
    found = [each.get("resources", {}) for each in pod["spec"]["containers"]]
    assert all(each.get("limits") == each.get("requests") for each in found)
    return [each.get("limits", {}) for each in found]


MEMORY_UNITS, COMPUTE_UNITS = OfferedResources.memory_name, OfferedResources.compute_name
GPU, GPUMEM, GPUCORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
SHARE = {GPU: "1", GPUMEM: "3001"}


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (SHARE, {MEMORY_UNITS: "3"}),
        ({GPU: "1", GPUMEM: "4096", GPUCORES: "30", "cpu": "2"}, {MEMORY_UNITS: "4", COMPUTE_UNITS: "30", "cpu": "2"}),
        ({GPU: "1", GPUMEM: "3k", GPUCORES: "99"}, {MEMORY_UNITS: "3", COMPUTE_UNITS: "99"}),
        ({GPUMEM: "100", GPUCORES: "0"}, {MEMORY_UNITS: "1"}),  # HAMi adds the GPU, and takes 0 for no limit
    ],
)
@pytest.mark.parametrize("scheduler", [None, "default-scheduler", "hami-scheduler"])
def test_a_pod_of_hami(
    applied: Applied, limits: dict[str, str], expected: dict[str, str], scheduler: str | None
) -> None:
    spec = {"schedulerName": scheduler} if scheduler else {}
    moved = applied(HAMI, pod_with(None, limits, {"cpu": "1"}, **spec))
    assert resources(moved) == [{}, expected, {"cpu": "1"}]
    assert moved["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.parametrize("name", ["CUDA_DISABLE_CONTROL", "GPU_CORE_UTILIZATION_POLICY"])
def test_variables_of_hami_stay(applied: Applied, name: str) -> None:
    pod = pod_with(SHARE)
    pod["spec"]["containers"][0]["env"] = [{"name": name, "value": "force"}, {"name": "OTHER", "value": "disable"}]
    moved = applied(HAMI, copy.deepcopy(pod))
    assert resources(moved) == [{MEMORY_UNITS: "3"}]
    assert moved["spec"]["containers"][0]["env"] == pod["spec"]["containers"][0]["env"]


def is_left_alone(applied: Applied, file: str, pod: dict[str, Any]) -> bool:
    return without_defaults(applied(file, copy.deepcopy(pod))) == without_defaults(as_asked(pod))


@pytest.mark.parametrize(
    "limits",
    [
        {"cpu": "1"},
        {GPU: "1"},
        {GPU: "2", GPUMEM: "3001"},
        {GPU: "0", GPUMEM: "3001"},
        {GPU: "1", "nvidia.com/gpumem-percentage": "50"},
        {**SHARE, "nvidia.com/gpumem-percentage": "50"},
        {GPU: "1", GPUCORES: "50"},
        {GPUCORES: "50"},
        *({GPU: "1", GPUMEM: size} for size in ("0", "-1", "1500m", "16Gi", "3M", "3e3")),
        *({**SHARE, GPUCORES: percent} for percent in ("100", "101", "-1", "500m")),
        {**SHARE, "nvidia.com/priority": "0"},
        {**SHARE, "nvidia.com/mig-1g.10gb": "1"},
    ],
    ids=str,
)
def test_resources_of_hami_that_are_not_understood_stay(applied: Applied, limits: dict[str, str]) -> None:
    assert is_left_alone(applied, HAMI, pod_with(limits, schedulerName="hami-scheduler"))
    if limits != {"cpu": "1"}:  # nor is the share beside them
        assert is_left_alone(applied, HAMI, pod_with(SHARE, limits, schedulerName="hami-scheduler"))


@pytest.mark.parametrize(
    "more",
    [
        {"schedulerName": "volcano"},
        {"initContainers": [container_with("i", SHARE)]},
        {"initContainers": [container_with("i", {GPU: "1"})]},
        *(
            {"annotations": {key: value}}
            for key, value in (
                ("nvidia.com/use-gpuuuid", "GPU-AAA,GPU-BBB"),
                ("nvidia.com/nouse-gpuuuid", "GPU-AAA"),
                ("nvidia.com/use-gputype", "A100"),
                ("nvidia.com/nouse-gputype", "NVIDIA A10"),
                ("nvidia.com/numa-bind", "true"),
                ("nvidia.com/vgpu-mode", "mig"),
                ("hami.io/node-scheduler-policy", "binpack"),
                ("hami.io/gpu-scheduler-policy", "mutex"),
            )
        ),
        {"labels": {"hami.io/webhook": "ignore"}},
    ],
    ids=str,
)
def test_choices_of_hami_that_cannot_be_kept_stay(applied: Applied, more: dict[str, Any]) -> None:
    assert is_left_alone(applied, HAMI, pod_with(SHARE, **more))


def test_a_pod_of_hami_that_lifts_its_compute_limit_stays(applied: Applied) -> None:
    pod = pod_with(SHARE)
    pod["spec"]["containers"][0]["env"] = [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "disable"}]
    assert is_left_alone(applied, HAMI, pod)


def test_a_pod_of_hami_has_at_most_eight_containers(applied: Applied) -> None:
    assert resources(applied(HAMI, pod_with(*[SHARE] * 8))) == [{MEMORY_UNITS: "3"}] * 8
    assert is_left_alone(applied, HAMI, pod_with(*[SHARE] * 9))


QUEUE = {"kai.scheduler/queue": "default-queue"}


@pytest.mark.parametrize(
    ("annotations", "units", "percent"),
    [
        ({MEMORY: "2000"}, 2, None),
        ({MEMORY: "1"}, 1, None),
        ({FRACTION: "0.5"}, 40, 50),
        ({FRACTION: ".25", "gpu-fraction-num-devices": "1"}, 20, 25),
        ({FRACTION: ".29", "gpu-fraction-num-devices": "1"}, 23, 29),
        ({FRACTION: "0.125"}, 10, 12),  # eight of them fit on a GPU
        ({FRACTION: "0.57"}, 45, 57),  # 0.57 * 100.0 is less than 57
        ({FRACTION: "0.9999"}, 79, 99),
        ({FRACTION: "0.001"}, 1, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("limits", [None, {"cpu": "1"}])
def test_a_pod_of_kai(
    applied: Applied, annotations: dict[str, str], units: int, percent: int | None, limits: dict[str, str] | None
) -> None:
    annotations = {**annotations, "other": "x"}
    pod = pod_with(limits, {"cpu": "2"}, annotations=annotations, labels=QUEUE, schedulerName="kai-scheduler")
    moved = applied(KAI, pod)
    share = {MEMORY_UNITS: str(units), **({COMPUTE_UNITS: str(percent)} if percent else {})}
    assert resources(moved) == [{**(limits or {}), **share}, {"cpu": "2"}]
    assert moved["spec"]["schedulerName"] == "default-scheduler"
    assert moved["metadata"]["annotations"] == {"other": "x"}
    assert moved["metadata"]["labels"] == QUEUE


@pytest.mark.parametrize(
    ("units_per_gpu", "fraction", "units", "percent"),
    [(8, "0.1", 1, 10), (15, "0.05", 1, 5), (15, "0.5", 7, 50), (8, "0.25", 2, 25)],
)
def test_a_fraction_of_a_small_gpu_of_kai_is_a_unit_at_least(
    tmp_path: Path, applied: Applied, units_per_gpu: int, fraction: str, units: int, percent: int
) -> None:
    text = (FOLDER / KAI).read_text()
    assert text.count('expression: "80"') == 1
    file = tmp_path / "smaller.yaml"
    file.write_text(text.replace('expression: "80"', f'expression: "{units_per_gpu}"'))
    moved = applied(str(file), pod_with(None, annotations={FRACTION: fraction}, schedulerName="kai-scheduler"))
    assert resources(moved) == [{MEMORY_UNITS: str(units), COMPUTE_UNITS: str(percent)}]


@pytest.mark.parametrize(
    "annotations",
    [
        {FRACTION: "0.5", "gpu-fraction-num-devices": "2"},
        {FRACTION: "0.5", "gpu-fraction-container-name": "c0"},
        {FRACTION: "0.5", MEMORY: "2000"},
        *({MEMORY: size} for size in ("2 GiB", "2Gi", "0", "-1", "1.5", "")),
        *({FRACTION: part} for part in ("0", "0.0", "1", "1.0", "1.5", "-0.5", "NaN", "half", "50%", "")),
        {FRACTION: "0.5", "mps": "true"},
        {FRACTION: "0.5", "kai.scheduler/topology": "a-topology"},
        {FRACTION: "0.5", "kai.scheduler/topology-required-placement": "a.b/rack"},
        {FRACTION: "0.5", "kai.scheduler/preemption-delay": "5m"},
        {FRACTION: "0.5", "kai-resource-isolator.io/inject": "false"},
        {"other": "x"},
        None,
    ],
    ids=str,
)
def test_annotations_of_kai_that_are_not_understood_stay(applied: Applied, annotations: dict[str, str] | None) -> None:
    pod = pod_with({"cpu": "1"}, annotations=annotations, labels=QUEUE, schedulerName="kai-scheduler")
    assert is_left_alone(applied, KAI, pod)


@pytest.mark.parametrize(
    "more",
    [
        {"schedulerName": "default-scheduler"},
        {"labels": {**QUEUE, "kai.scheduler/node-pool": "a-pool"}},
        {"labels": {**QUEUE, "kai.scheduler/subgroup-name": "workers"}},
        {"labels": {**QUEUE, "priorityClassName": "train"}},
        {"initContainers": [container_with("i", {GPU: "1"})]},
        {"volumes": [{"name": "mps", "hostPath": {"path": "/tmp/nvidia-mps"}}]},
    ],
    ids=str,
)
def test_choices_of_kai_that_cannot_be_kept_stay(applied: Applied, more: dict[str, Any]) -> None:
    spec = {"schedulerName": "kai-scheduler", "annotations": {FRACTION: "0.5"}, **more}
    assert is_left_alone(applied, KAI, pod_with({"cpu": "1"}, **spec))


@pytest.mark.parametrize("name", [GPU, "nvidia.com/mig-1g.10gb"])
def test_a_pod_of_kai_with_whole_gpus_stays(applied: Applied, name: str) -> None:
    pod = pod_with({name: "1"}, annotations={FRACTION: "0.5"}, schedulerName="kai-scheduler")
    assert is_left_alone(applied, KAI, pod)


def test_every_field_that_the_page_names_is_tried() -> None:
    page = (CHECKOUT / "docs" / "kubernetes.md").read_text()
    (section,) = re.findall(r"(?ms)^## Pods that were written for .*?(?=^## )", page)
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    names = {name for row in rows for name in re.findall(r"`([^`]+)`", row)} - {MEMORY_UNITS, COMPUTE_UNITS}
    assert len(names) > 40
    source = Path(__file__).read_text()
    assert [name for name in names if not all(part in source for part in name.rstrip("*").split(": "))] == []


@needs_admit
@pytest.mark.parametrize(
    ("writer", "node", "driver", "refused"),
    [
        ("vgpurun-system:vgpurun", "node-a", "gpu.vgpurun.io", ""),
        ("vgpurun-system:vgpurun", "node-b", "gpu.vgpurun.io", "may write the resource slices of its own node alone"),
        ("vgpurun-system:vgpurun", "node-a", "gpu.other.io", "may write the resource slices of its own driver alone"),
        ("gpu-tools:vgpurun", "node-b", "gpu.vgpurun.io", "may write the resource slices of its own node alone"),
        ("gpu-tools:team-vgpurun-2", "node-a", "gpu.other.io", "may write the resource slices of its own driver alone"),
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
