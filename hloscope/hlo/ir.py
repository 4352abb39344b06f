"""The module, its computations and its instructions, as views of the columns."""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property, lru_cache
from types import MappingProxyType
from typing import Any

from hloscope.base.errors import HloParseError, find_line_and_column, format_excerpt
from hloscope.hlo.columns import Columns, ComputationRow, Form
from hloscope.hlo.grammar import is_plain_pairs, load_language, unquote
from hloscope.hlo.lalr import is_known_opcode
from hloscope.hlo.records import (
    NAME,
    STRING,
    UNKNOWN_SHAPE,
    ContradictionError,
    ReadError,
    ReplicaGroups,
    Shape,
    Sharding,
)
from hloscope.hlo.shape_rules import find_needed_shapes, infer_shape

# ---- errors with a line, a column and a caret, from an offset in a text; and detection of text that is only cut off

_NOT_HLO_FIX = (
    "use HLO text, which starts with `HloModule`, such as the output of jax.jit(f).lower(...).compile().as_text() or "
    "XLA's dumps named *.txt"
)
_CUT_OFF_FIX = "was the file cut off?"
_HLO_WORDS = ("HloModule", "ENTRY", "ROOT")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def lay_out_error(columns: Columns, error: ReadError, open_computation: tuple[str, int] | None = None) -> HloParseError:
    """Converts an error of the grammar for the user.

    Args:
        columns: The columns read so far, for the text and its name.
        error: The error, with offsets in the text.
        open_computation: Name and offset of the computation that contains the error.
    """
    text = columns.text
    if not text.strip(" \t\r\n"):
        return error_at(columns, 0, "the text is empty", _NOT_HLO_FIX)
    position = min(error.position, len(text.rstrip(" \t\r\n")))
    if _begins_second_module(text, position):
        fix = "pass one module at a time, or separate modules with lines of `// -----` and read them with parse_modules"
        return error_at(columns, text.rindex("HloModule", 0, position), "a second module begins here", fix)
    if open_computation is not None and (error.at_end or _is_cut_off(text, position)):
        name, start = open_computation
        line = find_line_and_column(text, start)[0] + columns.lines_before
        what = f"the text ends inside computation %{name} that starts at line {line}"
        if error.opened_at is not None:
            what = f"{what}: {error.what}"
        return error_at(columns, position, what, _CUT_OFF_FIX)
    if open_computation is None and not error.at_end and _is_no_hlo(text[:position]):
        start = len(text) - len(text.lstrip(" \t\r\n"))
        return error_at(columns, start, _render_no_hlo_message(text), _NOT_HLO_FIX)
    if not error.at_end and _is_cut_off(text, position) and len(text[position:].split()) == 1:
        return error_at(columns, position, f"the text ends too early: {error.what}", _CUT_OFF_FIX)
    return error_at(columns, position, error.what, error.fix)


def lost_entry_error(columns: Columns) -> HloParseError:
    """The error for a module whose text ends before its `ENTRY`."""
    last = columns.computations[-1].name
    what = f"the text is cut off before ENTRY; %{last} is the last complete computation"
    return error_at(columns, len(columns.text.rstrip(" \t\r\n")), what, "use the whole text; XLA prints ENTRY last")


def error_at(columns: Columns, position: int, what: str, fix: str | None) -> HloParseError:
    """An error at an offset of the text, with a fix."""
    line, column, line_text = find_line_and_column(columns.text, position)
    line += columns.lines_before
    where = f"{columns.file_name or '<text>'}:{line}:{column}"
    excerpt = format_excerpt(_CONTROL.sub("\ufffd", line_text), column)
    return HloParseError(what, line=line, column=column, where=where, excerpt=excerpt, fix=fix)


def _is_cut_off(text: str, position: int) -> bool:
    """Returns whether an offset is on the last line of a text that does not end with a closing brace."""
    return text.find("\n", position) < 0 and not text.rstrip(" \t\r\n").endswith("}")


def _is_no_hlo(before: str) -> bool:
    """Returns whether the text before the error is less than two words."""
    words = before.split()
    return not words or (len(words) == 1 and words[0].isidentifier() and words[0] not in _HLO_WORDS)


def _render_no_hlo_message(text: str) -> str:
    if text.lstrip().startswith(("module ", "module@", "#loc", "#map", "func.func", "builtin.module")):
        return "this is MLIR (such as StableHLO), not HLO text"
    return "this is not HLO text"


