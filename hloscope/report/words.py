"""Words that several parts of the report share: bounds and their marks, links, parts of axes, notes, versions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from rich.text import Text

from hloscope.analysis.model import Collective
from hloscope.analysis.vocabulary import Bound, Link
from hloscope.messages import Either, Option
from hloscope.report.layout import fold, hanging, section
from hloscope.units import plural

LINKS = {Link.ICI: "ICI", Link.DCN: "DCN", Link.BOTH: "ICI+DCN", Link.UNKNOWN: "unknown"}
ELSEWHERE = Either("(all of them with --format json)", "(all of them in to_dict())")

BOUNDS_WORDS = {
    Bound.AT_LEAST: "≥ means at least",
    Bound.AT_MOST: "≤ means at most",
    Bound.UNKNOWN: "~ means as counted: some parts are lower bounds, others upper bounds",
}
"""What the mark of each bound means."""

_LEGEND = {words[0]: words for words in BOUNDS_WORDS.values()}
_PART_OF_AXIS = re.compile(r":\(\d+\)\d")
_NOTE_LENGTH = 240


GUESSED = "?"
"""What stands behind axes that are guessed."""

GUESSED_LEGEND = (
    "? marks guessed axes: the text is the program of one of several slices and does not say which axis crosses them; ",
    Option("dcn"),
    " does",
)


def axes_words(collective: Collective) -> str:
    """`X,Y`, with a mark where they are guessed; what is known of the groups where they are no axes."""
    if collective.axes is not None:
        return (",".join(collective.axes) or "none") + (GUESSED if collective.axes_guessed else "")
    if not collective.groups:
        return "unknown"
    if collective.group_size is None:
        return plural(len(collective.groups), "pair")
    return f"{plural(len(collective.groups), 'group')} of {collective.group_size}"


def leaves_ici(collectives: Iterable[Collective]) -> bool:
    """Whether a link is worth telling: not all of them stay on ICI."""
    return any(collective.link is not Link.ICI for collective in collectives)


def legend(lines: Iterable[Text]) -> Text | None:
    """What the marks in these lines mean; None when there are none."""
    marks = {mark for line in lines for mark in re.findall(r"[≥≤~](?=[+−]?\d)", line.plain)}
    return Text(" · ".join(_LEGEND[mark] for mark in _LEGEND if mark in marks), style="dim") if marks else None


def part_of_axis(texts: Iterable[str]) -> Text | None:
    """What `X:(p)s` means, when it occurs in one of these texts."""
    if not any(_PART_OF_AXIS.search(text) for text in texts):
        return None
    words = "X:(p)s = the part of axis X of size s, with p devices of X before it (Shardy's notation)"
    return Text(words, style="dim")


def one_line(text: str) -> str:
    """The text with single blanks in place of line ends and runs of blanks."""
    return " ".join(text.split())


def short_note(note: str) -> str:
    """The note on one line; of a long one the first sentences, or words, of 240 characters and an ellipsis."""
    line = one_line(note)
    if len(line) <= _NOTE_LENGTH:
        return line
    sentences = re.match(rf".{{{_NOTE_LENGTH // 2},{_NOTE_LENGTH}}}[.!?](?= [A-Z\[])", line)
    start = sentences.group() if sentences else line[: _NOTE_LENGTH + 1].rpartition(" ")[0] or line[:_NOTE_LENGTH]
    return f"{start} …"


def notes_section(notes: Iterable[str], width: int) -> Iterator[Text]:
    """The section of notes, a point for each; nothing where there are none."""
    lines = [line for note in notes for line in hanging(Text(f"• {short_note(note)}"), width)]
    if lines:
        yield from section("Notes", lines, width)


def versions_line(versions: Mapping[str, str], width: int) -> Iterator[Text]:
    """The last line of a report: what made it."""
    yield Text()
    yield from fold(Text(", ".join(f"{name} {version}" for name, version in versions.items()), style="dim"), width)
