"""What is known of every run of attributes with one skeleton: where everything stands between the holes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import NamedTuple

from hloscope.hlo.records import Attribute, Span


class Irregular(Exception):  # noqa: N818 - no error: such a line is parsed by itself instead
    """A field's border lies inside a hole, or the text holds what templates do not describe."""


class Recipe(NamedTuple):
    """A span in terms of a text's parts: from `skip` characters into part `first` to `drop` before `last`'s end."""

    first: int
    skip: int
    last: int
    drop: int

    def text(self, parts: list[str]) -> str:
        """The span's text."""
        first, skip, last, drop = self
        if first == last:
            part = parts[first]
            return part[skip : len(part) - drop]
        end = parts[last]
        return "".join((parts[first][skip:], *parts[first + 1 : last], end[: len(end) - drop]))


class Template(NamedTuple):
    """Every run of attributes with one skeleton.

    Attributes:
        attributes: (key, where its value stands), in printed order.
        called: (key, where the name of a called computation stands), in printed order.
    """

    attributes: tuple[tuple[str, Recipe], ...]
    called: tuple[tuple[str, Recipe], ...]


def borders_of(parts: list[str]) -> list[int]:
    """Where each part begins, and where the last one ends."""
    return [0, *accumulate(map(len, parts))]


def recipe(span: Span, parts: list[str], borders: list[int]) -> Recipe:
    """The span in terms of the parts.

    Raises:
        Irregular: A border lies inside a hole, where other contents would move it.
    """
    first = bisect_right(borders, span.start) - 1
    last = bisect_left(borders, span.end) - 1
    if first > last:
        raise Irregular
    skip, drop = span.start - borders[first], borders[last + 1] - span.end
    opening = 1 if parts[first][:1] == "=" else 0
    if (first % 2 and skip not in (0, opening)) or (last % 2 and drop):
        raise Irregular
    return Recipe(first, skip, last, drop)


def template(attributes: tuple[Attribute, ...], parts: list[str], offset: int) -> Template:
    """The template of a run of attributes that was parsed behind `offset` characters of other text.

    Raises:
        Irregular: It holds an inline computation, or numbers in braces that are no attribute's whole value; or as for
            `recipe`.
    """
    borders = borders_of(parts)

    def place(span: Span) -> Recipe:
        return recipe(Span(span.start - offset, span.end - offset), parts, borders)

    callees = [(item.key, callee) for item in attributes for callee in item.callees]
    if any(callee.name is None for _, callee in callees):
        raise Irregular
    found = tuple((item.key, place(item.span)) for item in attributes)
    whole = {item.first for _, item in found if item == Recipe(item.first, 0, item.first, 0)}
    if any(part[:1] == "{" and index not in whole for index, part in enumerate(parts) if index % 2):
        raise Irregular
    return Template(found, tuple((key, place(callee.span)) for key, callee in callees))