_NEXT_INSTRUCTION = re.compile(r"\n[ \t]*+(?:ROOT[ \t]++)?%?[A-Za-z_][A-Za-z0-9_.-]*+[ \t]*+=[ \t]")
_HEADER_BEFORE = re.compile(r"(?<![%\w.-])HloModule[ \t\r\n]++\Z")
_CUT_TOKEN = re.compile(r"""[A-Za-z0-9_%/<.?-][^\s})\]]*+\s*+|["'{\[(@/][^\n]*+\n?""")
"""The possible beginning of a token at the very end of a text; the second kind may contain blanks."""


def is_cut_off(text: str, error: ReadError) -> bool:
    """Returns whether the text ends too early, rather than being broken at the error.

    It ends too early if something was still expected, or in the middle of a token. A bracket or quote that is never
    closed although further instructions follow is a separate mistake.
    """
    if error.at_end and error.opened_at is None:
        return True
    start = error.position if error.opened_at is None else error.opened_at
    if _begins_second_module(text, error.position):
        return False
    if error.opened_at is None:
        return _CUT_TOKEN.fullmatch(text, start) is not None
    return _NEXT_INSTRUCTION.search(text, start) is None


def _begins_second_module(text: str, position: int) -> bool:
    """Returns whether the text at an offset is the name after a second `HloModule`."""
    return _HEADER_BEFORE.search(text, max(0, position - 80), position) is not None and text.count("HloModule") > 1


# ---- values of attributes, decoded from raw text

_NUMBER = re.compile(r"[0-9]+")
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_ENTRY = rf"""({NAME})=(?:"([^"\\]++)"|({STRING}|[A-Za-z0-9_.?+@:-]++))"""
_cut_entries = re.compile(_ENTRY).findall
_is_plain = re.compile(
    rf"""\{{(?:{NAME}=(?:"[^"\\]++"|{STRING}|[A-Za-z0-9_.?+@:-]++)[, ]?)*+\}}"""  # re fails with groups in a `*+`
).fullmatch
_MOST_ENTRIES = 1 << 12

_EMPTY: Mapping[str, Any] = MappingProxyType({})


@lru_cache(maxsize=_MOST_ENTRIES)
def _attach_text(key: str, raw: str) -> Any:
    """Parses groups or a sharding, and keeps their text: the same few occur on very many instructions."""
    try:
        return replace(load_language().read(key, raw), text=raw)
    except ContradictionError as error:
        if key != "replica_groups":
            raise
        return ReplicaGroups(text=raw, contradiction=error.what)


@lru_cache(maxsize=_MOST_ENTRIES)
def _read_plain_pairs(raw: str) -> tuple[tuple[int, int], ...] | None:
    if not is_plain_pairs(raw):
        return None
    numbers = list(map(int, _NUMBER.findall(raw)))
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


@lru_cache(maxsize=_MOST_ENTRIES)
def _cut_plain_entries(key: str, raw: str) -> Mapping[str, str]:
    """Cuts out strings and words; other entries are read by their rule."""
    if _is_plain(raw) is None:
        return MappingProxyType(load_language().read(key, raw).values)
    found = _cut_entries(raw)
    return MappingProxyType(
        {key: plain or (unquote(value) if value[0] == '"' else value) for key, plain, value in found}
    )


def _read_integer(raw: str | None) -> int | None:
    """An integer; None if it is missing or printed as something else, such as the `_` of a fingerprint."""
    return int(raw) if raw is not None and _INTEGER.fullmatch(raw) else None


