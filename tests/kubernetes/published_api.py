"""kubelet's interfaces as Kubernetes publishes them, from Debian's source package of Kubernetes 1.20."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

RELEASE = "bookworm"
INTERFACES = {"deviceplugin": "v1beta1", "podresources": "v1", "pluginregistration": "v1"}


class NotAvailableError(Exception):
    """The package cannot be fetched here; the message says why."""


def published(interface: str) -> FileDescriptorProto:
    """What is published of an interface, compiled."""
    folder = _cache() / "kubernetes-1.20"
    if not (folder / f"{interface}.proto").exists():
        _fetch(folder)
    text = (folder / f"{interface}.proto").read_text()
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


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vgpurun-tests"


def _fetch(folder: Path) -> None:
    """Download the source package with apt-get, which is told of nothing but that; the system's own lists stay."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        try:
            find = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Label: Debian"]
            mirrors = subprocess.run(find, check=True, capture_output=True, text=True).stdout.split()
            if not mirrors:
                raise NotAvailableError("no Debian mirror is known here; apt-get update comes first")
            keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
            Path(work, "list").write_text(f"deb-src [signed-by={keys}] {mirrors[0]} {RELEASE} main\n")
            Path(work, "lists/partial").mkdir(parents=True)
            own = ["-qq", "-o", "APT::Sandbox::User=root", "-o", f"Dir::Etc::sourcelist={work}/list"]
            own += ["-o", "Dir::Etc::sourceparts=/dev/null", "-o", f"Dir::State::lists={work}/lists"]
            subprocess.run(["apt-get", *own, "update"], check=True, cwd=work)
            subprocess.run(["apt-get", *own, "source", "--download-only", "kubernetes"], check=True, cwd=work)
        except (OSError, subprocess.CalledProcessError) as error:
            raise NotAvailableError(f"Debian's source package of Kubernetes cannot be fetched: {error}") from None
        _unpack(next(Path(work).glob("kubernetes_*.orig.tar.*")), folder)


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            for interface, version in INTERFACES.items():
                if member.name.endswith(f"/staging/src/k8s.io/kubelet/pkg/apis/{interface}/{version}/api.proto"):
                    content = tar.extractfile(member)
                    assert content is not None
                    half_made = folder / f".{interface}.{os.getpid()}"
                    half_made.write_bytes(content.read())
                    half_made.replace(folder / f"{interface}.proto")
