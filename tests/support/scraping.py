"""A running `vgpurun exporter`, and what it answers to a scrape."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from support.programs import Program, text_of

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> Series:
    """The samples of an answer, by name and labels."""
    from prometheus_client.parser import text_string_to_metric_families

    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"twice: {key}"
            found[key] = sample.value
    return found


@contextmanager
def under_limits(environment: Mapping[str, str], program: Program, sm: int) -> Iterator[subprocess.Popen[str]]:
    """Run a program with 2 GiB of the simulated GPU and some of its time."""
    command = [sys.executable, "-m", "vgpurun", "local", "--driver", "sim", "--mem", "2g", "--sm", str(sm), "--"]
    command += [sys.executable, "-c", text_of(program)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()  # the program with it: killed, it would be left to itself


def value(series: Series, name: str, **labels: str) -> float | None:
    """The one sample with this name and these labels among others, or None."""
    found = [each for (its, having), each in series.items() if its == name and labels.items() <= dict(having).items()]
    assert len(found) <= 1, found
    return found[0] if found else None


def label_values(series: Series, label: str) -> set[str]:
    """Return the values of a label anywhere."""
    return {text for _, labels in series for name, text in labels if name == label}


@dataclass
class Exporter:
    """An exporter that has said where it serves."""

    process: subprocess.Popen[str]
    url: str

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://").removesuffix("/metrics")

    def get(self, path: str = "/metrics") -> str:
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=20) as answer:
            text: str = answer.read().decode()
        return text

    def scrape(self) -> Series:
        return parse(self.get())

    def stop(self) -> str:
        """End it as systemd does; it must end by itself with 0. Returns what it had left to say."""
        self.process.terminate()
        _, said = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, said
        return said


@contextmanager
def exporter(environment: Mapping[str, str], *options: str, driver: str = "sim") -> Iterator[Exporter]:
    """`vgpurun exporter` on a free port; killed at the end if it still runs."""
    command = [sys.executable, "-m", "vgpurun", "exporter", "--driver", driver, "--listen", "127.0.0.1:0", *options]
    with subprocess.Popen(command, env=dict(environment), stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Exporter(process, _read_url(process))
        finally:
            process.kill()


def _read_url(process: subprocess.Popen[str]) -> str:
    said = ""
    for line in process.stderr:
        said += line
        if match := re.search(r"metrics at (\S+)", line):
            return match[1]
    raise AssertionError(f"the exporter ended: {said}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port
