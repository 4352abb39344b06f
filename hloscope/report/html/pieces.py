"""What the pages of results are made of: sections, figures, tables, verdicts, details and plots.

All of it can be read without a script. A figure is taken from the document by its path: it is what the JSON says.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeAlias
from xml.etree import ElementTree

from hloscope.analysis.vocabulary import Bound
from hloscope.documents import plain
from hloscope.report.escaping import without_commands
from hloscope.report.html.privacy import Privacy, files_of
from hloscope.report.html.shell import framed
from hloscope.units import (
    format_bytes,
    format_capacity,
    format_count,
    format_digits,
    format_flops,
    format_share,
    format_time,
    signed,
)

Element = ElementTree.Element
Content: TypeAlias = "Element | str | Iterable[Content] | None"
"""Elements and letters, one or several."""
Path = Sequence[str | int]
"""Where a value stands in the document: names and numbers."""

_SCRIPTS = ("shell.js", "format.js", "results.js")
_MOST_NAME, _MOST_LABEL, _MOST_PROSE = 96, 160, 2000
_MUCH = 10
"""The factor from which on a change is written as one, and not as a share."""


def _change(factor: float) -> str:
    """`+1.2%`, `−34.0%`, `under +0.1%`, `×33`."""
    if factor >= _MUCH:
        return f"×{factor:,.0f}" if factor < 1e15 else f"×{factor:.1e}"
    return signed(format_share(abs(factor - 1)), is_more=factor > 1)


_UNITS: Mapping[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "change": _change,
    "capacity": lambda value: format_capacity(int(value)),
    "count": lambda value: format_count(int(value)),
    "digits": lambda value: format_digits(value, 3) if value else "0",
    "factor": lambda value: f"×{value:.2f}",
    "flops": format_flops,
    "gain": lambda value: f"{format_share(abs(value))} {'less' if value >= 0 else 'more'} time",
    "share": format_share,
    "time": format_time,
}
MARKS = {"bad": "✗", "warn": "▲", "good": "✓", "info": "●"}
"""What stands beside a colour, so that no colour has to be seen."""


def add(parent: Element, tag: str, *content: Content, **attributes: str | None) -> Element:
    """A new element in another one, with letters and elements in it; `_` in names of attributes stands for `-`."""
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    return filled(ElementTree.SubElement(parent, tag, named), *content)


def made(tag: str, *content: Content, **attributes: str | None) -> Element:
    """The same, of nothing yet."""
    return add(Element("i"), tag, *content, **attributes)


def filled(parent: Element, *content: Content) -> Element:
    """An element with more in it."""
    for part in content:
        if part is None:
            continue
        if not isinstance(part, str | Element):
            filled(parent, *part)
        elif isinstance(part, Element):
            parent.append(part)
        elif len(parent):
            parent[-1].tail = (parent[-1].tail or "") + part
        else:
            parent.text = (parent.text or "") + part
    return parent


def clipped(text: str, most: int) -> str:
    """Long text cut in its middle, where a name says least."""
    return text if len(text) <= most else f"{text[: most * 3 // 5]}…{text[-(most * 7 // 20) :]}"


def _written_path(path: Path) -> str:
    """A path as JSON, in which no runner finds a command."""
    return json.dumps(list(path)).replace("##", "\\u0023#")


def note(parent: Element, *content: Content) -> Element:
    """Words beside what counts."""
    return add(parent, "p", *content, class_="note")


def badge(words: str, kind: str) -> Element:
    """A word with a mark and a colour: `bad`, `warn`, `good` or `info`."""
    return made("span", f"{MARKS[kind]} {words}", class_=f"badge {kind}")


def verdict(parent: Element, kind: str, *content: Content) -> Element:
    """The sentence that a page is about."""
    mark = made("span", MARKS[kind], class_="mark", aria_hidden="true")
    return add(parent, "p", mark, " ", made("span", *content), class_=f"verdict {kind}")


def unfolding(parent: Element, *summary: Content, is_open: bool = False) -> Element:
    """A part that is folded until somebody wants it."""
    details = add(parent, "details", open="" if is_open else None)
    add(details, "summary", *summary)
    return details


def _says_something(content: Content) -> bool:
    """Whether there is anything in it; an element without others in it is something, whatever its truth value says."""
    return isinstance(content, Element) or bool(content)


def labelled(parent: Element, rows: Iterable[tuple[Content, Content]]) -> None:
    """Labels with what they are of, those without anything left out."""
    known = [(label, content) for label, content in rows if _says_something(content)]
    if known:
        of = add(parent, "dl")
        for label, content in known:
            add(of, "dt", label)
            add(of, "dd", content)


@dataclass(slots=True)
class Page:
    """A page that is being made.

    Attributes:
        document: What `--format json` writes, as it may be handed on.
        privacy: How its strings are written.
    """

    document: dict[str, Any]
    privacy: Privacy
    _title: str = ""
    _labels: Counter[str] = field(default_factory=Counter)
    _main: Element = field(default_factory=lambda: Element("div"))
    _sections: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, document: object) -> Page:
        """An empty page of a document."""
        known = plain(document)
        privacy = Privacy.of(files_of(known))
        return cls(privacy.data(known), privacy)

    def at(self, path: Path) -> Any:
        """A value of the document; None where there is none."""
        found: Any = self.document
        for step in path:
            known = isinstance(found, list) or (isinstance(found, dict) and step in found)
            found = found[step] if known else None
        return found

    def heading(self, title: str, *words: Content) -> None:
        """What stands above all sections."""
        head = add(self._main, "div", class_="title")
        add(head, "h1", self.name(title, 110))
        if any(map(_says_something, words)):
            add(head, "p", *words)
        self._title = self._label(title)

    def section(self, name: str, short: str, title: str | None = None) -> Element:
        """A section of the page; the navigation has its short heading."""
        self._sections.append((name, short))
        made_section = add(self._main, "section", id=name, class_="card", aria_labelledby=f"{name}-title")
        add(made_section, "h2", title or short, id=f"{name}-title")
        return made_section

    def name(self, text: str | None, most: int = _MOST_NAME, tag: str = "bdi", class_: str = "name") -> Element:
        """A name of the program, cut where it is long and whole in its title."""
        whole = self.privacy.text(text or "")
        shown = clipped(whole, most)
        return made(tag, shown, class_=class_, title=None if shown == whole else whole[:2000])

    def _label(self, text: str) -> str:
        """Words that stand where no element can."""
        return clipped(self.privacy.text(text), _MOST_LABEL)

    def _unique(self, label: str) -> str:
        """The label; with its number where others are called so too, as those of several programs are."""
        self._labels[label] += 1
        return label if self._labels[label] == 1 else f"{label}, {self._labels[label]}"

    def prose(self, text: str | None) -> Element | None:
        """Sentences of hloscope, in which names of the program stand in backticks."""
        if not text:
            return None
        parts = clipped(self.privacy.text(text), _MOST_PROSE).split("`")
        words = (
            made("code", part) if number % 2 and number < len(parts) - 1 else "`" * (number % 2) + part
            for number, part in enumerate(parts)
        )
        return made("bdi", words, class_="name")

    def code(self, parent: Element, lines: Sequence[str], label: str) -> None:
        """Lines to copy."""
        text = "\n".join(clipped(self.privacy.text(line), 400) for line in lines)
        add(parent, "pre", text, class_="code", tabindex="0", role="group", aria_label=self._label(label))

    def figure(
        self,
        path: Path,
        unit: str,
        *,
        bound: Bound | str = Bound.EXACT,
        over: Path | None = None,
        times: Path | None = None,
        unknown: str = "unknown",
    ) -> Element:
        """A quantity of the document, its exact value beside what is read.

        Args:
            path: Where it stands.
            unit: How it is written.
            bound: How it relates to the truth.
            over: What it is divided by, such as the whole of a share.
            times: What it is multiplied with.
            unknown: What stands where it is not known.
        """
        parts = [self.at(each) for each in (path, over, times) if each is not None]
        if any(part is None for part in parts) or (over is not None and not self.at(over)):
            return made("span", unknown, class_="unknown")
        value: int | float = float(parts[0]) if isinstance(parts[0], str) else parts[0]  # infinity, which JSON has not
        value = value / self.at(over) if over is not None else value
        value = value * self.at(times) if times is not None else value
        places = {"keys": path, "over": over, "times": times}
        said = {f"data_{name}": _written_path(place) for name, place in places.items() if place is not None}
        words = Bound(bound).marked(_UNITS[unit](value) if isfinite(value) else "∞")
        return made("data", words, value=repr(value), data_unit=unit, **said)

    def range(self, least: Path, most: Path) -> list[Content]:
        """From and to; nothing where one of them is not known, or both are the same."""
        if self.at(least) is None or self.at(least) == self.at(most):
            return []
        return [self.figure(least, "time"), " to ", self.figure(most, "time")]

    def table(
        self,
        parent: Element,
        label: str,
        heads: Sequence[str],
        rows: Iterable[Sequence[Content]],
        *,
        sorts: bool = True,
    ) -> Element:
        """A table, sorted by its headings; of a head such as `>bytes` the column is aligned to the right."""
        said = self._unique(self._label(label))
        around = add(parent, "div", class_="scroll", tabindex="0", role="region", aria_label=f"Table: {said}")
        table = add(around, "table", class_="sorts" if sorts else None)
        add(table, "caption", said, class_="unseen")
        sides = ["right" if head.startswith(">") else None for head in heads]
        top = add(add(table, "thead"), "tr")
        for head, side in zip(heads, sides, strict=True):
            add(top, "th", head.removeprefix(">"), scope="col", class_=side)
        body = add(table, "tbody")
        for cells in rows:
            row = add(body, "tr")
            for number, (cell, side) in enumerate(zip(cells, sides, strict=True)):
                scope = {"scope": "row"} if number == 0 else {}
                add(row, "th" if scope else "td", cell, class_=side, **scope)
        return table

    def plot(self, parent: Element, picture: Element, label: str) -> None:
        """A picture, which is moved sideways by itself where it is wider than the screen."""
        picture.attrib.pop("style", None)  # which the policy does not allow, and the page's says as much
        add(parent, "figure", picture, class_="picture plot", tabindex="0", aria_label=self._label(label))

    def tools(self, parent: Element, noun: str, kinds: Mapping[str, str]) -> None:
        """What filters the cards of a section: by words, and by kind where there are several. The script shows it."""
        bar = add(parent, "div", class_="tools", data_tools=noun, hidden="")
        box = add(bar, "label", "Filter ")
        add(box, "input", type="search", id=f"search-{noun}", placeholder="name, rule, line, words…")
        if len(kinds) > 1:
            chooser = add(add(bar, "label", "Verdict "), "select", id=f"kind-{noun}")
            for kind, words in {"": "all", **kinds}.items():
                add(chooser, "option", words, value=kind)
        add(bar, "span", class_="note", role="status")

    def notes(self, notes: Iterable[str]) -> None:
        """A section of sentences, each once; none without any."""
        said = list(dict.fromkeys(notes))
        if said:
            rows = add(self.section("notes", "Notes"), "ul", class_="said")
            for words in said:
                add(rows, "li", self.prose(words))

    def finished(self, words: str = "", *, versions: Mapping[str, str] | None = None, basis: str) -> str:
        """The file.

        Args:
            words: What the title of its window says besides.
            versions: Versions of what took part.
            basis: What its figures rest on, a sentence.
        """
        nav = [made("a", short, href=f"#{name}") for name, short in self._sections]
        known = ", ".join(f"{name} {version}" for name, version in (versions or {}).items())
        save = made("button", "Save the figures as JSON", type="button", class_="quiet", id="save", hidden="")
        said = [f"{known}." if known else "", basis, "Every figure is one of the JSON that --format json writes. "]
        foot = filled(Element("p"), " ".join(filter(None, said)), save)
        return framed(
            " ".join(filter(None, (self._title, self._label(words)))),
            {"document": self.document},
            _SCRIPTS,
            styles=("results.css",),
            target=self._title,
            main="".join(map(self._written, self._main)),
            nav="".join(map(self._written, nav)),
            foot=self._written(foot),
        )

    def _harmless(self, text: str) -> str:
        return without_commands(self.privacy.text(text))

    def _written(self, root: Element) -> str:
        """Markup, through the one door: no hidden letter, no command to a runner, and no name of somebody's."""
        for element in root.iter():
            element.text = element.text and self._harmless(element.text)
            element.tail = element.tail and self._harmless(element.tail)
            for name, value in element.attrib.items():
                if not name.startswith("data-"):
                    element.set(name, self._harmless(value))
        return ElementTree.tostring(root, encoding="unicode", method="html")
