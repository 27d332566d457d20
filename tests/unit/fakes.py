"""GPUs for tests of what is planned for them, the options of a launch, and a terminal."""

from __future__ import annotations

import inspect
import io
from typing import Any

import click

from vgpurun.cli.commands.local import local
from vgpurun.host.gpus import Gpu

MIB = 1 << 20
GIB = 1 << 30


def make_gpus(count: int, first_index: int = 0, memory_bytes: int = 8 * GIB) -> list[Gpu]:
    """GPUs whose UUID begins with their index and whose minor number is not their index."""
    return [
        Gpu(
            index=index,
            uuid=f"GPU-{index:08d}-aaaa-bbbb-cccc-dddddddddddd",
            name="Test GPU",
            memory_bytes=memory_bytes,
            minor_number=index + 10,
            pci_bus_id=f"00000000:{index:02d}:00.0",
        )
        for index in range(first_index, first_index + count)
    ]


class Terminal(io.StringIO):
    """Takes what is written as a terminal would."""

    def isatty(self) -> bool:
        return True


def passed_on(command: click.Command) -> dict[str, Any]:
    """Return the options that a verb passes on together, none of them given."""
    assert command.callback is not None
    named = inspect.signature(command.callback).parameters
    return {str(option.name): None for option in command.params if option.expose_value and option.name not in named}


def given(**settings: object) -> dict[str, Any]:
    """Return the options of limits and placement, with only these given."""
    return {**passed_on(local), **settings}
