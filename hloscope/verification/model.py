"""What a verification says of a program and its reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal

from hloscope.analysis.model import Analysis, Collective, Memory, SliceFact, Total
from hloscope.analysis.totals import axes_key
from hloscope.analysis.vocabulary import Bound
from hloscope.documents import SCHEMA, Schema, document
from hloscope.findings import Finding, Severity, severe, unaccepted
from hloscope.matching import Comparison
from hloscope.python_words import front_door
from hloscope.shown import Brief, Shown, fix_tables, one_line

if TYPE_CHECKING:
    from hloscope.plain_types import VerificationDict

ToleranceSource = Literal["rounding", "types", "user"]
"""`rounding`: runs of the reference with all that it stores moved; `types`: the types and lengths of sums alone."""


COPIES = "other copies"
"""What a program's own output is compared with, where several devices hold it."""


UNTESTED = "untested"
ANOTHER_BRANCH = "another-branch"
UNTESTED_WORDS = "no output of the reference depends on "
HIDDEN_WORDS = "rounding hides "
UNTRIED_WORDS = "hloscope did not test whether any output of the reference depends on "


class NumericsStatus(StrEnum):
    """How the attempt to run both programs ended."""

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
    """How far two floating-point numbers may lie apart: `absolute + relative * |reference|`.

    Attributes:
        relative: The share of the reference's own magnitude; 0 for types that must agree exactly.
        absolute: Added to it, for numbers near zero that cancellation left there.
        source: Where it comes from.
    """

    relative: float = 0.0
    absolute: float = 0.0
    source: ToleranceSource = "types"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """Errors that rounding does not make: they have one ratio, or one direction.

    Attributes:
        ratio: The program's elements over the reference's, in the mean.
        constant: Whether that ratio is all there is to the errors.
        one_way: The share of the elements that differ whose error has the sign of most.
        shards: Devices whose elements are biased; empty for all of them together.
        meaning: What the ratio is, such as `the size of X`; empty where nothing is known that it could be.
        explained: The largest deviation of the ratio from 1 that rounding explains.
    """

    ratio: float
    constant: bool
    one_way: float
    shards: tuple[str, ...]
    meaning: str = ""
    explained: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Roughness:
    """Errors that are larger all in all than the reference's own rounding.

    Attributes:
        times: How many times as large, in the root mean square.
        own: Whether the program's own rounding explains them.
        words: What rounds, such as `a loop of 64 steps adds up in bfloat16`; empty where that is not known.
    """

    times: float
    own: bool = False
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """The element that differs most, measured in what was allowed for it.

    Attributes:
        index: Where it is in the whole array.
        shard: Where its shard is in the mesh, such as `X=1, Y=0`; `device 3` without a mesh.
        local_index: Where it is in that shard.
        found: The program's value.
        expected: The reference's value.
        allowed: How far apart they may lie; 0 for types that must agree exactly.
    """

    index: tuple[int, ...]
    shard: str
    local_index: tuple[int, ...]
    found: str
    expected: str
    allowed: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ErrorMap(Brief):
    """Where an output's errors are: the largest of each block of it.

    The last dimension lies across, all others together down, in the order of memory. Block `i` of `n` along a side of
    `size` elements goes from element `i * size // n` to before `(i + 1) * size // n`.

    Attributes:
        shape: Of the output.
        errors: For each row of blocks those of its columns, as a multiple of what is allowed, in three digits;
            infinite where none is allowed.
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
        """Where a block begins, down or across."""
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
    """One output of two runs, compared shard by shard: an element is wrong when one device's copy of it is.

    Attributes:
        name: The output, such as `result[0]`, or `gradient of W`.
        against: Whose output it is compared with: `reference`, `single device`.
        subject: Whose output it is: `target`, `reference`.
        elements: Elements of the whole output.
        copies: Devices that hold each of them.
        wrong: How many of them differ by more than is allowed on some device.
        shards: Devices that hold a shard.
        wrong_shards: Those that hold a wrong element, such as `X=1, Y=0`.
        worst: The element that differs most; None where there is none.
        largest_error: The largest difference, as a multiple of what is allowed; infinite where none is allowed.
        informative: Whether the expected output says anything: some element is finite, and zero in its place would be
            wrong.
        blind_shards: Devices on which most of what is expected is not finite, or so small beside the rest of the output
            that zeros would pass.
        tolerance: How far a number of typical size may be off, and where that comes from.
        bias: Errors that lean, also below the tolerance; None where none do.
        roughness: Errors that are too large all in all; None where they are not.
        unstable: Elements that hang on a decision that rounding can tip, such as an index: those are not judged.
        exchanged: For wrong shards that hold what another should: `X=2 holds what the reference has at X=5`.
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
        """Whether nothing in it is wrong."""
        return not self.wrong and self.bias is None and self.roughness is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Untested:
    """A part of an argument that no output depends on for the inputs that were tried, or whose change nothing shows.

    Attributes:
        argument: The argument's name.
        shards: The devices that hold the part; empty for all of the argument.
        parts: Into how many different parts the devices share the argument.
        tried: Whether that was seen; false where it would have taken too long to try each part.
        changed: The output that is the argument with a change so small that rounding hides it; empty for anything else.
    """

    argument: str
    shards: tuple[str, ...]
    parts: int
    tried: bool = True
    changed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Numerics(Brief):
    """What came of running both programs on the same random inputs.

    Attributes:
        status: How the attempt ended.
        ran_on: Such as `8 simulated CPU devices`, `8 TPU v5 lite devices`.
        message: Why there are no numbers, in the words of whoever refused; empty after a run.
        seed: The random seed.
        inputs: One line for each argument: its name, type and range of values.
        dims: The letters that were given other sizes than the target's own.
        comparisons: One for each output of each pair that was compared.
        estimated_bytes: Bytes of memory that the runs need; None when it was not estimated.
        available_bytes: Bytes of memory that were free; None when it is not known.
        not_compared: What could not be compared, and why: `gradients` or `single device` that were asked for, an
            output of another shape.
        untested: Parts of arguments that no output depends on for the inputs that were tried.
        other_branches: Where the numbers are not those of the branch that was compiled: what ran, and why.
        notes: Choices made for the user, one sentence each.
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
        """Whether both ran, and something was compared, and nothing differs."""
        ran = self.status is NumericsStatus.RAN and not self.not_compared
        is_informative = any(output.informative for output in self.comparisons)
        return ran and is_informative and all(output.agrees for output in self.comparisons)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Verification(Shown):
    """A program compared with its reference.

    Attributes:
        target: The program, compiled for its slice.
        reference: Its reference, compiled for the same slice.
        numerics: What came of running both.
        communication: What each moves, matched; the reference is the old side.
        findings: Everything in which the program falls behind its reference or could not be compared with it.
    """

    target: Analysis
    reference: Analysis
    numerics: Numerics
    communication: Comparison
    findings: tuple[Finding, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no finding is an error."""
        return not unaccepted(self.findings, Severity.ERROR)

    @property
    def untested(self) -> tuple[str, ...]:
        """What no output depends on for the inputs that were tried: `table on 4 of 8 devices (X=4; X=5; ...)`."""
        messages = (finding.message for finding in self.findings if finding.rule == UNTESTED)
        words = (UNTESTED_WORDS, UNTRIED_WORDS, HIDDEN_WORDS)
        return tuple(reduce(str.removeprefix, words, message) for message in messages)

    @property
    def exceptions(self) -> tuple[str, ...]:
        """What a verdict does not cover, in words: inputs that are untested, numbers of another branch."""
        untested = (f"untested {'; '.join(self.untested)}",) if self.untested else ()
        is_other = any(finding.rule == ANOTHER_BRANCH for finding in self.findings)
        return (*untested, *(("numbers of another branch",) if is_other else ()))

    @property
    def bytes_ratio(self) -> float | None:
        """Wire bytes per step of the program over those of its reference; None where either is not known."""
        new, old = self.communication.new_total, self.communication.old_total
        return _ratio(new.wire_bytes, old.wire_bytes) if _known(new.bound, old.bound) else None

    @property
    def time_ratio(self) -> float | None:
        """Predicted time of a step of the program over its reference's; None where either was not priced."""
        new, old = self.target.time, self.reference.time
        if new is None or old is None or not _known(new.bound, old.bound):
            return None
        return _ratio(new.step_us, old.step_us)

    @front_door
    def fails(self, fail_on: str = "error", *, strict: bool = False) -> bool:
        """Whether a finding is as severe; with `strict` also whether the verdict has exceptions.

        Args:
            fail_on: The least severity: `note`, `warning` or `error`.
            strict: Whether it fails where something is untested.

        Raises:
            NotationError: There is no such severity.
        """
        return bool(severe(self.findings, fail_on) or (strict and self.exceptions))

    def __repr__(self) -> str:
        verdict = "passed" if self.passed else "failed"
        return one_line(f"<Verification of {self.target.target} against {self.reference.target}: {verdict}>")

    def _subject(self) -> str:
        return "verification"

    if TYPE_CHECKING:

        def to_dict(self) -> VerificationDict:
            """The result as plain data."""


