"""The words of a text's lines that the grammar has read, and the results.

A word is a shape with its opcode, a run of attributes, a backend's configuration, or the text around the names of an
operand list. Each is learnt once per text; from then on it is looked up in a dictionary. Numbers only matter to the
grammar in shapes, so all other words are read with every number replaced by 1, and one parse serves all words that
differ only in their numbers; parses are cached for later texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache, lru_cache

from hloscope.hlo.columns import Form
from hloscope.hlo.language import load_language
from hloscope.hlo.line_patterns import LEAF_OPCODES, NAME, Dialect, cut_attributes, replace_numbers
from hloscope.hlo.opcodes import is_known_opcode
from hloscope.hlo.records import ComputationHead, Instruction, ReadError
from hloscope.hlo.shape import Shape

_LINE = "x = f32[] add()"
_COMMENT = re.compile(r"//|/\*(?!index=)")
"""A comment, except XLA's `/*index=5*/`: it could hide the text after the word."""

_names_in = re.compile(rf"(?<![A-Za-z0-9_.-]){NAME}").findall

Called = tuple[tuple[str, str], ...]
"""(attribute key, computation name) for each computation that an instruction calls."""


class LineCache:
    """The words of one text.

    Attributes:
        dialect: The dialect that cuts its lines.
        forms: Opcode and shape, by the opening of a row.
        called: The callees, by the attributes of a row.
        configs: The configurations.
        odd: The words in an unusual form; lines with one are parsed separately.
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
                self.forms[opening] = Form(_parse_opcode(opcode, bool(shape)), _parse_shape(shape) if shape else None)
            except ReadError:
                self.forms[opening] = Form("", None)
                self.odd.add(opening)

    def learn_attributes(self, texts: Iterable[str]) -> None:
        """Learns runs of attributes such as `, channel_id=1, to_apply=%add`."""
        for text in texts:
            calling = _find_calling_keys(replace_numbers(text))
            self.called[text] = _find_called(text, calling) if calling else ()
            if calling is None:
                self.odd.add(text)

    def learn_configs(self, texts: Iterable[str]) -> None:
        """Learns the texts after the metadata."""
        for text in texts:
            self.configs.add(text)
            if text and (_find_calling_keys(replace_numbers(text)) is None or len(cut_attributes(text)) != 1):
                self.odd.add(text)

    def can_read(self, operands: str) -> bool:
        """Returns whether `operands` reads a list."""
        try:
            self.operands(operands)
        except ReadError:
            return False
        return True

    def operands(self, text: str) -> list[str]:
        """The names of an operand list whose operands may have shapes.

        Raises:
            ReadError: There is something other than shapes between the names, or one does not follow the grammar.
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
            _parse_shape(shape.rstrip(" "))
        self._around_names.add(piece)


_INDEX_COMMENT = re.compile(r"/\*index=[0-9]+\*/")


def _parse_shape(text: str) -> Shape:
    """The shape in a text of nothing else."""
    if _COMMENT.search(text):
        raise ReadError(0, "a comment")
    shape: Shape = load_language().read("shape", text).shape
    return shape


def _parse_opcode(text: str, has_shape: bool) -> str:
    """The opcode of `add(` or `add(%`. To the grammar, all of XLA's opcodes are alike except two."""
    opcode, names = text.rstrip("(%"), ["x"] if text[-1] == "%" else []
    read_as = "add" if is_known_opcode(opcode) and opcode not in LEAF_OPCODES else opcode
    argument = "0" if opcode in LEAF_OPCODES else "".join(names)
    line = f"x = {'f32[] ' * has_shape}{read_as}{text[len(opcode) :]}{argument})"
    parsed: Instruction = load_language().read("instruction", line)
    operation = parsed.operation
    if (operation.opcode, [operand.name for operand in operation.operands]) != (read_as, names) or operation.attributes:
        raise ReadError(0, "no opcode")
    return opcode


@lru_cache(maxsize=1 << 14)
def _find_calling_keys(form: str) -> frozenset[str] | None:
    """The keys in a run of attributes that name computations; None if the grammar disagrees with the cut."""
    line = _LINE + form
    try:
        parsed: Instruction = load_language().parse("instruction", line)
    except ReadError:
        return None
    attributes = parsed.operation.attributes
    calling = frozenset(item.key for item in attributes if item.callees)
    called = tuple((item.key, callee.name) for item in attributes for callee in item.callees)
    read = [(item.key, line[item.span.start : item.span.end]) for item in attributes]
    is_cut = read == cut_attributes(form) and called == (_find_called(form, calling) if calling else ())
    return calling if is_cut and "".join(f", {key}={value}" for key, value in read) == form else None


def _find_called(text: str, calling: frozenset[str]) -> Called:
    return _list_callees(tuple(_make_callee_finder(calling)(text)))


@lru_cache(maxsize=1 << 14)
def _list_callees(values: tuple[tuple[str, str], ...]) -> Called:
    """Each callee separately; one tuple is shared by all instructions that call the same."""
    return tuple((key, name) for key, value in values for name in _names_in(value))


@cache
def _make_callee_finder(keys: frozenset[str]) -> Callable[[str], list[tuple[str, str]]]:
    return re.compile(rf", ({'|'.join(map(re.escape, keys))})=(\{{[^{{}}]*+\}}|[^,]++)").findall


_HEAD_NAME = re.compile(rf"(?:ENTRY )?%?({NAME})")


def read_head(line: str) -> tuple[str, bool]:
    """The name of the computation that a line opens, and whether it is the entry.

    Raises:
        ReadError: The line opens none; `at_end` if it is only the beginning of one that does.
    """
    found = _HEAD_NAME.match(line)
    head: ComputationHead = load_language().read("computation_head", replace_numbers(line))
    if found is None or replace_numbers(found.group(1)) != head.name.lstrip("%"):
        head = load_language().parse("computation_head", line)
        return head.name.lstrip("%"), head.is_entry
    return found.group(1), head.is_entry
