"""Changes of a program's shardings as values: other specs, constraints and sizes. Does not use JAX."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.base.errors import HloscopeError
from hloscope.base.units import pluralize
from hloscope.model.capture import ValueSharding, format_spec

_MOST_NAMED = 3
"""The most arguments or results that are listed by name; more are counted."""


class DoesNotApplyError(HloscopeError):
    """A change does not apply to a program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintEdit:
    """One sharding constraint that is dropped, set or added.

    Attributes:
        operation: The number of the constraint, or of the operation before which one is added.
        operand: The operand that gets a constraint; None if `operation` is the constraint itself.
        sharding: The requested sharding; None drops the constraint.
    """

    operation: int
    operand: int | None = None
    sharding: ValueSharding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenConstraint:
    """A sharding constraint on an expression, as the user would write it into the source.

    The place is that of a frame on the stack of an operation: the expression that the frame was evaluating, which is
    the operation itself in the user's innermost frame, and the call of a helper in the frame around it.

    Attributes:
        file: Path of the source file, as recorded while tracing.
        line: 1-based line at which the expression begins.
        column: 0-based column there, in bytes; None if unknown.
        end: The 1-based line and 0-based column behind the expression, as MLIR locations and Python's `ast` have them;
            None if unknown.
        sharding: The requested sharding, with one entry for each dimension that the value has in this line.
        leaves_open: Whether dimensions without axes are left to the compiler, as `P.UNCONSTRAINED`, and not replicated.
        primitive: JAX's name of an operation that the expression makes, such as `dot_general`: it distinguishes `a @ b`
            from `a @ b + c`, which begins at the same place. None for any.
        shape: The shape of that operation's result, in the whole program; None for any.
        argument: The argument of the program's function to constrain in its first line, instead of an expression.
        requested: The sharding that the expression's own `out_sharding=`, `reshard` or spec requests: `sharding` is
            then written there. None for a constraint around the expression.
        keyword: Of a `shard_map`, `in_specs` or `out_specs`; None for others.
        leaf: The number of the argument or result that the spec is for, counted from the last, which is -1.
        operand: A variable among the arguments of the expression, a call, that gets the constraint in its place.
    """

    file: str
    line: int
    column: int | None
    end: tuple[int, int] | None = None
    sharding: ValueSharding
    leaves_open: bool = False
    primitive: str | None = None
    shape: tuple[int, ...] | None = None
    argument: str | None = None
    requested: ValueSharding | None = None
    keyword: str | None = None
    leaf: int = 0
    operand: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleEdit:
    """Other shardings for a module.

    Attributes:
        arguments: By the number of the argument.
        results: By the number of the result; None leaves it open.
        constraints: The edits of sharding constraints.
        argument_count: The number of arguments that count, at the end of the module's: tokens of ordered effects come
            before them. None for all.
        result_count: The same for results.
    """

    arguments: tuple[tuple[int, ValueSharding], ...] = ()
    results: tuple[tuple[int, ValueSharding | None], ...] = ()
    constraints: tuple[ConstraintEdit, ...] = ()
    argument_count: int | None = None
    result_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafChange:
    """Another sharding for one argument or result leaf.

    Attributes:
        index: Index among the flat arguments or results.
        name: The user's name for the leaf.
        before: Sharding as written; None if left open.
        after: New sharding; None leaves it open, which is possible only for a result.
        replaces: For a result, the argument that it replaces in the next step; None if there is none.
        moves: For an argument, whether the caller has to create it with the new sharding, because no result of the step
            replaces it.
    """

    index: int
    name: str
    before: ValueSharding | None
    after: ValueSharding | None
    replaces: int | None = None
    moves: bool = False

    @property
    def words(self) -> str:
        """`W: P('X', None) -> P(None, 'X')`."""
        return f"{self.name}: {_format_sharding(self.before)} -> {_format_sharding(self.after)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintChange:
    """A change to the sharding constraints on one line.

    Attributes:
        edits: One edit per constraint: a line may occur in several places of the program.
        place: Source location, such as `moe.py:31`.
        before: Sharding that the constraint requests; None for an added one.
        array: The user's name of the array of an added constraint; empty for existing ones.
    """

    edits: tuple[ConstraintEdit, ...]
    place: str
    before: ValueSharding | None = None
    array: str = ""

    @property
    def words(self) -> str:
        """`constraint at moe.py:31: dropped`."""
        after = self.edits[0].sharding
        if self.array:
            return f"a constraint on {self.array} at {self.place}: {_format_sharding(after)}"
        became = "dropped" if after is None else f"{_format_sharding(self.before)} -> {_format_sharding(after)}"
        return f"constraint at {self.place}: {became}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """Another size for a letter or a number in the notation of the arguments.

    Attributes:
        name: The letter; the number as text.
        before: The size as written.
        after: The new size.
    """

    name: str
    before: int
    after: int

    @property
    def words(self) -> str:
        """`H: 6 padded to 8`."""
        named = self.name if not self.name.isdigit() else f"dimensions of {self.name}"
        size = f"{self.before} " if not self.name.isdigit() else ""
        return f"{named}: {size}padded to {self.after}, with a wrapper that pads before and slices after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resharding:
    """A change to a program; hashable, so that equal changes are tried once.

    Attributes:
        arguments: Other specs for arguments.
        results: Other specs for results.
        constraints: Changes to sharding constraints.
        sizes: Other sizes.
        frees_output: Whether a result gets another sharding than requested and than the argument that it replaces,
            which its users must accept.
    """

    arguments: tuple[LeafChange, ...] = ()
    results: tuple[LeafChange, ...] = ()
    constraints: tuple[ConstraintChange, ...] = ()
    sizes: tuple[SizeChange, ...] = ()
    frees_output: bool = False

    @property
    def parts(self) -> int:
        """The number of changed parts."""
        return len(self.arguments) + len(self.results) + len(self.constraints) + len(self.sizes)

    @property
    def moved(self) -> tuple[LeafChange, ...]:
        """The arguments that the caller has to create with another sharding."""
        return tuple(leaf for leaf in self.arguments if leaf.moves)

    @property
    def asks(self) -> int:
        """The demands on the program's caller: other shardings of arguments to create and of results to read."""
        return bool(self.moved) + self.frees_output

    @property
    def is_loose(self) -> bool:
        """True if only constraints and open results change, which propagation may decide as before."""
        return not self.arguments and not self.sizes and all(leaf.after is None for leaf in self.results)

    @property
    def widened(self) -> int:
        """The number of axes that no longer shard arguments and results: each makes arrays larger on every device."""
        leaves = (leaf for leaf in (*self.arguments, *self.results) if leaf.before and leaf.after is not None)
        return sum(max(_count_axes(leaf.before) - _count_axes(leaf.after), 0) for leaf in leaves)

    @property
    def touched(self) -> frozenset[tuple[str, object]]:
        """The things that the change affects, regardless of their new values."""
        return frozenset(
            [
                *(("argument", leaf.index) for leaf in self.arguments),
                *(("result", leaf.index) for leaf in self.results),
                *(("constraint", edit.operation) for edit in self.edits),
                *(("size", size.name) for size in self.sizes),
            ]
        )

    @property
    def edits(self) -> tuple[ConstraintEdit, ...]:
        """The edits of constraints, by operation."""
        return tuple(edit for change in self.constraints for edit in change.edits)

    @property
    def words(self) -> tuple[str, ...]:
        """One line per part, in the user's notation."""
        return (
            *_describe_leaves("argument", self.arguments),
            *_describe_leaves("result", self.results),
            *(change.words for change in self.constraints),
            *(change.words for change in self.sizes),
        )

    def __str__(self) -> str:
        return "; ".join(self.words)


def _describe_leaves(noun: str, leaves: tuple[LeafChange, ...]) -> tuple[str, ...]:
    """One line per changed leaf; many leaves that change alike are counted, because layers have dozens of them."""
    named = [f"{'' if leaf.name.startswith(noun) else f'{noun} '}{leaf.words}" for leaf in leaves]
    if len(named) <= _MOST_NAMED:
        return tuple(named)
    return (*named[:_MOST_NAMED], f"and {pluralize(len(named) - _MOST_NAMED, f'more {noun}')} in the same way")


def _count_axes(sharding: ValueSharding | None) -> int:
    return sum(map(len, sharding or ()))


def _format_sharding(sharding: ValueSharding | None) -> str:
    return "left open" if sharding is None else format_spec(sharding)