def _known(*bounds: Bound) -> bool:
    """Whether no part of the amounts with these bounds is missing."""
    return not {Bound.AT_LEAST, Bound.UNKNOWN} & set(bounds)


def _ratio(found: float, expected: float) -> float | None:
    if expected:
        return found / expected
    return 1.0 if not found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRow:
    """What both programs move with collectives of one kind over the same axes, per step on one device.

    Attributes:
        kind: The kind.
        axes: Mesh axes joined by `,`.
        reference: The reference's sum.
        target: The program's sum.
        reference_us: Predicted time of the reference's; None when not priced.
        target_us: Predicted time of the program's; None when not priced.
    """

    kind: str
    axes: str
    reference: Total
    target: Total
    reference_us: float | None
    target_us: float | None


def traffic_rows(comparison: Comparison, target: Analysis, reference: Analysis) -> tuple[TrafficRow, ...]:
    """One row for each kind and axes that either program uses, most bytes first."""
    return tuple(
        TrafficRow(
            kind=str(tally.kind),
            axes=tally.axes,
            reference=tally.old,
            target=tally.new,
            reference_us=_time(reference.collectives, str(tally.kind), tally.axes),
            target_us=_time(target.collectives, str(tally.kind), tally.axes),
        )
        for tally in comparison.tallies
    )


