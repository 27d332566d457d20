"""Our descriptions of kubelet's interfaces are the published ones, on the wire."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from published_api import INTERFACES, compiled, published
from support import CHECKOUT

PROTO = CHECKOUT / "vgpurun/kubernetes/proto"
# Later releases have added these, which are used here.
NEWER = {
    "deviceplugin": {
        "message v1beta1.CDIDevice",
        "v1beta1.CDIDevice.name = 1: optional string",
        "v1beta1.ContainerAllocateResponse.cdidevices = 5: repeated .v1beta1.CDIDevice",
    },
    "podresources": {
        "message v1.CDIDevice",
        "v1.CDIDevice.name = 1: optional string",
        "message v1.ClaimResource",
        "v1.ClaimResource.cdidevices = 1: repeated .v1.CDIDevice",
        "message v1.DynamicResource",
        "v1.DynamicResource.claimname = 2: optional string",
        "v1.DynamicResource.claimnamespace = 3: optional string",
        "v1.DynamicResource.claimresources = 4: repeated .v1.ClaimResource",
        "v1.ContainerResources.dynamicresources = 5: repeated .v1.DynamicResource",
    },
    "pluginregistration": set(),
}


def module(interface: str) -> ModuleType:
    return import_module(f"vgpurun.kubernetes.proto.{interface}_pb2")


def facts(file: FileDescriptorProto) -> set[str]:
    """All that decides what is on the wire, a line for each: services, methods, messages and fields."""
    found = set()
    for service in file.service:
        for each in service.method:
            stream = "stream " * each.server_streaming
            assert not each.client_streaming
            found.add(f"/{file.package}.{service.name}/{each.name}({each.input_type}) {stream}{each.output_type}")
    messages = [(f"{file.package}.{message.name}", message) for message in file.message_type]
    for name, message in messages:
        found.add(f"message {name}")
        messages += [(f"{name}.{nested.name}", nested) for nested in message.nested_type]
        for field in message.field:
            kind = field.type_name or field.Type.Name(field.type).removeprefix("TYPE_").lower()
            label = field.Label.Name(field.label).removeprefix("LABEL_").lower()
            spelling = field.name.replace("_", "").lower()  # has changed: devicesIDs is devices_ids in newer releases
            found.add(f"{name}.{spelling} = {field.number}: {label} {kind}")
    return found


def own(interface: str) -> FileDescriptorProto:
    file = FileDescriptorProto()
    module(interface).DESCRIPTOR.CopyToProto(file)
    return file


@pytest.mark.parametrize("interface", INTERFACES)
def test_it_is_the_published_interface(interface: str) -> None:
    theirs = facts(published(interface))
    ours = facts(own(interface))
    assert len(theirs) > 5
    assert ours - theirs == NEWER[interface]
    assert theirs - ours == set()


@pytest.mark.parametrize("interface", INTERFACES)
def test_what_was_generated_is_what_the_description_says(interface: str) -> None:
    """Run `make proto` after a change."""
    described = compiled((PROTO / f"{interface}.proto").read_text(), "description.proto")
    assert facts(own(interface)) == facts(described)
