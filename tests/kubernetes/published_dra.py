"""kubelet's newer interfaces as Kubernetes publishes them, from Debian's package of them (of unstable, as of 2026)."""

from __future__ import annotations

import re
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from published_api import compiled
from support.debian_packages import unpacked

PACKAGE = "golang-github-kubernetes-kubelet-dev"


def published_interfaces() -> Path:
    """The folder of the interfaces, each in a folder of its own."""
    return unpacked(PACKAGE, "sid") / "usr/share/gocode/src/k8s.io/kubelet/pkg/apis"


def read_interface(path: Path) -> FileDescriptorProto:
    """A published .proto, compiled without the options that change the Go code and not the wire."""
    text = re.sub(r'import "github.com/gogo[^;]*;|option \(gogoproto[^;]*;', "", path.read_text())
    return compiled(re.sub(r"\[\(gogoproto[^]]*\]", "", text), "api.proto")
