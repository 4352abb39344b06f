"""The frame of every page and its pieces: sections, figures, tables, verdicts, details, plots and findings.

A page is one file that fetches nothing. All of a result's page can be read without a script. A figure is taken from
the document by its path: it is what the JSON says.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from math import isfinite
from typing import Any, TypeAlias
from xml.etree import ElementTree

from hloscope.base import units
from hloscope.base.documents import to_plain
from hloscope.base.errors import NotationError
from hloscope.base.units import pluralize
from hloscope.model.finding import Finding, Severity, by_cause
from hloscope.model.vocabulary import Bound
from hloscope.report.escaping import escape_commands, escape_line
from hloscope.report.html.privacy import Privacy, find_files, hide_people
from hloscope.report.pages import find_page
from hloscope.version import __version__

_LOADING = (
    '<p id="loading" role="status">Unpacking…</p>\n'
    '  <noscript><p class="card">This page unpacks its data with a script of its own. Scripts are off in this browser; '
    "nothing would be fetched if they were on.</p></noscript>"
)
"""The placeholder of a page that its script makes."""

_STYLES, _MEDIA = ("page.css", "sections.css"), "media.css"


def frame_page(
    title: str,
    data: Mapping[str, Any],
    scripts: Sequence[str],
    *,
    styles: Sequence[str] = (),
    target: str = "",
    main: str | None = None,
    nav: str = "",
    foot: str = "",
) -> str:
    """One page.

    Args:
        title: Its title, as text.
        data: The data that the page unpacks; nothing in it can be markup.
        scripts: The parts of its one script, in their order.
        styles: The parts of its style that other pages do not have.
        target: The text of the bar; empty if the page's script writes it.
        main: The page itself, as markup; None if its script makes it.
        nav: The links to its sections, as markup.
        foot: The foot of the page, as markup.
    """
    style = "\n".join(map(_read_asset, (*_STYLES, *styles, _MEDIA)))
    script = '"use strict";\n(() => {\n' + "\n".join(map(_read_asset, scripts)) + "\n})();\n"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "version": escape(__version__),
        "title": _escape_title(title),
        "style": style,
        "target": target and f"<bdi>{_escape_title(target)}</bdi>",
        "nav": nav,
        "main": _LOADING if main is None else main,
        "foot": foot,
        "data": _pack({**data, "version": __version__}),
        "script": script,
    }
    page = _read_asset("page.html")
    for name, text in parts.items():
        before, _, after = page.partition(f"<!--{name}-->")
        page = before + text + after
    return page


def _escape_title(text: str) -> str:
    return escape(escape_commands(escape_line(hide_people(text))))


def _read_asset(name: str) -> str:
    return files(str(__package__)).joinpath(f"assets/{name}").read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _pack(data: Mapping[str, Any]) -> str:
    """Data as the page unpacks it; nothing in it can be markup."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


Element = ElementTree.Element
Content: TypeAlias = "Element | str | Iterable[Content] | None"
"""Elements and letters, one or several."""
Path = Sequence[str | int]
"""The place of a value in the document: names and numbers."""
Columns: TypeAlias = "Mapping[str, Callable[[Page, Path, Any], Content]]"
"""Heads of a table, each with its cell for an item, made of the page, the item's path and the item.

A blank at the end tells a head from another one with the same words.
"""

_SCRIPTS = ("shell.js", "format.js", "results.js")
_MOST_NAME, _MOST_LABEL, _MOST_PROSE = 96, 160, 2000
_MUCH = 10
"""The least factor that is written as a factor and not as a share."""


def _format_change(factor: float) -> str:
    """`+1.2%`, `−34.0%`, `under +0.1%`, `×33`."""
    if factor >= _MUCH:
        return f"×{factor:,.0f}" if factor < 1e15 else f"×{factor:.1e}"
    return units.add_sign(units.format_share(abs(factor - 1)), is_more=factor > 1)


_UNITS: Mapping[str, Callable[[float], str]] = {
    "bytes": units.format_bytes,
    "change": _format_change,
    "capacity": lambda value: units.format_capacity(int(value)),
    "count": lambda value: units.format_count(int(value)),
    "digits": lambda value: units.format_digits(value, 3) if value else "0",
    "factor": lambda value: f"×{value:.2f}",
    "flops": units.format_flops,
    "gain": lambda value: f"{units.format_share(abs(value))} {'less' if value >= 0 else 'more'} time",
    "share": units.format_share,
    "time": units.format_time,
}
MARKS = {"bad": "✗", "warn": "▲", "good": "✓", "info": "●"}
"""The mark of each color, so that colors are not the only sign."""


def add(parent: Element, tag: str, *content: Content, **attributes: str | None) -> Element:
    """Adds an element with its content to another one; `_` in names of attributes means `-`."""
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    return fill(ElementTree.SubElement(parent, tag, named), *content)


