"""The words of a text's lines that the grammar has parsed, and what was learnt from each.

A word is a shape, an opcode with its parenthesis, a run of attributes, what stands around the names of an operand list,
or the signature of a computation. Each is parsed once, in a line that holds nothing else of interest; from then on a
look into a dictionary replaces the parse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from hloscope.hlo.attribute_skeletons import (
    Irregular,
    Template,
    cut_attributes,
    has_comment,
    is_plain,
    is_plain_config,
    template,
    without_index_comments,
)
from hloscope.hlo.columns import Columns
from hloscope.hlo.language import language
from hloscope.hlo.line_patterns import NAME, Dialect, Row
from hloscope.hlo.opcodes import is_known_opcode
from hloscope.hlo.records import ComputationHead, Instruction, ReadError
from hloscope.hlo.shape import Shape
from hloscope.hlo.shape_words import ShapeWords
from hloscope.hlo.value_actions import RULE_OF_VALUE, check_value

_MOST_WORDS = 1 << 14
"""Words of a kind that are kept for later lines; beyond it all are forgotten and learnt again."""

_MOST_TEMPLATES = 1 << 12
"""Templates that are kept for later lines; a text that needs more repeats none of them."""

_MOST_READ = 1 << 12
"""Runs of attributes whose values are kept for the next instruction that asks."""

_LINE = "x = f32[] add()"
_CONFIG = ", backend_config={}"
_LEAVES = ("parameter", "constant")
"""The opcodes with something else than operands in their parentheses; to the grammar all others are the same."""

_CUT_OUT = frozenset({"metadata", "backend_config", "calls", "to_apply"})
"""Keys that the row's pattern cuts out of a line where they are printed as usual."""


class Run(NamedTuple):
    """What a run of attributes says.

    Attributes:
        called: (key, name of the called computation), in printed order.
        keys: Every key.
    """

    called: tuple[tuple[str, str], ...]
    keys: tuple[str, ...]


class Form:
    """What all instructions with one shape and opcode have in common."""

    __slots__ = ("_cache", "opcode", "shape")

    def __init__(self, cache: LineCache, opcode: str, shape: Shape | None) -> None:
        self._cache = cache
        self.opcode = opcode
        self.shape = shape

    def attributes(self, columns: Columns, index: int) -> Mapping[str, str]:
        """Raw value text by key, in printed order."""
        return self._cache.attributes(columns, index)

    def argument(self, columns: Columns, index: int) -> str | None:
        """What stands in the parentheses of a parameter or a constant; None for other opcodes."""
        if self.opcode not in _LEAVES:
            return None
        line = columns.line_text(index)
        start = line.index(f" {self.opcode}(") + len(self.opcode) + 2
        return line[start : line.index(")", start)]


