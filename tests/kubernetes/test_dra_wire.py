"""What the DRA plugin and the node agent say to kubelet is what Kubernetes publishes, on the wire."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from published_api import NotAvailableError, compiled
from published_dra import read_interface, unpacked_package
from support import is_set, unavailable
from test_wire import PROTO, facts
from vgpurun.kubernetes.proto import dra_pb2, dra_v1beta1_pb2, podresources_pb2

V1 = "k8s.io.kubelet.pkg.apis.dra.v1."
V1BETA1 = "k8s.io.kubelet.pkg.apis.dra.v1beta1."


@pytest.fixture(scope="module")
def interfaces() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield unpacked_package(Path(folder))
        except NotAvailableError as error:
            unavailable(str(error), required=is_set("CI"))


def own(*modules: object) -> set[str]:
    found: set[str] = set()
    for module in modules:
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)  # type: ignore[attr-defined]
        found |= facts(file)
    return found


def test_dra_is_the_published_interface(interfaces: Path) -> None:
    """v1 is v1beta1 under another name; the package may be older than v1."""
    theirs = facts(read_interface(interfaces / "dra/v1beta1/api.proto"))
    assert len(theirs) > 15
    assert {line.replace(V1, V1BETA1) for line in own(dra_pb2)} == theirs
    services = {line.replace(V1, V1BETA1) for line in own(dra_v1beta1_pb2)}
    assert services == {line for line in theirs if line.startswith("/")}
    if (interfaces / "dra/v1").exists():
        assert own(dra_pb2) == facts(read_interface(interfaces / "dra/v1/api.proto"))


def test_pod_resources_are_the_published_interface(interfaces: Path) -> None:
    theirs = facts(read_interface(interfaces / "podresources/v1/api.proto"))
    assert own(podresources_pb2) <= theirs


def test_what_was_generated_is_what_the_description_says() -> None:
    """Run `make proto` after a change."""
    assert own(dra_pb2) == facts(compiled((PROTO / "dra.proto").read_text(), "description.proto"))
