"""An engine that is asked over TLS, as DOCKER_TLS_VERIFY or a context says: a real one, with its own side of TLS."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import docker
import pytest

import images
from cli import Cli, clean_environment
from private_engine import private_engine
from support.debian_packages import tool
from support.scraping import free_port
from terminal import Terminal
from test_run_engines import write_context
from vgpurun.engine.relay import close_notify

IMAGE = "vgpurun-test/tls:1"
NAMES = "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n"


@dataclass(frozen=True)
class TlsEngine:
    url: str
    certificates: Path  # laid out for DOCKER_CERT_PATH
    client: docker.DockerClient


def openssl(*arguments: object) -> None:
    subprocess.run([tool("openssl", "openssl"), *map(str, arguments)], check=True, capture_output=True)


def make_authority(folder: Path) -> None:
    folder.mkdir(parents=True)
    key, certificate = folder / "ca-key.pem", folder / "ca.pem"
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", 2,
            "-subj", "/CN=authority")  # fmt: skip


def make_certificate(folder: Path, authority: Path, who: str) -> None:
    """ca.pem, cert.pem and key.pem in a folder of their own."""
    folder.mkdir()
    (folder / "names").write_text(NAMES)
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", folder / "key.pem", "-out", folder / "request",
            "-subj", f"/CN={who}")  # fmt: skip
    openssl("x509", "-req", "-in", folder / "request", "-CA", authority / "ca.pem", "-CAkey", authority / "ca-key.pem",
            "-CAcreateserial", "-days", 2, "-extfile", folder / "names", "-out", folder / "cert.pem")  # fmt: skip
    shutil.copy(authority / "ca.pem", folder)


@pytest.fixture(scope="module")
def tls_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsEngine]:
    folder = tmp_path_factory.mktemp("tls")
    make_authority(folder / "authority")
    for who in ("server", "client"):
        make_certificate(folder / who, folder / "authority", who)
    address, server = f"tcp://127.0.0.1:{free_port()}", folder / "server"
    flags = ["--host", address, "--tlsverify", "--tlscacert", server / "ca.pem", "--tlscert", server / "cert.pem",
             "--tlskey", server / "key.pem"]  # fmt: skip
    with private_engine(*map(str, flags)) as own_socket:
        client = docker.DockerClient(base_url=own_socket)
        images.busybox(client, IMAGE)
        yield TlsEngine(address, folder / "client", client)
        client.close()


@pytest.fixture
def over_tls(tls_engine: TlsEngine, built_library: Path, tmp_path: Path) -> Cli:
    (tmp_path / "home").mkdir()
    environment = clean_environment(tls_engine.url, tmp_path / "state", tmp_path / "home")
    environment |= {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(tls_engine.certificates)}
    # Set on many hosts for downloads; it says nothing of the engine.
    environment["REQUESTS_CA_BUNDLE"] = "/etc/ssl/certs/ca-certificates.crt"
    return Cli(tls_engine.client, environment, tmp_path / "state")


def test_bytes_go_both_ways_unharmed(over_tls: Cli) -> None:
    data = os.urandom(3 << 20)
    assert over_tls.run("-i", IMAGE, "cat", stdin=data).stdout.encode("latin-1") == data
    over_tls.assert_nothing_left()


def test_output_that_comes_as_the_input_ends_is_not_lost(tmp_path: Path) -> None:
    make_authority(tmp_path / "authority")
    make_certificate(tmp_path / "server", tmp_path / "authority", "server")
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "server" / "cert.pem", tmp_path / "server" / "key.pem")
    trusting = ssl.create_default_context(cafile=str(tmp_path / "authority" / "ca.pem"))
    ours, theirs = socket.socketpair()
    has_sent = threading.Event()
    heard = []

    def serve() -> None:
        with served.wrap_socket(theirs, server_side=True) as engine:
            engine.sendall(b"early")
            has_sent.set()
            heard.append(engine.recv(1))
            engine.sendall(b" and late")

    thread = threading.Thread(target=serve)
    thread.start()
    with trusting.wrap_socket(ours, server_hostname="127.0.0.1") as engine:
        assert has_sent.wait(60)
        engine.setblocking(False)
        os.write(engine.fileno(), close_notify(engine))
        engine.setblocking(True)
        thread.join(60)
        assert engine.recv(100) + engine.recv(100) == b"early and late"
    assert heard == [b""]


def test_the_end_of_the_input_is_not_the_end_of_the_output(over_tls: Cli) -> None:
    data = os.urandom(1 << 20)
    result = over_tls.run("-i", IMAGE, "sh", "-c", "sha256sum; sleep 0.3; seq 100000 | tail -n 1; exit 3", stdin=data)
    assert (result.exit_code, result.stdout.split()) == (3, [hashlib.sha256(data).hexdigest(), "-", "100000"])


def test_a_terminal(over_tls: Cli) -> None:
    command = ["run", *over_tls.driver, "--rm", "-it", IMAGE, "sh"]
    with closing(Terminal([*over_tls.command, *command], over_tls.environment)) as terminal:
        terminal.read_until(b"#")
        terminal.resize(20, 70)
        terminal.type(b'while [ "$(stty size)" != "20 70" ]; do sleep 0.05; done; echo si""zed\n')
        terminal.read_until(b"sized")
        terminal.type(b"exit 4\n")
        assert terminal.wait() == 4


def test_a_further_command(over_tls: Cli) -> None:
    assert over_tls.run("-d", "--name", "over-tls", IMAGE, "sleep", "600").exit_code == 0
    assert over_tls("exec", "-i", "over-tls", "cat", stdin="typed").stdout == "typed"
    assert over_tls("exec", "over-tls", "sh", "-c", "exit 5").exit_code == 5
    assert over_tls("ps", "--format", "{{.Names}}").stdout == "over-tls\n"
    assert over_tls("rm", "-f", "over-tls").exit_code == 0


def test_a_context(over_tls: Cli, tls_engine: TlsEngine) -> None:
    for name in ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        del over_tls.environment[name]
    home = Path(over_tls.environment["HOME"])
    write_context(home, tls_engine.url)
    place = home / ".docker/contexts/tls" / hashlib.sha256(b"own").hexdigest() / "docker"
    shutil.copytree(tls_engine.certificates, place)
    assert over_tls.run("-i", IMAGE, "cat", stdin="typed").stdout == "typed"


def test_an_engine_that_is_not_the_one_it_says(over_tls: Cli, tmp_path: Path) -> None:
    make_authority(tmp_path / "other")
    make_certificate(tmp_path / "certificates", tmp_path / "other", "client")
    other = replace(over_tls, environment=over_tls.environment | {"DOCKER_CERT_PATH": str(tmp_path / "certificates")})
    other.run(IMAGE, "true").assert_refused("certificate verify failed", exit_code=1)


def test_certificates_that_are_not_there(over_tls: Cli, tmp_path: Path) -> None:
    over_tls.environment["DOCKER_CERT_PATH"] = str(tmp_path)
    over_tls.run(IMAGE, "true").assert_refused("DOCKER_CERT_PATH")


def test_tls_that_was_not_asked_for(over_tls: Cli) -> None:
    for name in ("DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        del over_tls.environment[name]
    over_tls.run(IMAGE, "true").assert_refused("DOCKER_TLS_VERIFY", exit_code=1)