def make(tag: str, *content: Content, **attributes: str | None) -> Element:
    """An element with its content, without a parent."""
    return add(Element("i"), tag, *content, **attributes)


def fill(parent: Element, *content: Content) -> Element:
    """Appends content to an element."""
    for part in content:
        if part is None:
            continue
        if not isinstance(part, str | Element):
            fill(parent, *part)
        elif isinstance(part, Element):
            parent.append(part)
        elif len(parent):
            parent[-1].tail = (parent[-1].tail or "") + part
        else:
            parent.text = (parent.text or "") + part
    return parent


def show_figure(field: str, unit: str, **how: Any) -> Callable[[Page, Path, Any], Content]:
    """The cells of a column: a field of each item as `Page.figure` writes it."""
    return lambda page, path, _: page.figure((*path, field), unit, **how)


def clip(text: str, most: int) -> str:
    """Text cut in its middle if it is long."""
    return text if len(text) <= most else f"{text[: most * 3 // 5]}…{text[-(most * 7 // 20) :]}"


def _format_path(path: Path) -> str:
    """A path as JSON, in which no runner finds a command."""
    return json.dumps(list(path)).replace("##", "\\u0023#")


def add_note(parent: Element, *content: Content) -> Element:
    """Adds a remark in small print."""
    return add(parent, "p", *content, class_="note")


def make_badge(words: str, kind: str) -> Element:
    """A word with a mark and a colour: `bad`, `warn`, `good` or `info`."""
    return make("span", f"{MARKS[kind]} {words}", class_=f"badge {kind}")


def make_unknown(words: str = "unknown") -> Element:
    """The words in place of a value that is unknown."""
    return make("span", words, class_="unknown")


def add_list(parent: Element, items: Iterable[Content], class_: str = "said") -> Element:
    """Adds a list with its items."""
    return add(parent, "ul", [make("li", item) for item in items], class_=class_)


def add_verdict(parent: Element, kind: str, *content: Content) -> Element:
    """The sentence that a page is about."""
    mark = make("span", MARKS[kind], class_="mark", aria_hidden="true")
    return add(parent, "p", mark, " ", make("span", *content), class_=f"verdict {kind}")


def add_details(parent: Element, *summary: Content, is_open: bool = False) -> Element:
    """Adds a part that is folded unless it is open."""
    details = add(parent, "details", open="" if is_open else None)
    add(details, "summary", *summary)
    return details


def _has_content(content: Content) -> bool:
    """True if there is any content. An element without children counts, though it is false."""
    return isinstance(content, Element) or bool(content)


def add_labels(parent: Element, rows: Iterable[tuple[Content, Content]]) -> None:
    """Adds labels with their contents, except empty ones."""
    known = [(label, content) for label, content in rows if _has_content(content)]
    if known:
        of = add(parent, "dl")
        for label, content in known:
            add(of, "dt", label)
            add(of, "dd", content)


