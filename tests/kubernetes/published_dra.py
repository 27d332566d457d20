"""kubelet's newer interfaces as Kubernetes publishes them, from Debian's package of them (of unstable, as of 2026)."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from published_api import NotAvailableError, compiled

PACKAGE = "golang-github-kubernetes-kubelet-dev"
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def unpacked_package(folder: Path) -> Path:
    """Unpack the package into a folder, and return where its interfaces are. Nothing is installed."""
    find = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Label: Debian"]
    with tempfile.TemporaryDirectory() as work:
        own = ["-qq", "-o", "APT::Sandbox::User=root", "-o", f"Dir::Etc::sourcelist={work}/list"]
        own += ["-o", "Dir::Etc::sourceparts=/dev/null", "-o", f"Dir::State::lists={work}/lists"]
        own += ["-o", f"Dir::Cache={work}/cache"]
        try:
            sites = subprocess.run(find, check=True, capture_output=True, text=True).stdout.split()
            if not sites:
                raise NotAvailableError("no Debian mirror is known here; apt-get update comes first")
            Path(work, "list").write_text(f"deb [signed-by={_KEYS}] {sites[0]} sid main\n")
            for name in ("lists/partial", "cache/archives/partial"):
                Path(work, name).mkdir(parents=True)
            subprocess.run(["apt-get", *own, "update"], check=True, cwd=work)
            subprocess.run(["apt-get", *own, "download", PACKAGE], check=True, cwd=work)
            subprocess.run(["dpkg-deb", "-x", str(next(Path(work).glob("*.deb"))), folder], check=True)
        except (OSError, StopIteration, subprocess.CalledProcessError) as error:
            raise NotAvailableError(f"Debian's {PACKAGE} cannot be fetched: {error}") from None
    return folder / "usr/share/gocode/src/k8s.io/kubelet/pkg/apis"


def read_interface(path: Path) -> FileDescriptorProto:
    """A published .proto, compiled without the options that change the Go code and not the wire."""
    text = re.sub(r'import "github.com/gogo[^;]*;|option \(gogoproto[^;]*;', "", path.read_text())
    return compiled(re.sub(r"\[\(gogoproto[^]]*\]", "", text), "api.proto")