def _time(collectives: Iterable[Collective], kind: str, axes: str) -> float | None:
    """Microseconds per step of the collectives of a kind over these axes; None where one of them is not priced."""
    alike = [moved for moved in collectives if str(moved.kind) == kind and axes_key(moved) == axes]
    times = [moved.time_us * moved.executions for moved in alike if moved.time_us is not None]
    return sum(times, 0.0) if len(times) == len(alike) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """What a program and its reference move.

    Attributes:
        same: Whether both move surely the same data.
        rows: By kind and axes, most bytes first.
        target_wire_bytes: Bytes one device of the program sends per step.
        reference_wire_bytes: Bytes one device of the reference sends per step.
        bytes_ratio: The first over the second; None where either is not known.
        time_ratio: Predicted time of a step over the reference's; None where either is not known.
    """

    same: bool
    rows: tuple[TrafficRow, ...]
    target_wire_bytes: int
    reference_wire_bytes: int
    bytes_ratio: float | None
    time_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoMemories:
    """Bytes on one device.

    Attributes:
        target: Of the program.
        reference: Of its reference.
    """

    target: Memory
    reference: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationDocument:
    """A program compared with its reference: numbers, structure and communication.

    Attributes:
        schema: Version of this document's shape.
        target: The program.
        reference: Its reference.
        slice: The slice that both were compiled for.
        passed: Whether no finding is an error.
        untested: What no output depends on for the inputs that were tried, in words.
        numerics: What came of running both.
        communication: What each moves.
        memory: What each takes.
        findings: Everything in which the program falls behind its reference, the worst first.
        versions: Versions of what took part.
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


def document_of(found: Verification) -> VerificationDocument:
    """The verification as plain data, described by `hloscope/schemas/verify.json`."""
    moved = found.communication
    return document(
        VerificationDocument,
        found,
        target=found.target.target,
        reference=found.reference.target,
        slice=found.target.slice,
        communication=document(
            Communication,
            found,
            same=moved.same,
            rows=traffic_rows(moved, found.target, found.reference),
            target_wire_bytes=moved.new_total.wire_bytes,
            reference_wire_bytes=moved.old_total.wire_bytes,
        ),
        memory=TwoMemories(target=found.target.memory, reference=found.reference.memory),
        versions=found.target.versions,
    )