@dataclass(slots=True)
class Page:
    """A page under construction.

    Attributes:
        document: The result's JSON document, without private names.
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
        known = to_plain(document)
        privacy = Privacy.of(find_files(known))
        return cls(privacy.hide_data(known), privacy)

    def find(self, path: Path) -> Any:
        """A value of the document; None if it is missing."""
        found: Any = self.document
        for step in path:
            known = isinstance(found, list) or (isinstance(found, dict) and step in found)
            found = found[step] if known else None
        return found

    def add_heading(self, title: str, *words: Content) -> None:
        """Adds the heading above all sections."""
        head = add(self._main, "div", class_="title")
        add(head, "h1", self.name(title, 110))
        if any(map(_has_content, words)):
            add(head, "p", *words)
        self._title = self._make_label(title)

    def add_section(self, name: str, short: str, title: str | None = None) -> Element:
        """A section of the page; the navigation has its short heading."""
        self._sections.append((name, short))
        made_section = add(self._main, "section", id=name, class_="card", aria_labelledby=f"{name}-title")
        add(made_section, "h2", title or short, id=f"{name}-title")
        return made_section

    def name(self, text: str | None, most: int = _MOST_NAME, tag: str = "bdi", class_: str = "name") -> Element:
        """A name from the program, cut if it is long, with the whole name in its title."""
        whole = self.privacy.hide(text or "")
        shown = clip(whole, most)
        return make(tag, shown, class_=class_, title=None if shown == whole else whole[:2000])

    def _make_label(self, text: str) -> str:
        """Text for an attribute."""
        return clip(self.privacy.hide(text), _MOST_LABEL)

    def _number_label(self, label: str) -> str:
        """The label, with a number if the page has it already."""
        self._labels[label] += 1
        return label if self._labels[label] == 1 else f"{label}, {self._labels[label]}"

    def prose(self, text: str | None) -> Element | None:
        """Sentences of hloscope, in which names of the program are in backticks."""
        if not text:
            return None
        parts = clip(self.privacy.hide(text), _MOST_PROSE).split("`")
        words = (
            make("code", part) if number % 2 and number < len(parts) - 1 else "`" * (number % 2) + part
            for number, part in enumerate(parts)
        )
        return make("bdi", words, class_="name")

    def add_code(self, parent: Element, lines: Sequence[str], label: str) -> None:
        """Lines to copy."""
        text = "\n".join(clip(self.privacy.hide(line), 400) for line in lines)
        add(parent, "pre", text, class_="code", tabindex="0", role="group", aria_label=self._make_label(label))

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
        """A quantity of the document as it is read, with its exact value in an attribute.

        Args:
            path: Its path in the document.
            unit: How it is written.
            bound: How it relates to the truth.
            over: Path of the divisor, such as the total of a share.
            times: Path of a factor.
            unknown: The words for an unknown value.
        """
        parts = [self.find(each) for each in (path, over, times) if each is not None]
        if any(part is None for part in parts) or (over is not None and not self.find(over)):
            return make_unknown(unknown)
        value: int | float = float(parts[0]) if isinstance(parts[0], str) else parts[0]  # infinity, which JSON has not
        value = value / self.find(over) if over is not None else value
        value = value * self.find(times) if times is not None else value
        places = {"keys": path, "over": over, "times": times}
        said = {f"data_{name}": _format_path(place) for name, place in places.items() if place is not None}
        words = Bound(bound).marked(_UNITS[unit](value) if isfinite(value) else "∞")
        return make("data", words, value=repr(value), data_unit=unit, **said)

    def range(self, least: Path, most: Path) -> list[Content]:
        """A range of times; empty if an end is unknown or both are equal."""
        if self.find(least) is None or self.find(least) == self.find(most):
            return []
        return [self.figure(least, "time"), " to ", self.figure(most, "time")]

    def add_table(
        self,
        parent: Element,
        label: str,
        heads: Sequence[str],
        rows: Iterable[Sequence[Content]],
        *,
        sorts: bool = True,
    ) -> Element:
        """A table, sorted by its headings; of a head such as `>bytes` the column is aligned to the right."""
        said = self._number_label(self._make_label(label))
        around = add(parent, "div", class_="scroll", tabindex="0", role="region", aria_label=f"Table: {said}")
        table = add(around, "table", class_="sorts" if sorts else None)
        add(table, "caption", said, class_="unseen")
        sides = ["right" if head.startswith(">") else None for head in heads]
        top = add(add(table, "thead"), "tr")
        for head, side in zip(heads, sides, strict=True):
            add(top, "th", head.removeprefix(">").rstrip(), scope="col", class_=side)
        body = add(table, "tbody")
        for cells in rows:
            row = add(body, "tr")
            for number, (cell, side) in enumerate(zip(cells, sides, strict=True)):
                scope = {"scope": "row"} if number == 0 else {}
                add(row, "th" if scope else "td", cell, class_=side, **scope)
        return table

    def list_items(
        self, parent: Element, label: str, columns: Columns, path: Path, items: Iterable[tuple[int, Any]]
    ) -> None:
        """Adds a table with a row for each item.

        Args:
            parent: What it is added to.
            label: Its caption, as for `add_table`.
            columns: Heads and cells.
            path: The list in the document.
            items: Items with their numbers in that list.
        """
        rows = ([show(self, (*path, number), one) for show in columns.values()] for number, one in items)
        self.add_table(parent, label, list(columns), rows)

    def plot(self, parent: Element, picture: Element, label: str) -> None:
        """Adds a picture, which scrolls sideways if it is wider than the screen."""
        picture.attrib.pop("style", None)  # which the policy does not allow, and the page's says as much
        add(parent, "figure", picture, class_="picture plot", tabindex="0", aria_label=self._make_label(label))

    def add_tools(self, parent: Element, noun: str, kinds: Mapping[str, str]) -> None:
        """Adds filters for the cards of a section: words, and a kind if there are several. The script shows them."""
        bar = add(parent, "div", class_="tools", data_tools=noun, hidden="")
        box = add(bar, "label", "Filter ")
        add(box, "input", type="search", id=f"search-{noun}", placeholder="name, rule, line, words…")
        if len(kinds) > 1:
            chooser = add(add(bar, "label", "Verdict "), "select", id=f"kind-{noun}")
            for kind, words in {"": "all", **kinds}.items():
                add(chooser, "option", words, value=kind)
        add(bar, "span", class_="note", role="status")

    def add_notes(self, notes: Iterable[str]) -> None:
        """A section of sentences, each once; none without any."""
        said = list(dict.fromkeys(notes))
        if said:
            add_list(self.add_section("notes", "Notes"), map(self.prose, said))

    def finish(self, words: str = "", *, versions: Mapping[str, str] | None = None, basis: str) -> str:
        """The file.

        Args:
            words: The end of the window's title.
            versions: Versions of what took part.
            basis: A sentence on the basis of its figures.
        """
        nav = [make("a", short, href=f"#{name}") for name, short in self._sections]
        known = ", ".join(f"{name} {version}" for name, version in (versions or {}).items())
        save = make("button", "Save the figures as JSON", type="button", class_="quiet", id="save", hidden="")
        said = [f"{known}." if known else "", basis, "Every figure is one of the JSON that --format json writes. "]
        foot = fill(Element("p"), " ".join(filter(None, said)), save)
        return frame_page(
            " ".join(filter(None, (self._title, self._make_label(words)))),
            {"document": self.document},
            _SCRIPTS,
            styles=("results.css",),
            target=self._title,
            main="".join(map(self._write, self._main)),
            nav="".join(map(self._write, nav)),
            foot=self._write(foot),
        )

    def _escape(self, text: str) -> str:
        return escape_commands(self.privacy.hide(text))

    def _write(self, root: Element) -> str:
        """Markup without hidden characters, commands to a CI runner, and names of people."""
        for element in root.iter():
            element.text = element.text and self._escape(element.text)
            element.tail = element.tail and self._escape(element.tail)
            for name, value in element.attrib.items():
                if not name.startswith("data-"):
                    element.set(name, self._escape(value))
        return ElementTree.tostring(root, encoding="unicode", method="html")


_KINDS = {Severity.ERROR: "bad", Severity.WARNING: "warn", Severity.NOTE: "info"}
_MOST_PLACES = 20


def add_cards(page: Page, parent: Element, findings: Sequence[Finding]) -> None:
    """A card for each cause, in their order; its rule leads to the rule's page in the section of `add_rules`."""
    known = find_rules(findings)
    around = add(parent, "div", class_="findings")
    for places in by_cause(findings):
        finding = places[0]
        kind = _KINDS[finding.severity]
        card = add(around, "article", class_=f"finding {kind}")
        allowed = make_badge("allowed", "good") if finding.allowed is not None else None
        name = page.name(finding.rule, tag="code")
        rule = make("a", name, href=f"#rule-{finding.rule}") if finding.rule in known else name
        add(card, "p", make_badge(str(finding.severity), kind), " ", rule, allowed)
        add(card, "p", page.prose(finding.message))
        told = [("allowed", finding.allowed or ""), *finding.details]
        add_labels(card, [(label, page.prose(words)) for label, words in told])
        _add_places(page, card, places)


