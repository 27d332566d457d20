"""deb.py WHEEL...    a Debian package beside each of these wheels of `make dist`, with all that vgpurun needs of Python

Debian's own docker, click and rich are older than vgpurun's lower bounds, so the package brings them, without what is
compiled: one package serves every Python from 3.10 on. They lie in /usr/lib/vgpurun, where nobody else imports them.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent.parent
FILES = Path(__file__).with_name("debian")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/vgpurun",
    "zsh": "usr/share/zsh/vendor-completions/_vgpurun",
    "fish": "usr/share/fish/vendor_completions.d/vgpurun.fish",
}


def make(wheel: Path) -> Path:
    """Make the package of one wheel. Raises OSError and CalledProcessError."""
    version, machine = wheel.name.split("-")[1], wheel.stem.split("manylinux2014_")[1]
    with tempfile.TemporaryDirectory() as work:
        root = Path(work)
        root.chmod(0o755)
        _python(root / "usr/lib/vgpurun", wheel)
        _install(FILES / "vgpurun", root / "usr/bin/vgpurun", 0o755)
        plugins = root / "usr/libexec/docker/cli-plugins"
        plugins.mkdir(parents=True)
        (plugins / "docker-vgpurun").symlink_to("/usr/bin/vgpurun")
        _install(FILES / "config.yaml", root / "etc/vgpurun/config.yaml")
        _install(FILES / "tmpfiles.conf", root / "usr/lib/tmpfiles.d/vgpurun.conf")
        _documentation(root / "usr/share")
        for unit in ("examples/monitoring/vgpurun-exporter.service", "examples/vgpurun-guard.service"):
            content = (CHECKOUT / unit).read_text().split("[Unit]", 1)[1].replace("/usr/local/", "/usr/")
            _write(root / "usr/lib/systemd/system" / Path(unit).name, f"[Unit]{content}")
        for shell, place in COMPLETIONS.items():
            command = [sys.executable, "-m", "vgpurun", "completion", shell]
            _write(root / place, subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        _control(root, version, ARCHITECTURES[machine])
        made = wheel.with_name(f"vgpurun_{version}_{ARCHITECTURES[machine]}.deb")
        command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), str(made)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return made


def _python(folder: Path, wheel: Path) -> None:
    platform = ["--only-binary=:all:", "--platform", wheel.stem.rsplit(".", 1)[1]]
    command = [sys.executable, "-m", "pip", "install", "-qq", "--no-compile", "--target", str(folder), *platform]
    subprocess.run([*command, f"{wheel}[compose,metrics]"], check=True)
    shutil.rmtree(folder / "bin")
    for compiled in folder.rglob("*.cpython-*.so"):
        compiled.unlink()


def _documentation(share: Path) -> None:
    man = (CHECKOUT / "docs/vgpurun.1").read_bytes()
    _write(share / "man/man1/vgpurun.1.gz", gzip.compress(man, mtime=0))
    folder = share / "doc/vgpurun"
    shutil.copytree(CHECKOUT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    _write(folder / "changelog.gz", gzip.compress((CHECKOUT / "CHANGELOG.md").read_bytes(), mtime=0))
    _install(CHECKOUT / "LICENSE", folder / "copyright")


def _control(root: Path, version: str, architecture: str) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    sums = (f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files)
    _write(root / "DEBIAN/md5sums", "".join(sums))
    _write(root / "DEBIAN/conffiles", "/etc/vgpurun/config.yaml\n")
    size_kib = sum(path.stat().st_size for path in files) // 1024
    control = (FILES / "control").read_text()
    values = {"VERSION": version, "ARCHITECTURE": architecture, "SIZE_KIB": str(size_kib)}
    for name, value in values.items():
        control = control.replace(f"@{name}@", value)
    _write(root / "DEBIAN/control", control)
    for script in ("postinst", "prerm", "postrm"):
        _install(FILES / script, root / "DEBIAN" / script, 0o755)


def _write(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)


def _install(source: Path, path: Path, mode: int = 0o644) -> None:
    _write(path, source.read_bytes(), mode)


if __name__ == "__main__":
    os.umask(0o022)
    for each in sys.argv[1:]:
        print(make(Path(each)))
