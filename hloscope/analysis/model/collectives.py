"""The collectives of a program, with lookups, sums and tables."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from hloscope.analysis.model.collective import Collective, bytes_bound
from hloscope.analysis.vocabulary import Bound
from hloscope.calls import front_door
from hloscope.cells import format_place
from hloscope.errors import Helpful
from hloscope.given import text, texts
from hloscope.presenter import presenter
from hloscope.units import format_bytes, format_time, pluralize, sum_known

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
"""The columns of a table, by attribute of a collective; several values are joined into one text."""


class Collectives(tuple[Collective, ...], Helpful):
    """A tuple of collectives, most bytes first.

    Example:
        >>> found.collectives[0]          # number 1 in the report: the most bytes
        >>> found.collectives.where("all-gather", axis="fsdp").wire_bytes_per_step
        >>> found.collectives.by("module")

    Attributes:
        mesh_axes: Axes of the program's mesh, which selectors are checked against; None without a mesh.
    """

    mesh_axes: tuple[str, ...] | None

    def __new__(cls, members: Iterable[Collective] = (), *, mesh_axes: tuple[str, ...] | None = None) -> Collectives:
        """Creates a tuple of these collectives, for a program on a mesh with these axes."""
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
        """Returns the collectives that match every filter, including those with unknown properties that might match.

        Example:
            >>> assert not (bad := found.collectives.where("all-gather", axis="fsdp")), bad
            >>> found.collectives.where(source="moe.py:40").wire_bytes_per_step

        Args:
            kind: Kind of collective, or a pattern such as `all-*`.
            axis: Mesh axes that it runs over, alone or among others; each may be a pattern.
            source: The end of a file's path, optionally with `:LINE`.
            module: A module of the user's model or a pattern, such as `layers.*.mlp`; includes its submodules.
            link: `ici` or `dcn`.

        Raises:
            NotationError: The kind or the axis does not exist, or another filter cannot be parsed.
        """
        axes = None if axis is None else texts("axis", axis, example='axis="X", or axis=("X", "Y")')
        if module is not None:
            text("module", module, example='module="layers.*.mlp"')
        found = self._only(presenter().filter(self, kind, axes, source, link))
        return found if module is None else found._only(member for member in found if _is_in_module(module, member))

    @front_door
    def selected(self, selector: str) -> Collectives:
        """The collectives that a contract selector matches: `all-gather@fsdp`, `all-*@(X,Y) in "moe.py" over dcn`.

        Raises:
            NotationError: The selector cannot be parsed, or names an unknown kind or axis.
        """
        said = text("the selector", selector, example='found["all-gather@fsdp"]; found.collectives[0] is the first')
        return self._only(presenter().select(self, said))

    def _only(self, members: Iterable[Collective]) -> Collectives:
        return Collectives(members, mesh_axes=self.mesh_axes)

    @front_door
    def by(self, what: Grouping) -> dict[str, Collectives]:
        """Groups the collectives by name, most expensive group first, like `report(group_by=…)`.

        Example:
            >>> {name: group.exposed_us_per_step for name, group in found.collectives.by("module").items()}

        Args:
            what: What to group by: `axis`, `kind`, `line` or `module`.

        Raises:
            NotationError: `what` is none of these.
        """
        return {group.name: self._only(group.members) for group in presenter().groups(self, what)}

    @property
    def bound(self) -> Bound:
        """The bound of the bytes per step: exact, or `at least` if a loop has an unknown trip count."""
        return reduce(add, map(bytes_bound, self), Bound.EXACT)

    @property
    def payload_bytes_per_step(self) -> int | None:
        """Total payload bytes on one device, subject to `bound`; None if those of any collective are unknown."""
        return sum_known(member.payload_bytes_per_step for member in self)

    @property
    def wire_bytes_per_step(self) -> int | None:
        """Total bytes that one device sends, subject to `bound`; None if those of any collective are unknown."""
        return sum_known(member.wire_bytes_per_step for member in self)

    @property
    def time_us_per_step(self) -> float | None:
        """Total predicted time in microseconds; None if any collective is not priced."""
        return _sum_per_step(self, "time_us")

    @property
    def exposed_us_per_step(self) -> float | None:
        """Total predicted exposed time in microseconds; None if any collective is not priced."""
        return _sum_per_step(self, "exposed_us")

    def to_dataframe(self) -> DataFrame:
        """Returns a pandas DataFrame with one row per collective: bytes per device and execution, time per execution.

        All columns are scalar; `hlo_line` is the line in the HLO text and `source` the line of user code.

        Raises:
            ImportError: pandas is not installed.
        """
        import pandas

        named = {name: "hlo_line" if name == "line" else name for name in _COLUMNS}
        rows = [
            {named[name]: _scalar(getattr(member, name)) for name in _COLUMNS} | _place_row(member) for member in self
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
        return _make_collectives, (tuple(self), self.mesh_axes)

    def __repr__(self) -> str:
        waits = "" if self.exposed_us_per_step is None else f", {format_time(self.exposed_us_per_step)} exposed"
        sends = self.bound.marked(format_bytes(self.wire_bytes_per_step))
        return f"<{pluralize(len(self), 'collective')}, {sends} on the wire per step{waits if self else ''}>"

    def __str__(self) -> str:
        return "\n".join(map(repr, self)) or repr(self)


def _make_collectives(members: tuple[Collective, ...], mesh_axes: tuple[str, ...] | None) -> Collectives:
    return Collectives(members, mesh_axes=mesh_axes)


def _is_in_module(pattern: str, collective: Collective) -> bool:
    """Returns whether it is in a part of the model; an unknown part may be."""
    module = None if collective.part is None else collective.part.module
    return module is None or any(fnmatchcase(module, known) for known in (pattern, f"{pattern}.*"))


def _sum_per_step(members: Iterable[Collective], name: str) -> float | None:
    total = 0.0
    for member in members:
        each: float | None = getattr(member, name)
        if each is None:
            return None
        total += each * member.executions
    return total


def _scalar(value: object) -> object:
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


def _place_row(member: Collective) -> dict[str, object]:
    """The place of a collective in the user's model and code."""
    frame, part = (member.source or (None,))[0], member.part
    return {
        "module": None if part is None else part.module,
        "phase": None if part is None or part.phase is None else str(part.phase),
        "source": None if frame is None else format_place(f"{frame.file}:{frame.line}"),
    }
