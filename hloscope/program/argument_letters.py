"""The letters in which users write the dimensions of arguments: `bf16[B@X,D]` names B and D."""

from __future__ import annotations

import re

import jax

from hloscope.program.target import TargetFacts

_DIMENSIONS = re.compile(r"\[(.*)\]\s*$", re.DOTALL)
_LETTER = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:@|$)")

Letters = tuple[str | None, ...]


def argument_letters(facts: TargetFacts, count: int) -> tuple[Letters | None, ...]:
    """The letter of each dimension of each argument leaf, None where a dimension is a number.

    Args:
        facts: How the function is called.
        count: Argument leaves of the program.

    Returns:
        One entry per leaf, None for what is no notation; all None where the leaves cannot be told apart without calling
        the user's code once more.
    """
    leaves = jax.tree.leaves((() if facts.args is None or callable(facts.args) else facts.args, dict(facts.kwargs)))
    if len(leaves) != count:
        return (None,) * count
    return tuple(_letters(leaf) if isinstance(leaf, str) else None for leaf in leaves)


def _letters(notation: str) -> Letters | None:
    inside = _DIMENSIONS.search(notation)
    if inside is None or not inside.group(1).strip():
        return None
    pieces = re.split(r",(?![^()]*\))", inside.group(1))
    found = (_LETTER.match(piece) for piece in pieces)
    return tuple(one.group(1) if one else None for one in found)
