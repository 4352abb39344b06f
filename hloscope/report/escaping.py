"""Strings of compiled text made harmless: they may hold anything.

Finished text passes `escape_for_terminal` unless its format says otherwise (`Renderer.escapes_itself`). A terminal
obeys control characters, turns text around at bidirectional ones and breaks lines; the runners of GitHub, Azure and
TeamCity obey commands in the output of a step.

Source: actions/runner, ActionCommand.cs: `::command` at the beginning of a line, blanks aside, and `##[command]`
anywhere in one; Azure Pipelines' logging commands; TeamCity's service messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from hloscope.base.documents import to_plain

_UNSEEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
"""Control and invisible characters, except line ends."""

_ENCODER = json.JSONEncoder(ensure_ascii=False)
_INDENT = "  "
_WIDTH = 120
"""Columns of JSON."""

_UNKNOWN = "\ufffd"
_AT_LINE_START = re.compile(r"^((?:[^\S\n]|\x1b\[[0-9;]*m)*):(?=:[A-Za-z])", re.MULTILINE)
_ANYWHERE = re.compile(r"##(?=\[|vso\[|teamcity\[)", re.IGNORECASE)
_TICKS = re.compile(r"`+")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def escape_lines(text: str) -> str:
    """The text with a mark in place of each control and invisible character; its length and line ends stay."""
    return _UNSEEN.sub(lambda found: " " if found[0] == "\t" else _UNKNOWN, text)


def escape_line(text: str) -> str:
    """The text on one line, with a mark in place of each control and invisible character."""
    return escape_lines(text).replace("\n", " ")


def escape_commands(text: str) -> str:
    """Finished text for a terminal or a log, in which no runner finds a command."""
    return _ANYWHERE.sub("# #", _AT_LINE_START.sub(r"\1: ", text))


def escape_for_terminal(text: str) -> str:
    """Lines without colors for a terminal or a log."""
    return escape_commands(escape_lines(text))


def dump_json(document: object) -> str:
    """A document as indented JSON, with control and invisible characters escaped."""
    return _ANYWHERE.sub(r"\\u0023#", _escape_json(_lay_out(to_plain(document), 0)))


def dump_json_line(data: object) -> str:
    """Plain data as JSON on one line, with control and invisible characters escaped."""
    return _escape_json(_ENCODER.encode(data))


def _escape_json(text: str) -> str:
    """JSON with control and invisible characters escaped."""
    return _UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1] if found[0] != "\x7f" else "\\u007f", text)


def _lay_out(data: object, depth: int) -> str:
    """JSON with each list and each object on one line if it fits, otherwise on several."""
    line = _ENCODER.encode(data)
    indent = _INDENT * (depth + 1)
    if len(line) + len(indent) <= _WIDTH or not data:
        return line
    if isinstance(data, dict):
        opening, closing = "{}"
        parts = [f"{_ENCODER.encode(key)}: {_lay_out(value, depth + 1)}" for key, value in data.items()]
    elif isinstance(data, list):
        opening, closing = "[]"
        parts = [_lay_out(item, depth + 1) for item in data]
    else:
        return line
    between = f",\n{indent}"
    return f"{opening}\n{indent}{between.join(_fill_lines(parts, len(indent)))}\n{_INDENT * depth}{closing}"


def _fill_lines(parts: list[str], indent: int) -> Iterator[str]:
    """Lines filled with parts; an object, and a part of several lines, gets lines of its own."""
    line: list[str] = []
    columns = indent
    for part in parts:
        columns += len(part) + len(", ")
        if line and (columns > _WIDTH or any("\n" in one or one.startswith("{") for one in (part, line[-1]))):
            yield ", ".join(line)
            line, columns = [], indent + len(part) + len(", ")
        line.append(part)
    yield ", ".join(line)


def render_code(text: str) -> str:
    """Inline code of Markdown."""
    line = escape_line(text)
    fence = "`" * (1 + max(map(len, _TICKS.findall(line)), default=0))
    return f"{fence} {line} {fence}" if "`" in line else f"`{line}`"


def fence_code(body: str, language: str) -> list[str]:
    """A block of code of Markdown, whose fence is longer than any in the body."""
    body = escape_lines(body)
    fence = "`" * max(4, 1 + max(map(len, _TICKS.findall(body)), default=0))
    return [f"{fence}{language}", body, fence]


def escape_prose(text: str) -> str:
    """Text of Markdown in which nothing is markup."""
    line = re.sub(r"[&<>]", lambda found: _HTML[found[0]], escape_line(text))
    return re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", line)
