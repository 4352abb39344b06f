"""The one door to the grammar files, in a wheel, an sdist and an editable checkout alike."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_PLACES = (_PACKAGE / "grammars", _PACKAGE.parent / "grammars")


def read_grammar(name: str) -> str:
    """Returns the text of `grammars/<name>.lark`.

    Args:
        name: The grammar's file name without its ending, such as `hlo` or `argument`.

    Raises:
        FileNotFoundError: The grammar was not shipped; a test of every kind of installation guards against it.
    """
    for place in _PLACES:
        path = place / f"{name}.lark"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise FileNotFoundError(f"grammar {name}.lark is in none of {[str(place) for place in _PLACES]}")
