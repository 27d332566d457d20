"""Rows of data for what every start imports: to define a NamedTuple of Python's own takes twenty times as long."""

from operator import itemgetter
from typing import TYPE_CHECKING

__all__ = ["Row"]

if TYPE_CHECKING:
    from typing import NamedTuple as Row
else:

    class Row(tuple):
        """Stands for NamedTuple, without the parts that nobody here needs."""

        def __init_subclass__(cls) -> None:
            cls._fields = tuple(cls.__annotations__)
            cls._field_defaults = {name: vars(cls)[name] for name in cls._fields if name in vars(cls)}
            for position, name in enumerate(cls._fields):
                setattr(cls, name, property(itemgetter(position)))

        def __new__(cls, *given, **named):
            """Take the fields by place or by name."""
            if named or len(given) != len(cls._fields):
                values = {**cls._field_defaults, **dict(zip(cls._fields, given, strict=False)), **named}
                if len(given) > len(cls._fields) or values.keys() != set(cls._fields):
                    raise TypeError(f"{cls.__name__} has the fields {', '.join(cls._fields)}")
                given = map(values.get, cls._fields)
            return super().__new__(cls, given)

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self) -> str:
            return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        @classmethod
        def _make(cls, values):
            return cls(*values)

        def _replace(self, **changed):
            return type(self)(**{**self._asdict(), **changed})
