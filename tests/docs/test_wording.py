"""Words that a reader stumbles over stay out of what users read; `docs/glossary.md` has those that are used instead."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import api_pages
import pytest

import hloscope
from hloscope import contracts, rules
from hloscope.report.pages import list_pages

ROOT = Path(__file__).parent.parent.parent
SOURCES = sorted((ROOT / "hloscope").rglob("*.py"))
GUIDES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
STUMBLES = {
    "told": (r"\btold\b", "reported, known, or the sentence with its subject: hloscope cannot explain why"),
    "tells": (r"\btells?\b", "reports, says, shows"),
    "is no": (r"(?<![Tt]here )\b(?:is|are) no (?!longer\b|more\b|less\b|such\b|slower\b|limit\b)\w+", "is not a"),
    "on the way": (r"\bon the way\b", "intermediate"),
    "hands": (r"\bhand(?:s|ed)? (?:it|them|on|out|over)\b", "passes, returns"),
    "of which": (r"\bof which nothing\b", "exposed"),
    "the same in each": (r"\balthough it is the same in each\b", "even though the value is loop-invariant"),
    "where it is made": (r"\bwhere it is made\b", "where it is produced"),
    "off": (r"\b(?:take|leave)s? [\w{}`.]+ off\b", "shard another dimension, replicate it"),
    "accepts nothing": (r"\baccept\w* nothing\b", "an allow that matches nothing"),
    "at hand": (r"\bat hand\b", "on that TPU generation"),
}
"""Each with what is written instead."""


def strings_in(path: Path) -> Iterator[str]:
    """What a file puts together for a reader: its strings, without docstrings."""
    left: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while left:
        node = left.pop()
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            left += ast.iter_child_nodes(node)


def public_docstrings() -> Iterator[str]:
    """What `help` shows of what is public."""
    for module in (hloscope, contracts, rules):
        yield module.__doc__ or ""
        for value in api_pages.public_names(module).values():
            yield inspect.getdoc(value) or ""
            for name, member in vars(value).items() if inspect.isclass(value) else ():
                if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                    yield inspect.getdoc(member) or ""


def texts() -> Iterator[tuple[str, str]]:
    """Everything that users read, with where it is."""
    for path in SOURCES:
        yield from ((path.relative_to(ROOT).as_posix(), text) for text in strings_in(path))
    for name, page in list_pages().items():
        yield f"page {name}", "\n".join((page.summary, *(text for _, text in page.sections)))
    yield from (("docstrings", text) for text in public_docstrings())
    for path in GUIDES:
        yield path.relative_to(ROOT).as_posix(), re.sub(r"(?ms)^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"))


def found_words() -> Counter[str]:
    """How often such words are used, by place and word."""
    found: Counter[str] = Counter()
    for place, text in texts():
        for word, (pattern, _) in STUMBLES.items():
            if times := len(re.findall(pattern, text, re.MULTILINE)):
                found[f"{place}: {word}"] += times
    return found


def test_no_reader_stumbles():
    found = {place: STUMBLES[place.rsplit(": ", 1)[1]][1] for place in found_words()}
    assert found == {}, "write this instead"


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("told", "no reasons can be told"),
        ("is no", "X is no slice"),
        ("on the way", "Largest arrays made on the way"),
        ("hands", "hands it on"),
        ("off", "take Y off D"),
    ],
)
def test_what_readers_stumbled_over_is_found(word, text):
    assert re.search(STUMBLES[word][0], text)
    assert not any(re.search(pattern, instead) for pattern, instead in STUMBLES.values())
