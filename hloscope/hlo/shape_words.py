"""Shapes by their text. Those that differ only in numbers are parsed once."""

from __future__ import annotations

from hloscope.hlo.array_templates import ArrayTemplate, array_template
from hloscope.hlo.holes import cut_numbers, has_comment, without_index_comments
from hloscope.hlo.language import language
from hloscope.hlo.records import ReadError
from hloscope.hlo.shape import Shape
from hloscope.hlo.templates import Irregular

MOST_SHAPES = 1 << 15
"""Shapes that are kept for later lines; beyond it all are forgotten and read again."""

MOST_ELEMENTS = 4096
"""Elements of a tuple that is put together here."""


class ShapeWords:
    """Shapes that have been read, by their text.

    Attributes:
        known: The shapes.
    """

    def __init__(self) -> None:
        self.known: dict[str, Shape] = {}
        self._templates: dict[tuple[str, ...], ArrayTemplate | None] = {}
        self._tuples: set[int] = set()

    def read(self, text: str) -> Shape:
        """The shape that a text of nothing else says.

        Raises:
            ReadError: It does not follow the grammar.
            Irregular: It holds a comment.
        """
        found = self.known.get(text)
        if found is None:
            if has_comment(text):
                raise Irregular
            if len(self.known) >= MOST_SHAPES:
                self.known.clear()
            read = self._tuple if text[:1] == "(" else self._array
            found = self.known[text] = read(text) or _parsed(text)
        return found

    def _tuple(self, text: str) -> Shape | None:
        """A tuple by its elements; None where they are tuples themselves, or not printed as usual."""
        inner = without_index_comments(text[1:-1])
        elements = inner.split(", ")
        if text[-1] != ")" or inner[:1] in ("", "(") or ", (" in inner or len(elements) > MOST_ELEMENTS:
            return None
        try:
            found = tuple(map(self.read, elements))
        except ReadError:
            return None  # the error is that of the whole
        if len(elements) not in self._tuples:
            _parsed(f"({', '.join(['f32[]'] * len(elements))})")
            self._tuples.add(len(elements))
        return Shape(element_type="tuple", elements=found)

    def _array(self, text: str) -> Shape | None:
        parts = cut_numbers(text)
        key = tuple(parts[::2])
        if key not in self._templates:
            if len(self._templates) >= MOST_SHAPES:
                self._templates.clear()
            self._templates[key] = array_template(key)
        found = self._templates[key]
        return None if found is None else found.filled(list(map(int, parts[1::2])))


def _parsed(text: str) -> Shape:
    shape: Shape = language().read("shape", text).shape
    return shape