class LineCache:
    """The words of one dialect.

    Attributes:
        dialect: How its lines are cut.
        forms: By the opening of a row.
        leading_attributes: The attributes before the metadata, each by itself.
        trailing_attributes: What stands behind the metadata, each by itself.
        calls: What is called, by the texts of both that call anything.
        unusual: What stands behind the metadata and is more than a configuration.
        shapes: By their text.
        signatures: What computations' heads say.
        texts: Metadata that stands on several lines, each by itself.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.forms: dict[str, Form] = {}
        self.leading_attributes: dict[str, str] = {}
        self.trailing_attributes: dict[str, str] = {}
        self.calls: dict[str, tuple[tuple[str, str], ...]] = {}
        self.unusual: set[str] = set()
        self.texts: dict[str, str] = {}
        self.shapes = ShapeWords()
        self.signatures = Signatures(self.shapes)
        self._around_names: set[str] = set()
        self._opcodes: set[tuple[bool, str]] = set()
        self._templates: dict[tuple[str, ...], Template] = {}
        self._unique: set[tuple[str, ...]] = set()
        self._checked: set[tuple[str, str]] = set()
        self._read: dict[str, Mapping[str, str]] = {"": {}}

    def trim(self) -> None:
        """Forgets what has become too much."""
        for words in (self.forms, self.texts, self._unique, self._checked, self._around_names):
            if len(words) >= _MOST_WORDS:
                words.clear()
        if max(len(self.leading_attributes), len(self.trailing_attributes)) >= _MOST_WORDS:
            for texts in (self.leading_attributes, self.trailing_attributes, self.calls, self.unusual):
                texts.clear()
        if len(self._templates) >= _MOST_TEMPLATES:
            self._templates.clear()

    # ---- the opening of a row

    def learn_form(self, opening: str) -> None:
        """Learns `f32[2]{0} add(`.

        Raises:
            ReadError: It does not follow the grammar.
            Irregular: It holds a comment.
        """
        shape_text, _, opcode_text = opening.rpartition(" ")
        opcode = opcode_text.rstrip("(%")
        if has_comment(opening):
            raise Irregular
        example = f"add({opening[-1:].strip('(')}" if is_known_opcode(opcode) and opcode not in _LEAVES else opcode_text
        if (bool(shape_text), example) not in self._opcodes:
            self._learn_opcode(example, has_shape=bool(shape_text))
        self.forms[opening] = Form(self, opcode, self.shapes.read(shape_text) if shape_text else None)

    def _learn_opcode(self, text: str, *, has_shape: bool) -> None:
        opcode = text.rstrip("(%")
        is_leaf, names = opcode in _LEAVES, ["x"] if text[-1] == "%" else []
        line = f"x = {'f32[] ' if has_shape else ''}{text}{'0' if is_leaf else ''.join(names)})"
        parsed: Instruction = language().parse("instruction", line)
        operation = parsed.operation
        found = (operation.opcode, [operand.name for operand in operation.operands], operation.argument is not None)
        if found != (opcode, names, is_leaf) or operation.attributes:
            raise Irregular
        self._opcodes.add((has_shape, text))

    # ---- attributes

    def learn_leading(self, text: str) -> None:
        """Learns a run of attributes such as `, channel_id=1, dimensions={0}`.

        Raises:
            ReadError: It does not follow the grammar.
            Irregular: No template describes it, or it holds keys that stand elsewhere as a rule.
        """
        run = self._run(text)
        if not _CUT_OUT.isdisjoint(run.keys):
            raise Irregular
        self.leading_attributes[text] = text
        if run.called:
            self.calls[text] = run.called

    def learn_trailing(self, text: str) -> None:
        """Learns what stands behind the metadata, which is a backend's configuration as a rule.

        Raises:
            ReadError: It does not follow the grammar.
            Irregular: No template describes it.
        """
        is_config = text == "" or is_plain_config(text)
        run = self._run(_CONFIG if is_config else text)
        self.trailing_attributes[text] = text
        if not is_config:
            self.unusual.add(text)
        if run.called:
            self.calls[text] = run.called

    def _run(self, text: str) -> Run:
        parts = cut_attributes(text)
        found = self._template_of(parts, text)
        for key, place in found.attributes:
            if key in RULE_OF_VALUE and (value := (key, place.text(parts))) not in self._checked:
                check_value(language().read, *value)
                self._checked.add(value)
        called = tuple((key, place.text(parts).lstrip("%=")) for key, place in found.called)
        return Run(called, tuple(key for key, _ in found.attributes))

    def _template_of(self, parts: list[str], text: str) -> Template:
        key = tuple(parts[::2])
        found = self._templates.get(key)
        if found is None:
            if not is_plain(parts[::2]):
                raise Irregular
            parsed: Instruction = language().parse("instruction", _LINE + text)
            found = self._templates[key] = template(parsed.operation.attributes, parts, len(_LINE))
        return found

    def check_unique(self, row: Row[str]) -> None:
        """Checks that no key stands twice in a row, whose runs have been learnt.

        Raises:
            ReadError: One does.
        """
        known = (row.attributes, row.calling, row.more, row.metadata and "{}", row.rest)
        if known in self._unique:
            return
        keys = [*self._keys(row.attributes), *self._keys(row.more), *self._keys(row.rest)]
        keys += [row.calling] * bool(row.calling) + ["metadata"] * bool(row.metadata)
        if len(keys) != len(set(keys)):
            raise ReadError(0, "an attribute is given twice")
        self._unique.add(known)

    def _keys(self, text: str) -> list[str]:
        """The keys of a run; a configuration may hold more than templates describe."""
        return list(self._run(_CONFIG if is_plain_config(text) else text).keys)

    def attributes(self, columns: Columns, index: int) -> Mapping[str, str]:
        """The attributes of a plain row, raw, by key and in printed order."""
        metadata, rest, cut_out = (
            columns.metadata[index],
            columns.trailing_attributes[index],
            columns.cut_out.get(index),
        )
        found = self._values(columns.leading_attributes[index])
        if not metadata and not rest and cut_out is None:
            return found
        return {
            **found,
            **({} if cut_out is None else {cut_out[0]: self.dialect.sigil + cut_out[1]}),
            **self._values(columns.more.get(index, "")),
            **({"metadata": metadata} if metadata else {}),
            **self._values(rest),
        }

    def _values(self, text: str) -> Mapping[str, str]:
        """The values of a run of attributes, by key."""
        found = self._read.get(text)
        if found is None:
            if len(self._read) >= _MOST_READ:
                self._read.clear()
            found = self._read[text] = self._cut_values(text)
        return found

    def _cut_values(self, text: str) -> Mapping[str, str]:
        if is_plain_config(text):
            return MappingProxyType({"backend_config": text.partition("=")[2].rstrip(" \r")})
        parts = cut_attributes(text)
        found = self._template_of(parts, text).attributes
        return MappingProxyType({key: place.text(parts) for key, place in found})

    # ---- operands with shapes

    def operands(self, text: str) -> list[str]:
        """The names of an operand list whose operands may have shapes.

        Raises:
            ReadError: A shape does not follow the grammar.
            Irregular: Something else than shapes stands between the names.
        """
        if not text:
            return []
        first, *parts = self.dialect.split.split(text) if self.dialect.split else (text,)
        if not parts or parts[-1]:
            raise Irregular
        for piece in (f", {first}", *parts[1:-1:2]):
            if piece not in self._around_names:
                self._learn_around_names(piece)
        return parts[::2]

    def _learn_around_names(self, piece: str) -> None:
        """Learns `, f32[2]{0} `."""
        shape = without_index_comments(piece[2:])
        if piece[:2] != ", " or (shape and (not shape.rstrip(" ") or shape[-1] != " ")):
            raise Irregular
        if shape:
            self.shapes.read(shape.rstrip(" "))
        self._around_names.add(piece)


@cache
def line_cache(dialect: Dialect) -> LineCache:
    """The words of one dialect, for all texts of this process."""
    return LineCache(dialect)


_HEAD = re.compile(rf"(ENTRY )?(?!ENTRY)(%?)({NAME})(?: \((.*)\) -> (.*))? \{{").fullmatch
_PARAMETER = re.compile(rf", (?:/\*index=[0-9]++\*/)?{NAME}: ").split
"""Cuts before every parameter; that each begins with a comma lets `re` skip to the next one quickly."""


class Signatures:
    """What computations' heads say. Their shapes are read once for each text, the rest once for each count of them."""

    def __init__(self, shapes: ShapeWords) -> None:
        self._shapes = shapes
        self._forms: set[tuple[str | None, str, int]] = set()

    def read(self, line: str) -> tuple[str, bool]:
        """Name of the computation that a line opens, and whether it is the entry.

        Raises:
            ReadError: The line opens none; `at_end` where it is only the beginning of one that does.
        """
        match = _HEAD(line)
        if match is not None:
            entry, sigil, name, parameters, result = match.groups()
            try:
                form = (entry, sigil, -1 if result is None else self._shape_count(parameters, result))
            except Irregular:
                form = None
            if form is not None:
                if form not in self._forms:
                    self._learn(*form)
                return name, entry is not None
        head: ComputationHead = language().parse("computation_head", line)
        return head.name.lstrip("%"), head.is_entry

    def _shape_count(self, parameters: str, result: str) -> int:
        """Checks the shapes of a signature, and counts the parameters."""
        first, *shapes = _PARAMETER(f", {parameters}") if parameters else [""]
        if first:
            raise Irregular
        known = self._shapes.known
        if result not in known or not all(map(known.__contains__, shapes)):
            for shape in (*shapes, result):
                self._shapes.read(shape)
        return len(shapes)

    def _learn(self, entry: str | None, sigil: str, count: int) -> None:
        signature = "" if count < 0 else f"({', '.join(['x: f32[]'] * count)}) -> f32[] "
        language().parse("computation_head", f"{entry or ''}{sigil}x {signature}{{")
        self._forms.add((entry, sigil, count))
