"""The words of a text's lines that the grammar has read, and what was learnt from each.

A word is a shape with its opcode, a run of attributes, a backend's configuration, or what stands around the names of an
operand list. Each is learnt once for a text; from then on a look into a dictionary replaces it. What the grammar says
depends on no number but those in shapes, so that all words but shapes are read with every number replaced by 1, and one
parse serves all that differ in their numbers only; parses are remembered for later texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache, lru_cache

from hloscope.hlo.columns import Form
from hloscope.hlo.language import language
from hloscope.hlo.line_patterns import LEAVES, NAME, Dialect, cut_attributes, form_of
from hloscope.hlo.opcodes import is_known_opcode
from hloscope.hlo.records import ComputationHead, Instruction, ReadError
from hloscope.hlo.shape import Shape

_LINE = "x = f32[] add()"
_COMMENT = re.compile(r"//|/\*(?!index=)")
"""A comment, but for XLA's `/*index=5*/`: it could hide what comes after the word."""

_names_in = re.compile(rf"(?<![A-Za-z0-9_.-]){NAME}").findall

Called = tuple[tuple[str, str], ...]
"""(attribute key, computation name) for each computation that an instruction calls."""


class LineCache:
    """The words of one text.

    Attributes:
        dialect: How its lines are cut.
        forms: Opcode and shape, by the opening of a row.
        called: What is called, by the attributes of a row.
        configs: The configurations, by themselves.
        odd: The words that are not printed as usual; lines that hold one are parsed by themselves.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.forms: dict[str, Form] = {}
        self.called: dict[str, Called] = {}
        self.configs: set[str] = set()
        self.odd: set[str] = set()
        self._around_names: set[str] = set()

    def learn_forms(self, openings: Iterable[str]) -> None:
        """Learns words such as `f32[2]{0} add(`."""
        for opening in openings:
            shape, _, opcode = opening.rpartition(" ")
            try:
                self.forms[opening] = Form(_opcode(opcode, bool(shape)), _shape(shape) if shape else None)
            except ReadError:
                self.forms[opening] = Form("", None)
                self.odd.add(opening)

    def learn_attributes(self, texts: Iterable[str]) -> None:
        """Learns runs of attributes such as `, channel_id=1, to_apply=%add`."""
        for text in texts:
            calling = _calling_keys(form_of(text))
            self.called[text] = _called(text, calling) if calling else ()
            if calling is None:
                self.odd.add(text)

    def learn_configs(self, texts: Iterable[str]) -> None:
        """Learns what stands behind the metadata."""
        for text in texts:
            self.configs.add(text)
            if text and (_calling_keys(form_of(text)) is None or len(cut_attributes(text)) != 1):
                self.odd.add(text)

    def can_read(self, operands: str) -> bool:
        """Whether `operands` reads a list."""
        try:
            self.operands(operands)
        except ReadError:
            return False
        return True

    def operands(self, text: str) -> list[str]:
        """The names of an operand list whose operands may have shapes.

        Raises:
            ReadError: Something else than shapes stands between the names, or one does not follow the grammar.
        """
        if not text:
            return []
        first, *parts = self.dialect.split.split(text) if self.dialect.split else (text,)
        if not parts or parts[-1]:
            raise ReadError(0, "an operand has no name")
        for piece in (f", {first}", *parts[1:-1:2]):
            if piece not in self._around_names:
                self._learn_around_names(piece)
        return parts[::2]

    def _learn_around_names(self, piece: str) -> None:
        """Learns `, f32[2]{0} `."""
        shape = _INDEX_COMMENT.sub("", piece[2:])
        if piece[:2] != ", " or (shape and (not shape.rstrip(" ") or shape[-1] != " ")):
            raise ReadError(0, "no shape")
        if shape:
            _shape(shape.rstrip(" "))
        self._around_names.add(piece)


_INDEX_COMMENT = re.compile(r"/\*index=[0-9]+\*/")


def _shape(text: str) -> Shape:
    """The shape that a text of nothing else says."""
    if _COMMENT.search(text):
        raise ReadError(0, "a comment")
    shape: Shape = language().read("shape", text).shape
    return shape


def _opcode(text: str, has_shape: bool) -> str:
    """The opcode of `add(` or `add(%`. To the grammar, those that XLA has are all the same, but for two."""
    opcode, names = text.rstrip("(%"), ["x"] if text[-1] == "%" else []
    read_as = "add" if is_known_opcode(opcode) and opcode not in LEAVES else opcode
    argument = "0" if opcode in LEAVES else "".join(names)
    line = f"x = {'f32[] ' * has_shape}{read_as}{text[len(opcode) :]}{argument})"
    parsed: Instruction = language().read("instruction", line)
    operation = parsed.operation
    if (operation.opcode, [operand.name for operand in operation.operands]) != (read_as, names) or operation.attributes:
        raise ReadError(0, "no opcode")
    return opcode


@lru_cache(maxsize=1 << 14)
def _calling_keys(form: str) -> frozenset[str] | None:
    """The keys of a run of attributes that name computations; None where the grammar does not read it as it is cut."""
    line = _LINE + form
    try:
        parsed: Instruction = language().parse("instruction", line)
    except ReadError:
        return None
    attributes = parsed.operation.attributes
    calling = frozenset(item.key for item in attributes if item.callees)
    called = tuple((item.key, callee.name) for item in attributes for callee in item.callees)
    read = [(item.key, line[item.span.start : item.span.end]) for item in attributes]
    is_cut = read == cut_attributes(form) and called == (_called(form, calling) if calling else ())
    return calling if is_cut and "".join(f", {key}={value}" for key, value in read) == form else None


def _called(text: str, calling: frozenset[str]) -> Called:
    return _named(tuple(_callee_finder(calling)(text)))


@lru_cache(maxsize=1 << 14)
def _named(values: tuple[tuple[str, str], ...]) -> Called:
    """Each callee by itself; one tuple for all instructions that call the same."""
    return tuple((key, name) for key, value in values for name in _names_in(value))


@cache
def _callee_finder(keys: frozenset[str]) -> Callable[[str], list[tuple[str, str]]]:
    return re.compile(rf", ({'|'.join(map(re.escape, keys))})=(\{{[^{{}}]*+\}}|[^,]++)").findall


_HEAD_NAME = re.compile(rf"(?:ENTRY )?%?({NAME})")


def read_head(line: str) -> tuple[str, bool]:
    """Name of the computation that a line opens, and whether it is the entry.

    Raises:
        ReadError: The line opens none; `at_end` where it is only the beginning of one that does.
    """
    found = _HEAD_NAME.match(line)
    head: ComputationHead = language().read("computation_head", form_of(line))
    if found is None or form_of(found.group(1)) != head.name.lstrip("%"):
        head = language().parse("computation_head", line)
        return head.name.lstrip("%"), head.is_entry
    return found.group(1), head.is_entry
