"""The result of verifying a program against its reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal

from hloscope.analysis.totals import axes_key
from hloscope.base.calls import front_door
from hloscope.base.documents import SCHEMA, Schema, make_document
from hloscope.base.results import Brief, Shown, fix_tables, shorten_to_line
from hloscope.judge.changes import Comparison
from hloscope.model import Analysis, Collective, Memory, SliceFact, Total
from hloscope.model.finding import Finding, Severity, severe, unaccepted
from hloscope.model.vocabulary import Bound

if TYPE_CHECKING:
    from hloscope.plain_types import VerificationDict

ToleranceSource = Literal["rounding", "types", "user"]
"""`rounding`: runs of the reference with all stored values moved; `types`: types and lengths of sums alone."""


COPIES = "other copies"
"""The other side of a comparison of a program's output that several devices hold."""


UNTESTED = "untested"
ANOTHER_BRANCH = "another-branch"
UNTESTED_WORDS = "no output of the reference depends on "
HIDDEN_WORDS = "rounding hides "
UNTRIED_WORDS = "hloscope did not test whether any output of the reference depends on "


class NumericsStatus(StrEnum):
    """The outcome of running both programs."""

    RAN = "ran"
    REFUSED = "refused"
    FAILED = "failed"
    HUNG = "hung"
    ABORTED = "aborted"
    NOT_IMPLEMENTED = "not implemented"
    TOO_LARGE = "too large"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The allowed difference of two floating-point numbers: `absolute + relative * |reference|`.

    Attributes:
        relative: Relative tolerance; 0 for types that must agree exactly.
        absolute: Absolute tolerance, for numbers near zero that result from cancellation.
        source: Where the tolerance comes from.
    """

    relative: float = 0.0
    absolute: float = 0.0
    source: ToleranceSource = "types"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """Systematic errors that rounding does not explain: they share one ratio or one sign.

    Attributes:
        ratio: Mean ratio of the program's elements to the reference's.
        constant: Whether this ratio explains all of the errors.
        one_way: Share of the differing elements whose error has the more frequent sign.
        shards: Devices with biased elements; empty for all devices together.
        meaning: Likely meaning of the ratio, such as `the size of X`; empty if unknown.
        explained: Largest deviation of the ratio from 1 that rounding explains.
    """

    ratio: float
    constant: bool
    one_way: float
    shards: tuple[str, ...]
    meaning: str = ""
    explained: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Roughness:
    """Errors that are larger overall than the reference's own rounding.

    Attributes:
        times: Ratio of the two, in root mean square.
        own: Whether the program's own rounding explains the errors.
        words: What rounds, such as `a loop of 64 steps adds up in bfloat16`; empty if unknown.
    """

    times: float
    own: bool = False
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """The element that differs most relative to its tolerance.

    Attributes:
        index: Index in the global array.
        shard: Position of its shard in the mesh, such as `X=1, Y=0`; `device 3` without a mesh.
        local_index: Index in that shard.
        found: Value in the program.
        expected: Value in the reference.
        allowed: Allowed difference; 0 for types that must agree exactly.
    """

    index: tuple[int, ...]
    shard: str
    local_index: tuple[int, ...]
    found: str
    expected: str
    allowed: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ErrorMap(Brief):
    """A map of an output's errors: the largest error in each block of elements.

    Columns are the last dimension, rows all other dimensions in row-major order. Block `i` of `n` along a side of
    `size` elements covers elements `i * size // n` up to but not including `(i + 1) * size // n`.

    Attributes:
        shape: Shape of the output.
        errors: Errors of the blocks, row by row, as multiples of the tolerance with three digits; infinite if the
            tolerance is zero.
    """

    MOST: ClassVar[int] = 64
    """Blocks along each side."""

    shape: tuple[int, ...]
    errors: tuple[tuple[float, ...], ...]

    def first(self, row: int, column: int) -> tuple[int, ...]:
        """The index of the first element of a block."""
        return self._index(self._begin(row, 0), self._begin(column, 1))

    def last(self, row: int, column: int) -> tuple[int, ...]:
        """The index of its last element."""
        return self._index(self._begin(row + 1, 0) - 1, self._begin(column + 1, 1) - 1)

    def _begin(self, block: int, side: int) -> int:
        """The first element of a block, down or across."""
        size = (prod(self.shape[:-1]), self.shape[-1] if self.shape else 1)[side]
        return block * size // (len(self.errors), len(self.errors[0]))[side]

    def _index(self, row: int, column: int) -> tuple[int, ...]:
        """The index of an element, of its place down and across."""
        found = [column] if self.shape else []
        for size in reversed(self.shape[:-1]):
            row, at = divmod(row, size)
            found.insert(0, at)
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OutputComparison(Brief):
    """One output of two runs, compared shard by shard: an element is wrong if any device's copy of it is wrong.

    Attributes:
        name: Name of the output, such as `result[0]` or `gradient of W`.
        against: The run it is compared with: `reference` or `single device`.
        subject: The run whose output it is: `target` or `reference`.
        elements: Number of elements of the global output.
        copies: Number of devices that hold each element.
        wrong: Number of elements that exceed the tolerance on some device.
        shards: Number of devices that hold a shard.
        wrong_shards: Devices that hold a wrong element, such as `X=1, Y=0`.
        worst: The element that differs most; None if no element differs.
        largest_error: Largest difference as a multiple of the tolerance; infinite if the tolerance is zero.
        informative: Whether the expected output is informative: some element is finite and would differ from zero by
            more than the tolerance.
        blind_shards: Devices on which most expected elements are not finite, or so small compared with the rest of the
            output that zeros would pass.
        tolerance: Tolerance for a number of typical magnitude, and where it comes from.
        bias: Systematic errors, also below the tolerance; None if there are none.
        roughness: Errors that are too large overall; None if they are not.
        unstable: Number of elements that depend on a decision which rounding can change, such as an index; these are
            not judged.
        exchanged: Wrong shards that hold the values of another one: `X=2 holds what the reference has at X=5`.
        error_map: Where its errors are, coarsely; None of an output that agrees.
    """

    name: str
    against: str
    subject: str
    elements: int
    copies: int
    wrong: int
    shards: int
    wrong_shards: tuple[str, ...]
    worst: Worst | None
    largest_error: float
    informative: bool
    blind_shards: tuple[str, ...] = ()
    tolerance: Tolerance = Tolerance()
    bias: Bias | None = None
    roughness: Roughness | None = None
    unstable: int = 0
    exchanged: tuple[str, ...] = ()
    error_map: ErrorMap | None = None

    @property
    def agrees(self) -> bool:
        """True if no element is wrong."""
        return not self.wrong and self.bias is None and self.roughness is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Untested:
    """A part of an argument that no output depends on for the tested inputs, or whose change no output shows.

    Attributes:
        argument: Name of the argument.
        shards: Devices that hold the part; empty for the whole argument.
        parts: Number of different parts that the argument is sharded into.
        tried: Whether the part was tested; False if testing each part would have taken too long.
        changed: The output that is the argument with an update so small that rounding hides it; empty otherwise.
    """

    argument: str
    shards: tuple[str, ...]
    parts: int
    tried: bool = True
    changed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Numerics(Brief):
    """The result of running both programs on the same random inputs.

    Attributes:
        status: Outcome of the runs.
        ran_on: Devices that both ran on, such as `8 simulated CPU devices` or `8 TPU v5 lite devices`.
        message: Why there are no numbers, as the original error message; empty after a run.
        seed: The random seed.
        inputs: One line per argument: its name, type and range of values.
        dims: Letters whose sizes differ from the target's own.
        comparisons: One comparison per output of each compared pair.
        estimated_bytes: Memory that the runs need, in bytes; None if not estimated.
        available_bytes: Free memory in bytes; None if unknown.
        not_compared: What could not be compared and why: requested `gradients` or `single device`, or an output of
            another shape.
        untested: Parts of arguments that no output depends on for the tested inputs.
        other_branches: Branches that ran instead of the compiled ones, and why; their numbers are not those of the
            compiled program.
        notes: Choices made on the user's behalf, one sentence each.
    """

    status: NumericsStatus
    ran_on: str = ""
    message: str = ""
    seed: int = 0
    inputs: tuple[str, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict, hash=False)
    comparisons: tuple[OutputComparison, ...] = ()
    estimated_bytes: int | None = None
    available_bytes: int | None = None
    not_compared: Mapping[str, str] = field(default_factory=dict, hash=False)
    untested: tuple[Untested, ...] = ()
    other_branches: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        fix_tables(self, "dims", "not_compared")

    @property
    def agree(self) -> bool:
        """True if both ran, something was compared, and nothing differs."""
        ran = self.status is NumericsStatus.RAN and not self.not_compared
        is_informative = any(output.informative for output in self.comparisons)
        return ran and is_informative and all(output.agrees for output in self.comparisons)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Verification(Shown):
    """A program compared with its reference.

    Attributes:
        target: The program, compiled for its slice.
        reference: Its reference, compiled for the same slice.
        numerics: Comparison of the numbers of both.
        communication: Comparison of the communication of both; the reference is the old side.
        findings: Findings where the program is worse than its reference or could not be compared with it.
    """

    _subject = "verification"

    target: Analysis
    reference: Analysis
    numerics: Numerics
    communication: Comparison
    findings: tuple[Finding, ...] = ()

    @property
    def passed(self) -> bool:
        """True if no finding is an error."""
        return not unaccepted(self.findings, Severity.ERROR)

    @property
    def untested(self) -> tuple[str, ...]:
        """Parts that no output depends on for the tested inputs: `table on 4 of 8 devices (X=4; X=5; ...)`."""
        messages = (finding.message for finding in self.findings if finding.rule == UNTESTED)
        words = (UNTESTED_WORDS, UNTRIED_WORDS, HIDDEN_WORDS)
        return tuple(reduce(str.removeprefix, words, message) for message in messages)

    @property
    def exceptions(self) -> tuple[str, ...]:
        """What the verdict does not cover, in words: untested inputs, numbers of another branch."""
        untested = (f"untested {'; '.join(self.untested)}",) if self.untested else ()
        is_other = any(finding.rule == ANOTHER_BRANCH for finding in self.findings)
        return (*untested, *(("numbers of another branch",) if is_other else ()))

    @property
    def bytes_ratio(self) -> float | None:
        """Ratio of the program's wire bytes per step to the reference's; None if either is unknown."""
        new, old = self.communication.new_total, self.communication.old_total
        return _compute_ratio(new.wire_bytes, old.wire_bytes) if _are_complete(new.bound, old.bound) else None

    @property
    def time_ratio(self) -> float | None:
        """Ratio of the program's predicted step time to the reference's; None if either was not priced."""
        new, old = self.target.time, self.reference.time
        if new is None or old is None or not _are_complete(new.bound, old.bound):
            return None
        return _compute_ratio(new.step_us, old.step_us)

    @front_door
    def fails(self, fail_on: str = "error", *, strict: bool = False) -> bool:
        """Returns whether any finding is at least as severe as `fail_on` or, with `strict`, the verdict has exceptions.

        Args:
            fail_on: Minimum severity: `note`, `warning` or `error`.
            strict: Whether exceptions, such as untested inputs, count as a failure.

        Raises:
            NotationError: `fail_on` is not a severity.
        """
        return bool(severe(self.findings, fail_on) or (strict and self.exceptions))

    def __repr__(self) -> str:
        verdict = "passed" if self.passed else "failed"
        return shorten_to_line(f"<Verification of {self.target.target} against {self.reference.target}: {verdict}>")

    if TYPE_CHECKING:

        def to_dict(self) -> VerificationDict:
            """The result as plain data."""


def _are_complete(*bounds: Bound) -> bool:
    """Returns whether no part of the amounts with these bounds is missing."""
    return not {Bound.AT_LEAST, Bound.UNKNOWN} & set(bounds)


def _compute_ratio(found: float, expected: float) -> float | None:
    if expected:
        return found / expected
    return 1.0 if not found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRow:
    """The communication of both programs with collectives of one kind over the same axes, per device and per step.

    Attributes:
        kind: Kind of collective.
        axes: Mesh axes joined by `,`.
        reference: Sum for the reference.
        target: Sum for the program.
        reference_us: Predicted time in the reference, in microseconds; None if not priced.
        target_us: Predicted time in the program, in microseconds; None if not priced.
    """

    kind: str
    axes: str
    reference: Total
    target: Total
    reference_us: float | None
    target_us: float | None


def make_traffic_rows(comparison: Comparison, target: Analysis, reference: Analysis) -> tuple[TrafficRow, ...]:
    """One row for each kind and axes that either program uses, most bytes first."""
    return tuple(
        TrafficRow(
            kind=str(tally.kind),
            axes=tally.axes,
            reference=tally.old,
            target=tally.new,
            reference_us=_sum_time(reference.collectives, str(tally.kind), tally.axes),
            target_us=_sum_time(target.collectives, str(tally.kind), tally.axes),
        )
        for tally in comparison.tallies
    )


def _sum_time(collectives: Iterable[Collective], kind: str, axes: str) -> float | None:
    """Microseconds per step of the collectives of a kind over these axes; None if one of them is not priced."""
    alike = [moved for moved in collectives if str(moved.kind) == kind and axes_key(moved) == axes]
    times = [moved.time_us * moved.executions for moved in alike if moved.time_us is not None]
    return sum(times, 0.0) if len(times) == len(alike) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """The communication of a program and its reference.

    Attributes:
        same: Whether both are known to move the same data.
        rows: One row per kind and axes, most bytes first.
        target_wire_bytes: Bytes that one device of the program sends per step.
        reference_wire_bytes: Bytes that one device of the reference sends per step.
        bytes_ratio: Ratio of the program's wire bytes to the reference's; None if either is unknown.
        time_ratio: Ratio of the program's predicted step time to the reference's; None if either is unknown.
    """

    same: bool
    rows: tuple[TrafficRow, ...]
    target_wire_bytes: int
    reference_wire_bytes: int
    bytes_ratio: float | None
    time_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoMemories:
    """Memory use of both programs in bytes, per device.

    Attributes:
        target: Memory use of the program.
        reference: Memory use of its reference.
    """

    target: Memory
    reference: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationDocument:
    """A program compared with its reference: numbers, structure and communication.

    Attributes:
        schema: Schema version of the document.
        target: The program.
        reference: Its reference.
        slice: The slice that both were compiled for.
        passed: Whether no finding is an error.
        untested: Parts of arguments that no output depends on for the tested inputs, in words.
        numerics: Comparison of the numbers of both.
        communication: Comparison of the communication of both.
        memory: Memory use of both.
        findings: Findings where the program is worse than its reference or could not be compared with it, most severe
            first.
        versions: Versions of `hloscope`, `jax`, `jaxlib` and `libtpu`.
    """

    schema: Schema = SCHEMA
    target: str
    reference: str
    slice: SliceFact | None
    passed: bool
    untested: tuple[str, ...]
    numerics: Numerics
    communication: Communication
    memory: TwoMemories
    findings: tuple[Finding, ...]
    versions: dict[str, str]


def make_verification_document(found: Verification) -> VerificationDocument:
    """Returns the verification as plain data, described by `hloscope/schemas/verify.json`."""
    moved = found.communication
    return make_document(
        VerificationDocument,
        found,
        target=found.target.target,
        reference=found.reference.target,
        slice=found.target.slice,
        communication=make_document(
            Communication,
            found,
            same=moved.same,
            rows=make_traffic_rows(moved, found.target, found.reference),
            target_wire_bytes=moved.new_total.wire_bytes,
            reference_wire_bytes=moved.old_total.wire_bytes,
        ),
        memory=TwoMemories(target=found.target.memory, reference=found.reference.memory),
        versions=found.target.versions,
    )