def add_rules(page: Page, findings: Iterable[Finding]) -> None:
    """Adds a section with the pages of the rules that have findings, if there are any."""
    known = find_rules(findings)
    if not known:
        return
    section = page.add_section("rules", "Rules", "What the rules say")
    for name, about in known.items():
        of = add_details(section, make("code", name), " ", make("span", page.prose(str(about["summary"])), class_="of"))
        of.set("id", f"rule-{name}")
        of.set("class", "target-card")
        for title, text in about["sections"]:
            add(of, "h3", title, class_="sub")
            for part in text.split("\n\n"):
                add(of, "p", page.prose(part), class_="page")


def _add_places(page: Page, card: Element, places: Sequence[Finding]) -> None:
    said = dict.fromkeys(_format_place(place) for place in places)
    said.pop("", None)
    if said:
        shown = list(said)[:_MOST_PLACES]
        of = add_list(card, (page.name(words, 160, class_="name mono") for words in shown), "places")
        if len(said) > _MOST_PLACES:
            add(of, "li", f"and {pluralize(len(said) - _MOST_PLACES, 'more place')}")


def _format_place(finding: Finding) -> str:
    """`moe.py:31 · %all-gather.8 · HLO line 97`."""
    instruction = None if finding.instruction is None else f"%{finding.instruction}"
    line = None if finding.line is None else f"HLO line {finding.line:,}"
    return " · ".join(filter(None, (finding.source, instruction, line)))


def find_rules(findings: Iterable[Finding]) -> dict[str, dict[str, Any]]:
    """The pages of the rules that have found something, by name."""
    return {name: page for name in dict.fromkeys(finding.rule for finding in findings) if (page := _find_page(name))}


def _find_page(name: str) -> dict[str, Any] | None:
    try:
        page = find_page(name)
    except NotationError:  # of a plug-in that this process does not have
        return None
    return {"summary": page.summary, "sections": list(map(list, page.sections))}
