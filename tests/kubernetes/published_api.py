"""kubelet's interfaces as Kubernetes publishes them, from Debian's source package of Kubernetes 1.20."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from support.debian_packages import kept, original_source

RELEASE = "bookworm"
INTERFACES = {"deviceplugin": "v1beta1", "podresources": "v1", "pluginregistration": "v1"}


def published(interface: str) -> FileDescriptorProto:
    """A published interface, compiled."""
    text = (kept("kubernetes-1.20", _fetch) / f"{interface}.proto").read_text()
    # Go's own: options that change the Go code and not the wire.
    text = re.sub(r'import "github.com/gogo[^;]*;|option \(gogoproto[^;]*;|\[\(gogoproto[^]]*\]', "", text)
    return compiled(text, "api.proto")


def compiled(text: str, name: str) -> FileDescriptorProto:
    with tempfile.TemporaryDirectory() as folder:
        path, result = Path(folder, name), Path(folder, "set")
        path.write_text(text)
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"--descriptor_set_out={result}", path]
        subprocess.run(command, check=True)
        return FileDescriptorSet.FromString(result.read_bytes()).file[0]


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as work, tarfile.open(original_source("kubernetes", RELEASE, Path(work))) as tar:
        for member in tar:
            for interface, version in INTERFACES.items():
                if member.name.endswith(f"/staging/src/k8s.io/kubelet/pkg/apis/{interface}/{version}/api.proto"):
                    content = tar.extractfile(member)
                    assert content is not None
                    (folder / f"{interface}.proto").write_bytes(content.read())