class HloModule:
    """A module as its text describes it.

    Attributes:
        name: The name after `HloModule`; for computations without a header, the entry's name.
        header: Raw value text of each header attribute.
        computations: The computations, in text order.
        truncated: Whether the text is cut off. Anything after its last complete computation is missing, perhaps
        including `ENTRY`; then every total over the module is a lower bound.
        frames: The source frames of an instruction's `stack_frame_id`, innermost first; empty if the id is unknown.
        graph: The call graph that `find_call_graph` made; None before that.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.name = columns.name
        self.header: Mapping[str, str] = MappingProxyType(columns.header)
        self.truncated = columns.truncated
        self.frames = cache(columns.tables.frames)
        self.graph: Any = None
        self._parameter_places: dict[int, list[int]] = {}
        self.computations = tuple(
            HloComputation(self, columns, row, is_entry=index == columns.entry)
            for index, row in enumerate(columns.computations)
        )

    def __repr__(self) -> str:
        return f"<HloModule {self.name}: {len(self.computations)} computations>"

    @property
    def is_scheduled(self) -> bool:
        """True if the textual order in each computation is the order of execution."""
        return self.header.get("is_scheduled") == "true"

    @cached_property
    def num_partitions(self) -> int:
        """Number of partitions of the program; 1 if the header does not state it."""
        return int(self.header.get("num_partitions", 1))

    @cached_property
    def replica_count(self) -> int:
        """Number of replicas of the program; 1 if the header does not state it."""
        return int(self.header.get("replica_count", 1))

    @property
    def device_count(self) -> int:
        """Number of devices according to the text."""
        return self.num_partitions * self.replica_count

    @property
    def entry(self) -> HloComputation:
        """The computation marked `ENTRY`, otherwise the last one.

        Raises:
            HloParseError: The text is cut off before it; use `outermost` instead.
        """
        if self._columns.entry < 0:
            raise lost_entry_error(self._columns)
        return self.computations[self._columns.entry]

    @cached_property
    def outermost(self) -> tuple[HloComputation, ...]:
        """The start of the program: ENTRY alone or, if it is cut off, every computation without callers.

        The number of times that ENTRY would have run these is unknown.
        """
        if self._columns.entry >= 0:
            return (self.entry,)
        called = {name for calls in self._columns.called.values() for _, name in calls}
        return tuple(computation for computation in self.computations if computation.name not in called)

    def with_opcodes(self, wanted: Collection[str]) -> tuple[HloInstruction, ...]:
        """The instructions with one of these opcodes, in text order; no other instruction is examined."""
        indexes = sorted(index for opcode in set(wanted) for index in self._by_opcode.get(opcode, ()))
        return tuple(self._instruction(index) for index in indexes)

    def named(self, wanted: Collection[str]) -> dict[str, HloInstruction]:
        """The instructions with these names, in any computation; no other instruction is examined."""
        names = enumerate(self._columns.names)
        return {name: self._instruction(index) for index, name in names if name in wanted}

    @property
    def opcodes(self) -> Collection[str]:
        """Every opcode in the text, once."""
        return self._by_opcode.keys()

    def mentions(self, words: str) -> bool:
        """Returns whether the text contains some words anywhere."""
        return words in self._columns.text

    def first_match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """The first match of a pattern in the text."""
        return pattern.search(self._columns.text)

    def _instruction(self, index: int) -> HloInstruction:
        return self.computations[bisect_right(self._first_indexes, index) - 1].instruction_at(index)

    @cached_property
    def _calling(self) -> dict[int, list[int]]:
        """The calling instructions, by the first instruction of their computation."""
        firsts, found = self._first_indexes, defaultdict[int, list[int]](list)
        for index in sorted(self._columns.called):
            found[firsts[bisect_right(firsts, index) - 1]].append(index)
        return found

    @cached_property
    def _first_indexes(self) -> list[int]:
        return [row.first for row in self._columns.computations]

    @cached_property
    def _by_opcode(self) -> dict[str, array[int]]:
        """The instructions of each opcode, in text order."""
        found = defaultdict[str, "array[int]"](lambda: array("i"))
        for index, form in enumerate(self._columns.forms):
            found[form.opcode].append(index)
        return found

    @cached_property
    def structures(self) -> Mapping[str, int]:
        """A number for each computation, by name: those that differ only in names, literals and attributes share one.

        The layers of a model repeat their fusions. Shapes that the text omits may depend on attributes, so that a
        computation with such shapes is like no other.
        """
        columns = self._columns
        counts, operands = columns.relative_operands
        complete = all(form.shape for form in set(columns.forms))
        found: dict[str, int] = {}
        numbers: dict[tuple[object, ...], int] = {}
        for row in columns.computations:
            first, forms = row.first, columns.forms[row.first : row.end]
            calls = [
                (index - first, attribute, found.get(name, name))
                for index in self._calling.get(first, ())
                for attribute, name in columns.called[index]
            ]
            key = (
                row.root - first if complete or all(form.shape for form in forms) else row.name,
                *forms,
                *[columns.argument(index) for index, form in enumerate(forms, first) if form.opcode == "parameter"],
                counts[first : row.end].tobytes(),
                operands[columns.operand_starts[first] : columns.operand_starts[row.end]].tobytes(),
                *calls,
            )
            found[row.name] = numbers.setdefault(key, len(numbers))
        return found

    @cached_property
    def _by_name(self) -> dict[str, HloComputation]:
        return {computation.name: computation for computation in self.computations}

    def computation(self, name: str) -> HloComputation:
        """The computation with this name, without `%`.

        Raises:
            KeyError: No computation has this name.
        """
        return self._by_name[name]

    @cached_property
    def unknown_opcodes(self) -> tuple[str, ...]:
        """Opcodes that XLA did not have when this was written, sorted."""
        return tuple(sorted(opcode for opcode in self.opcodes if not is_known_opcode(opcode)))


class HloComputation:
    """A computation: its instructions in text order.

    Attributes:
        module: The module it belongs to.
        name: The name, without `%`.
        line: 1-based line of its head in the file.
        is_entry: Whether it is the entry of the program.
        execution_thread: The thread that runs it, such as `sparsecore`; None for the main one.
    """

    def __init__(self, module: HloModule, columns: Columns, row: ComputationRow, *, is_entry: bool) -> None:
        self._columns = columns
        self._row = row
        self.module = module
        self.name = row.name
        self.line = row.line + columns.lines_before
        self.is_entry = is_entry
        self.execution_thread = row.execution_thread

    def __repr__(self) -> str:
        return f"<HloComputation %{self.name}: {self._row.end - self._row.first} instructions>"

    @cached_property
    def instruction_at(self) -> Callable[[int], HloInstruction]:
        """The instruction in a row of the module's columns, which must be in this computation."""
        return _Instructions(self).__getitem__

    @cached_property
    def instructions(self) -> tuple[HloInstruction, ...]:
        """The instructions in text order, which is the order of execution in a scheduled module."""
        return tuple(self.instruction_at(index) for index in range(self._row.first, self._row.end))

    def forms(self) -> Iterator[tuple[int, Form]]:
        """The argument for `instruction_at`, opcode and printed shape of each instruction, without creating any."""
        return enumerate(self._columns.forms[self._row.first : self._row.end], self._row.first)

    @cached_property
    def opcodes(self) -> frozenset[str]:
        """The opcodes of its instructions."""
        return frozenset(form.opcode for _, form in self.forms())

    @property
    def calling(self) -> tuple[HloInstruction, ...]:
        """The instructions that name other computations, in text order."""
        return tuple(map(self.instruction_at, self.module._calling.get(self._row.first, ())))

    @property
    def root(self) -> HloInstruction:
        """The instruction whose value the computation returns."""
        return self.instruction_at(self._row.root)

    @cached_property
    def parameters(self) -> tuple[HloInstruction, ...]:
        """The parameters, by number.

        Raises:
            HloParseError: Their numbers are not 0, 1, 2, …, each once.
        """
        columns, structure, first = self._columns, self.module.structures[self.name], self._row.first
        if structure not in self.module._parameter_places:
            indexes = [index for index, form in self.forms() if form.opcode == "parameter"]
            numbers = {index: int(columns.argument(index) or 0) for index in indexes}
            ordered = sorted(indexes, key=numbers.__getitem__)
            for number, index in enumerate(ordered):
                if numbers[index] != number:
                    what = f"parameter {number} of %{self.name} is missing, or another one has its number"
                    raise error_at(columns, columns.line_start(indexes[0]), what, None)
            self.module._parameter_places[structure] = [index - first for index in ordered]
        return tuple([self.instruction_at(first + place) for place in self.module._parameter_places[structure]])

    @cached_property
    def _indexes(self) -> dict[str, int]:
        rows = range(self._row.first, self._row.end)
        return dict(zip(self._columns.names[rows.start : rows.stop], rows, strict=True))

    def instruction(self, name: str) -> HloInstruction:
        """The instruction with this name, without `%`.

        Raises:
            KeyError: No instruction has this name.
        """
        return self.instruction_at(self._indexes[name])


