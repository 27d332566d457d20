"""A row is what Python's own NamedTuple is."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import pytest

from vgpurun.util.row import Row


def _defined(kind: Any) -> Any:
    class Gpu(kind):  # type: ignore[misc]
        """A GPU."""

        index: int  # which a tuple has as a method
        name: str = "H200"
        slices: tuple[int, ...] = ()

        @property
        def shown(self) -> str:
            return f"{self.index} {self.name}"

    return Gpu


@pytest.mark.parametrize("kind", [Row, NamedTuple])
def test_a_row(kind: Any) -> None:
    gpu = _defined(kind)
    one = gpu(1, slices=(2,))
    assert one == (1, "H200", (2,)) == gpu(1, "H200", (2,)) == gpu(index=1, slices=(2,)) and hash(one)
    assert (one.index, one.name, one.shown) == (1, "H200", "1 H200")
    assert repr(one) == "Gpu(index=1, name='H200', slices=(2,))"
    assert one._replace(name="H100") == (1, "H100", (2,)) and type(one._replace()) is gpu
    assert one._asdict() == {"index": 1, "name": "H200", "slices": (2,)} and gpu._make(one) == one
    assert copy.copy(one) == one and type(copy.copy(one)) is gpu
    assert gpu._fields == ("index", "name", "slices") and gpu.__doc__ == "A GPU."


@pytest.mark.parametrize("kind", [Row, NamedTuple])
def test_what_a_row_refuses(kind: Any) -> None:
    gpu = _defined(kind)
    for given, named in (((), {}), ((1, "H200", (), 4), {}), ((1,), {"size": 2})):
        with pytest.raises(TypeError):
            gpu(*given, **named)
    with pytest.raises(AttributeError):
        gpu(1).name = "H100"
