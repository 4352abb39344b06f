"""What the reports for a terminal share: sections, and lines of styled text drawn as they will be shown."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.text import Text

from hloscope.report.escaping import plain_line, without_commands
from hloscope.report.folding import fold

INDENT = 2
LEAST_WIDTH = 20


def drawn(lines: Iterable[Text], width: int, colour: bool) -> str:
    """The lines as text, with ANSI colours when asked for; whatever they hold, each stays one line."""
    sink = io.StringIO()
    console = Console(
        file=sink,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        highlight=False,
        emoji=False,
        markup=False,
    )
    for line in lines:
        line.plain = plain_line(line.plain)
        line.rstrip()
        console.print(line, soft_wrap=True)
    return without_commands(sink.getvalue())


def section(title: str, body: Iterable[Text], width: int, remark: str = "") -> Iterator[Text]:
    """An empty line, a title with what holds for all of its lines, and the lines, indented."""
    yield Text()
    yield from fold(Text.assemble((title, "bold"), (f" (all: {remark})" if remark else "", "dim")), width)
    for line in body:
        yield Text(" " * INDENT) + line