class _Instructions(dict[int, "HloInstruction"]):
    """The instructions of a computation, by row; each is made when it is first asked for."""

    __slots__ = ("_computation",)

    def __init__(self, computation: HloComputation) -> None:
        super().__init__()
        self._computation = computation

    def __missing__(self, index: int) -> HloInstruction:
        made = self[index] = HloInstruction(self._computation, index)
        return made


class HloInstruction:
    """One instruction, whose attributes are read from the text on demand.

    Attributes:
        computation: The computation it belongs to.
        opcode: The opcode, as printed.
    """

    __slots__ = ("_attributes", "_columns", "_index", "_metadata", "computation", "opcode")

    def __init__(self, computation: HloComputation, index: int) -> None:
        self.computation = computation
        self._columns = computation._columns
        self._index = index
        self.opcode = self._columns.forms[index].opcode
        self._attributes: Mapping[str, str] | None = None
        self._metadata: Mapping[str, str] | None = None

    def __repr__(self) -> str:
        return f"<HloInstruction %{self.name} = {self.shape} {self.opcode}>"

    @property
    def name(self) -> str:
        """The name, without `%`. Names with `#` are of instructions that the text only implies, such as `%t#0`."""
        return self._columns.names[self._index]

    @property
    def shape(self) -> Shape:
        """The result's shape; inferred if the text omits it, with element type `unknown` if that fails."""
        shape = self._columns.forms[self._index].shape
        return _infer_shape(self) if shape is None else shape

    @property
    def printed_shape(self) -> Shape | None:
        """The result's shape, if the text states it."""
        return self._columns.forms[self._index].shape

    @property
    def line(self) -> int:
        """1-based line in the file."""
        return self._columns.lines[self._index] + self._columns.lines_before

    @property
    def is_root(self) -> bool:
        """True if the computation returns its value."""
        return self._index == self.computation._row.root

    @property
    def operands(self) -> tuple[HloInstruction, ...]:
        """The operands in order; one that is used twice occurs twice."""
        columns, computation = self._columns, self.computation
        start, end = columns.operand_starts[self._index], columns.operand_starts[self._index + 1]
        return tuple(map(computation.instruction_at, columns.operands[start:end]))

    def operand(self, number: int) -> HloInstruction | None:
        """One operand, without creating the others; None if there are fewer."""
        columns = self._columns
        start, end = columns.operand_starts[self._index], columns.operand_starts[self._index + 1]
        return self.computation.instruction_at(columns.operands[start + number]) if number < end - start else None

    def positions_of(self, operand: HloInstruction) -> list[int]:
        """The positions of an instruction of the same computation among the operands, without creating any."""
        return self._columns.positions(operand._index, self._index)

    @property
    def operand_names(self) -> tuple[str, ...]:
        """The operands' names, without `%`."""
        columns = self._columns
        start, end = columns.operand_starts[self._index], columns.operand_starts[self._index + 1]
        return tuple(columns.names[operand] for operand in columns.operands[start:end])

    @property
    def users(self) -> tuple[HloInstruction, ...]:
        """The instructions of the same computation that have it as an operand, in text order, each once."""
        return tuple(map(self.computation.instruction_at, self._columns.users(self._index)))

    @property
    def attributes(self) -> Mapping[str, str]:
        """Raw value text by key, as printed."""
        if self._attributes is None:
            self._attributes = self._columns.attributes(self._index)
        return self._attributes

    @property
    def called(self) -> tuple[tuple[str, str], ...]:
        """(attribute key, computation name) for each computation it calls, in printed order."""
        return self._columns.called.get(self._index, ())

    @property
    def argument(self) -> str | None:
        """The text in the parentheses instead of operands: a parameter's number, a constant's literal."""
        return self._columns.argument(self._index)

    @property
    def parameter_number(self) -> int | None:
        """The number of a parameter."""
        argument = self.argument if self.opcode == "parameter" else None
        return None if argument is None else int(argument)

    @property
    def literal(self) -> str | None:
        """The raw text inside `constant(…)`; `{...}` if it is elided."""
        return self.argument if self.opcode == "constant" else None

    @property
    def tuple_index(self) -> int | None:
        """The index of a get-tuple-element."""
        return _read_integer(self.attributes.get("index")) if self.opcode == "get-tuple-element" else None

    @property
    def channel_id(self) -> int | None:
        """The channel, which does not identify a collective."""
        return _read_integer(self.attributes.get("channel_id"))

    def _read(self, key: str, rule: str | None = None, read: Callable[[str, str], Any] | None = None) -> Any:
        """The value of an attribute, read by a rule of the grammar; None if it is missing.

        Args:
            key: The attribute's name.
            rule: The rule, such as `number`, `boolean` or `quoted`; by default the one of the attribute's name.
            read: A function that reads a text by a rule; by default the grammar.

        Raises:
            HloParseError: The value does not follow the rule; the error points at it in the whole text.
        """
        raw = self.attributes.get(key)
        if raw is None:
            return None
        try:
            return (read or load_language().read)(rule or key, raw)
        except ReadError as error:
            line_start = self._columns.line_start(self._index)
            offset = self._columns.text.find(f"{key}={raw}", line_start)
            base = line_start if offset < 0 else offset + len(key) + 1
            what = f"invalid {key} of %{self.name}: {error.what}"
            raise lay_out_error(self._columns, ReadError(error.position + base, what, fix=error.fix)) from None

    @property
    def replica_groups(self) -> ReplicaGroups | None:
        """The groups of a collective, in any of their three forms; None if the text states none.

        Contradictory sizes and axes are kept as printed: XLA prints and reads them too.
        """
        found: ReplicaGroups | None = self._read("replica_groups", read=_attach_text)
        return found

    @property
    def source_target_pairs(self) -> tuple[tuple[int, int], ...] | None:
        """(source, target) of a collective-permute.

        Raises:
            HloParseError: An entry is not a pair.
        """
        key = "source_target_pairs"
        plain = _read_plain_pairs(self.attributes[key]) if key in self.attributes else None
        if plain is not None or key not in self.attributes:
            return plain
        pairs: tuple[tuple[int, ...], ...] = self._read(key, "integer_lists")
        if any(len(pair) != 2 for pair in pairs):
            error = ReadError(self._columns.line_start(self._index), f"{key} of %{self.name} are not pairs")
            raise lay_out_error(self._columns, error)
        return tuple((pair[0], pair[1]) for pair in pairs)

    @property
    def dimensions(self) -> tuple[int, ...] | None:
        """The attribute `dimensions`, such as `{0,1}`."""
        found: tuple[int, ...] | None = self._read("dimensions", "integers")
        return found

    @property
    def sharding(self) -> Sharding | None:
        """The sharding that the text still carries, in any of its forms."""
        found: Sharding | None = self._read("sharding", read=_attach_text)
        return found

    @property
    def metadata(self) -> Mapping[str, str]:
        """The entries of `metadata`, unquoted."""
        if self._metadata is None:
            self._metadata = self._read("metadata", read=_cut_plain_entries) or _EMPTY
        return self._metadata

    @property
    def op_name(self) -> str | None:
        """The name stack that JAX gave the operation."""
        return self.metadata.get("op_name")

    @property
    def stack_frame_id(self) -> int | None:
        """The id for `HloModule.frames`."""
        return _read_integer(self.metadata.get("stack_frame_id"))

    @property
    def source_file(self) -> str | None:
        """The source file in the metadata, if frames are not used."""
        return self.metadata.get("source_file")

    @property
    def source_line(self) -> int | None:
        """The source line in the metadata, if frames are not used."""
        return _read_integer(self.metadata.get("source_line"))

    @property
    def backend_config(self) -> Mapping[str, object]:
        """The backend's JSON, quoted or not; `{"raw": text}` if it is not a JSON object; empty if there is none."""
        raw = self.attributes.get("backend_config")
        if raw is None:
            return _EMPTY
        text = unquote(raw) if raw[0] in "\"'" else raw
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return {"raw": text}
        return found if isinstance(found, dict) else {"raw": text}

    @property
    def frontend_attributes(self) -> Mapping[str, str]:
        """Unquoted strings, and raw text for values in braces."""
        return self._read("frontend_attributes", read=_cut_plain_entries) or _EMPTY

    @property
    def custom_call_target(self) -> str | None:
        """The target of a custom-call, unquoted."""
        found: str | None = self._read("custom_call_target", "quoted")
        return found


def _infer_shape(instruction: HloInstruction) -> Shape:
    """The shape that XLA would infer, if it follows from the operands or the callee alone; otherwise unknown.

    Inferred shapes are kept in the columns. Chains are resolved from their first instruction on, without recursion.
    """
    known = instruction._columns.inferred
    waiting = [instruction]
    while waiting:
        current = waiting[-1]
        needed = _find_shaping(current)
        shapes = [item.printed_shape or known.get(item._index) for item in needed]
        missing = [item for item, shape in zip(needed, shapes, strict=True) if shape is None]
        if not missing:
            found = [shape or UNKNOWN_SHAPE for shape in shapes]
            has_callee = bool(current.called)
            known[current._index] = infer_shape(current.opcode, current.attributes, found, has_callee=has_callee)
            waiting.pop()
        waiting.extend(missing)
    return known[instruction._index]


def _find_shaping(instruction: HloInstruction) -> tuple[HloInstruction, ...]:
    """The instructions whose shapes determine the result's: operands, and the root of the first callee."""
    operands, is_applied = find_needed_shapes(instruction.opcode)
    module, called = instruction.computation.module, instruction.called[:1] if is_applied else ()
    return (*instruction.operands[operands], *(module.computation(name).root for _, name in called))
