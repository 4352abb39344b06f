"""The collectives of a program, to be looked up, added up and put into a table."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import reduce
from importlib import import_module
from operator import add
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from hloscope.analysis.model.collective import Collective
from hloscope.analysis.vocabulary import Bound
from hloscope.cells import shown_place
from hloscope.errors import Helpful
from hloscope.given import text, texts
from hloscope.python_words import front_door
from hloscope.units import format_bytes, format_time, known_sum, plural

if TYPE_CHECKING:
    from pandas import DataFrame

    from hloscope.shown import Grouping

_COLUMNS = (
    "kind",
    "name",
    "axes",
    "group_size",
    "link",
    "operand_shapes",
    "result_shapes",
    "payload_bytes",
    "wire_bytes",
    "bytes_bound",
    "executions",
    "executions_bound",
    "payload_bytes_per_step",
    "wire_bytes_per_step",
    "time_us",
    "exposed_us",
    "origin",
    "line",
    "why",
)
"""Of a table: what a collective has under these names, several parts as one text."""


class Collectives(tuple[Collective, ...], Helpful):
    """A tuple of collectives, most bytes first.

    Example:
        >>> found.collectives[0]          # number 1 in the report, which moves most
        >>> found.collectives.where("all-gather", axis="fsdp").wire_bytes_per_step
        >>> found.collectives.by("module")

    Attributes:
        mesh_axes: The axes of the program's mesh, which selectors are held against; None where there is none.
    """

    mesh_axes: tuple[str, ...] | None

    def __new__(cls, members: Iterable[Collective] = (), *, mesh_axes: tuple[str, ...] | None = None) -> Collectives:
        """Makes one of its members, for a program on a mesh of these axes."""
        made = super().__new__(cls, members)
        made.mesh_axes = mesh_axes
        return made

    @front_door
    def where(
        self,
        kind: str = "*",
        *,
        axis: str | Iterable[str] | None = None,
        source: str | None = None,
        module: str | None = None,
        link: str | None = None,
    ) -> Collectives:
        """Those of a kind, over an axis, from a place; one of which that is not known may be one, and is among them.

        Example:
            >>> assert not (bad := found.collectives.where("all-gather", axis="fsdp")), bad
            >>> found.collectives.where(source="moe.py:40").wire_bytes_per_step

        Args:
            kind: A kind of collective, or a pattern such as `all-*`.
            axis: Mesh axes, alone or among others, each perhaps a pattern.
            source: The end of a file's path, perhaps with `:LINE`.
            module: A part of the user's model, such as `layers.*.mlp`, perhaps a pattern; a part holds its own parts.
            link: `ici` or `dcn`.

        Raises:
            NotationError: There is no such kind or axis, or one of the others cannot be read.
        """
        axes = None if axis is None else texts("axis", axis, example='axis="X", or axis=("X", "Y")')
        if module is not None:
            text("module", module, example='module="layers.*.mlp"')
        found = self._chosen(import_module("hloscope.contracts.building").selector(kind, axes, source, link))
        return found if module is None else found._only(member for member in found if _is_in(module, member))

    @front_door
    def selected(self, selector: str) -> Collectives:
        """Those that a contract's selector speaks of: `all-gather@fsdp`, `all-*@(X,Y) in "moe.py" over dcn`.

        Raises:
            NotationError: It cannot be read, or names a kind or an axis that there is not.
        """
        notation = import_module("hloscope.contracts.notation")
        said = text("the selector", selector, example='found["all-gather@fsdp"]; found.collectives[0] is the first')
        return self._chosen(notation.parse_selector(said, where=f"the selector {said!r}"))

    def _chosen(self, selector: Any) -> Collectives:
        return self._only(import_module("hloscope.contracts.selecting").chosen(self, selector, self.mesh_axes))

    def _only(self, members: Iterable[Collective]) -> Collectives:
        return Collectives(members, mesh_axes=self.mesh_axes)

    @front_door
    def by(self, what: Grouping) -> dict[str, Collectives]:
        """Groups with their names, dearest first, as `report(group_by=…)` has them.

        Example:
            >>> {name: group.exposed_us_per_step for name, group in found.collectives.by("module").items()}

        Args:
            what: `axis`, `kind`, `line` or `module`.

        Raises:
            NotationError: They cannot be grouped so.
        """
        groups = import_module("hloscope.report.parts").groups_by(self, what)
        return {group.name: self._only(group.members) for group in groups}

    @property
    def bound(self) -> Bound:
        """How their bytes per step relate to the truth: `at least` where loops run an unknown number of times."""
        bytes_bound = import_module("hloscope.analysis.totals").bytes_bound
        return reduce(add, map(bytes_bound, self), Bound.EXACT)

    @property
    def payload_bytes_per_step(self) -> int | None:
        """Payload bytes of all together on one device, as `bound` says; None where those of one are not known."""
        return known_sum(member.payload_bytes_per_step for member in self)

    @property
    def wire_bytes_per_step(self) -> int | None:
        """Bytes that one device sends for all together, as `bound` says; None where those of one are not known."""
        return known_sum(member.wire_bytes_per_step for member in self)

    @property
    def time_us_per_step(self) -> float | None:
        """Predicted microseconds of all together; None where one is not priced."""
        return _per_step(self, "time_us")

    @property
    def exposed_us_per_step(self) -> float | None:
        """Predicted microseconds that a step waits for them; None where one is not priced."""
        return _per_step(self, "exposed_us")

    def to_dataframe(self) -> DataFrame:
        """A row for each, in scalar columns: bytes per device and execution, microseconds per execution.

        Its `hlo_line` is the line in the HLO text; `source` is the user's line.

        Raises:
            ImportError: pandas is not installed.
        """
        import pandas

        named = {name: "hlo_line" if name == "line" else name for name in _COLUMNS}
        rows = [
            {named[name]: _scalar(getattr(member, name)) for name in _COLUMNS} | _place_of(member) for member in self
        ]
        return pandas.DataFrame(rows, columns=[*named.values(), "module", "phase", "source"])

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Collective: ...
    @overload
    def __getitem__(self, index: slice, /) -> Collectives: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> Collective | Collectives:
        found = super().__getitem__(index)
        return self._only(found) if isinstance(index, slice) else found  # type: ignore[arg-type, return-value]

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (tuple(self), self.mesh_axes)

    def __repr__(self) -> str:
        waits = "" if self.exposed_us_per_step is None else f", {format_time(self.exposed_us_per_step)} exposed"
        sends = self.bound.marked(format_bytes(self.wire_bytes_per_step))
        return f"<{plural(len(self), 'collective')}, {sends} on the wire per step{waits if self else ''}>"

    def __str__(self) -> str:
        return "\n".join(map(repr, self)) or repr(self)


def _made(members: tuple[Collective, ...], mesh_axes: tuple[str, ...] | None) -> Collectives:
    return Collectives(members, mesh_axes=mesh_axes)


def _is_in(pattern: str, collective: Collective) -> bool:
    """Whether it is in a part of the model; one of which that is not known may be."""
    module = None if collective.part is None else collective.part.module
    return module is None or any(fnmatchcase(module, known) for known in (pattern, f"{pattern}.*"))


def _per_step(members: Iterable[Collective], name: str) -> float | None:
    total = 0.0
    for member in members:
        each: float | None = getattr(member, name)
        if each is None:
            return None
        total += each * member.executions
    return total


def _scalar(value: object) -> object:
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


def _place_of(member: Collective) -> dict[str, object]:
    """Where it is in the user's model and code."""
    frame, part = (member.source or (None,))[0], member.part
    return {
        "module": None if part is None else part.module,
        "phase": None if part is None or part.phase is None else str(part.phase),
        "source": None if frame is None else shown_place(f"{frame.file}:{frame.line}"),
    }
