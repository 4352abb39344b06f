"""The base of all results: they print as the command's report, display in notebooks, and have a one-line repr.

The registered presenter (`hloscope.base.presenter`) renders the reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import FrozenInstanceError, fields
from enum import Enum
from os import PathLike
from typing import Any, NoReturn, TypeVar, Unpack

from hloscope.base.calls import front_door, named_path, whole
from hloscope.base.canvas import Canvas, Listing, accept_listing
from hloscope.base.errors import Helpful
from hloscope.base.presenter import ask

_Item = TypeVar("_Item")
_Key = TypeVar("_Key")


_MOST_LETTERS, _MOST_ITEMS = 240, 3


def shorten_to_line(text: str) -> str:
    """A text for `repr`, on one line; a long one loses its end except for the last character, such as `>`."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_LETTERS else f"{line[: _MOST_LETTERS - 2]}…{line[-1]}"


def group_by(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Lists of the items that have the same key, in the order of each key's first item."""
    found: dict[_Key, list[_Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


class FixedTable(dict[str, Any]):
    """A table of a result: an immutable dict, equal to any other with the same contents."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("results stay as they are: make a dict of this table to change it")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FixedTable, (dict(self),)


def fix_tables(result: object, *names: str) -> None:
    """Makes the tables of a new result immutable."""
    for name in names:
        object.__setattr__(result, name, FixedTable(getattr(result, name)))


class Fixed:
    """A frozen dataclass with a clear error for any assignment: Python's own fails for names other than its fields.

    The methods that `dataclass` generates refer to the class without slots that it replaces.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__setattr__" in vars(cls):
            cls.__setattr__ = _refuse_assignment  # type: ignore[method-assign]
            cls.__delattr__ = _refuse_deletion  # type: ignore[method-assign]


def _refuse_assignment(_: object, name: str, __: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to {name!r}: results stay as they are")


def _refuse_deletion(_: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete {name!r}: results stay as they are")


class Brief(Fixed, Helpful):
    """A part of a result with a `repr` of one line: the fields that differ from their defaults, with short values."""

    __slots__ = ()

    def __repr__(self) -> str:
        said = []
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if value is not None and value != each.default and value not in ((), {}):
                said.append(f"{each.name}={_format_briefly(value)}")
        return shorten_to_line(f"{type(self).__name__}({', '.join(said)})")


def _format_briefly(value: object) -> str:
    """A value in a few words."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        items = [_format_briefly(each) for each in value[:_MOST_ITEMS]]
        more = [f"… {len(value):,} in all"] if len(value) > _MOST_ITEMS else []
        return f"({', '.join([*items, *more])}{',' if len(value) == 1 else ''})"
    return " ".join(repr(value).split())


class Shown(Fixed, Helpful):
    """Base class of results that have a report."""

    __slots__ = ()

    @property
    def _subject(self) -> str:
        """Its key in `hloscope.report.formats.FORMATS`."""
        raise NotImplementedError

    def _rendered(self) -> object:
        """The object that the formats of its subject render."""
        return self

    @front_door
    @accept_listing
    def report(
        self, format: str = "text", *, width: int = 100, colour: bool = False, **listing: Unpack[Listing]
    ) -> str:
        """Returns the report as the command prints it.

        Args:
            format: One of the formats that `--format` of the command takes, such as `text`, `json` or `html`. Binary
                formats are only written by `save`.
            width: Width of text in columns.
            colour: Whether text has ANSI colors.
            {listing}

        Raises:
            NotationError: The result does not have this format, or the grouping does not exist; it names those that
                exist.
        """
        columns = whole("width", width, least=1, example="width=100")
        return str(ask("report", self, format, Canvas(width=columns, colour=colour, **listing)))

    @front_door
    def save(self, path: str | PathLike[str], format: str | None = None) -> tuple[str, ...]:
        """Writes the report to a file, or to a folder if its format consists of several files.

        Example:
            >>> hloscope.timeline("model:step", slice="v6e:2x4").save("step.json.gz", "trace")

        Args:
            path: The file or the folder.
            format: As for `report`, and for a timeline also `trace` (a file for Perfetto) or `xplane` (a folder for
                XProf). By default derived from the file suffix, such as `.html` or `.svg`, and JSON for other names.

        Returns:
            Messages about what was written, one sentence each.

        Raises:
            HloscopeError: The result does not have this format, or the path cannot be written.
        """
        file = named_path(path, example='path="report.html"')
        return tuple(ask("save", self, str(file), format))

    def to_dict(self) -> Mapping[str, Any]:
        """Returns the result as plain data, as `report("json")` prints it (schema in `hloscope/schemas/`)."""
        return dict(ask("document", self))

    def __str__(self) -> str:
        return self.report().rstrip("\n")

    def _repr_html_(self) -> str | None:
        """The result as HTML for a notebook; None if it is shown as Markdown."""
        found: str | None = ask("fragment", self)
        return found

    def _repr_markdown_(self) -> str:
        """The report in Markdown, or as text in a block if it has no Markdown."""
        return str(ask("markdown", self))
