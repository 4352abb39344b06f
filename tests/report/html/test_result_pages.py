"""The pages of check, price, suggest, verify and compare, as they are before a script runs: figures, marks, privacy."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import result_examples
from click.testing import CliRunner
from pages import data_of
from test_hostile_strings import EVIL, UNSEEN

from hloscope.base.canvas import Canvas
from hloscope.base.units import (
    format_bytes,
    format_capacity,
    format_count,
    format_digits,
    format_flops,
    format_share,
    format_time,
)
from hloscope.cli import group
from hloscope.model.vocabulary import Bound
from hloscope.report.checks import CheckReport
from hloscope.report.formats import FORMATS, render
from hloscope.report.html.privacy import Privacy, find_files
from hloscope.report.price import Prices
from hloscope.report.suggestions import format_headline

SUBJECTS = ("check", "comparison", "prices", "suggestions", "verification")
LEAST = dict(zip(SUBJECTS, (60, 50, 40, 35, 40), strict=True))


def change_words(factor: float) -> str:
    """How much more or less a figure is than before."""
    if factor >= 10:
        return f"×{factor:,.0f}"
    sign = "+" if factor > 1 else "−"
    return f"under {sign}0.1%" if abs(factor - 1) < 0.001 else f"{sign}{format_share(abs(factor - 1))}"


WRITTEN = {
    "bytes": format_bytes,
    "change": change_words,
    "capacity": lambda value: format_capacity(int(value)),
    "count": lambda value: format_count(int(value)),
    "digits": lambda value: format_digits(value, 3) if value else "0",
    "factor": lambda value: f"×{value:.2f}",
    "flops": format_flops,
    "gain": lambda value: f"{format_share(abs(value))} {'less' if value >= 0 else 'more'} time",
    "share": format_share,
    "time": format_time,
}
VOID = {"br", "hr", "input", "meta", "link"}


class Reader(HTMLParser):
    """The figures, tags and letters of a page, as a browser reads them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.figures: list[dict[str, str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.letters: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "data":
            self.figures.append({**dict(attributes), "text": ""})

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "data":
            self.figures[-1]["text"] += data
        if not self.open or self.open[-1] not in ("script", "style"):
            self.letters.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.letters).split())


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return result_examples.all_of(tmp_path_factory.mktemp("check"))


@pytest.fixture(scope="module")
def pages(found):
    return {subject: render(subject, "html", found[subject], Canvas()) for subject in SUBJECTS}


def exact_value(figure, document):
    """What the JSON says of a figure."""

    def at(keys):
        value = document
        for key in json.loads(keys):
            value = value[key]
        return float(value)

    value = at(figure["data-keys"])
    value = value / at(figure["data-over"]) if "data-over" in figure else value
    return value * at(figure["data-times"]) if "data-times" in figure else value


@pytest.mark.parametrize(("subject", "least"), [*LEAST.items()])
def test_every_figure_is_one_of_the_json(found, pages, subject, least):
    document = json.loads(render(subject, "json", found[subject], Canvas()))
    figures = Reader(pages[subject]).figures
    assert len(figures) >= least
    for figure in figures:
        value = exact_value(figure, document)
        assert float(figure["value"]) == pytest.approx(value, rel=1e-12), figure
        text = re.sub(r"^[≥≤~]", "", figure["text"])
        assert text == ("∞" if value == float("inf") else WRITTEN[figure["data-unit"]](value)), figure


@pytest.mark.parametrize("subject", SUBJECTS)
def test_its_data_are_the_document_that_json_holds(found, pages, subject):
    document = json.loads(render(subject, "json", found[subject], Canvas()))
    assert data_of(pages[subject])["document"] == Privacy.of(find_files(document)).hide_data(document)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_it_is_whole_without_a_script(pages, subject):
    page = Reader(pages[subject])
    assert page.open == []
    assert {
        name for tag, attributes in page.tags for name in attributes if name.startswith("on") or name == "style"
    } == set()
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert "Unpacking" not in page.text


@pytest.mark.parametrize("subject", SUBJECTS)
def test_it_is_written_by_save(found, subject, tmp_path):
    found[subject].save(tmp_path / "page.html")
    written = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert written == found[subject].report("html") == render(subject, "html", found[subject], Canvas())


def test_failures_come_first_and_passes_are_folded(pages):
    cards = [attributes for _, attributes in Reader(pages["check"]).tags if "data-kind" in attributes]
    assert [(card["data-kind"], "open" in card) for card in cards] == [
        ("error", True),
        *[("failed", True)] * 3,
        *[("passed", False)] * 4,
    ]


def test_a_failure_says_line_why_cost_and_what_to_do(pages):
    text = Reader(pages["check"]).text
    for words in (
        "moe.py:91",
        "is sharded over X, and every device needs all of it",
        "transfers take 251 us more per step",
    ):
        assert words in text
    assert "hloscope accept step --only all-gather@X" in text
    assert "▲ +60.0%" in text  # of the step
    assert "91 us to 112 us" in text.replace(" us  to ", " us to ")


def test_what_is_not_known_says_so_and_bounds_keep_their_marks(pages):
    read = {subject: Reader(page) for subject, page in pages.items()}
    assert "≥0 B" in {figure["text"] for figure in read["check"].figures}
    assert {"≥40 us", "≥1.28 ms"} <= {figure["text"] for figure in read["prices"].figures}
    assert "≥290 us" in {figure["text"] for figure in read["suggestions"].figures}
    assert {"≤20 us", "≥78 GB/s".removesuffix("/s"), "≥×0.50"} <= {
        figure["text"] for figure in read["comparison"].figures
    }
    assert "∞" in {figure["text"] for figure in read["verification"].figures}
    for subject in ("prices", "suggestions", "verification"):
        assert "unknown" in read[subject].text
    assert "not predicted" in read["comparison"].text
    assert "unknown" not in read["comparison"].text


def test_a_lower_bound_and_what_does_not_fit_are_not_the_fastest(pages):
    """The shortest step of the example is a lower bound, and the first slice is too small."""
    assert "The shortest step that is known is 45 us on v6e:2x4" in Reader(pages["prices"]).text
    small = result_examples.prices()[0]
    text = Reader(render("prices", "html", Prices((small,)), Canvas())).text
    assert "There is no slice that the program fits on" in text


def test_upper_bounds_are_compared_at_their_worst_and_say_so():
    """Another slice's step may be shorter than it is at most; so none is known to be the shortest."""
    first, second = (result_examples.prices()[number] for number in (1, 3))
    at_most = replace(first, time=replace(first.time, bound=Bound.AT_MOST, peak_flops_share=0.5))
    for found, step in (((at_most, second), "45 us"), ((at_most,), "≤56.0 us")):
        page = Reader(render("prices", "html", Prices(found), Canvas()))
        assert f"The shortest step at worst is {step} on" in page.text
        assert "Every branch is counted at its longest." in page.text
        assert "~50.0%" in {figure["text"] for figure in page.figures}


def test_what_does_not_fit_has_no_price_or_is_not_compiled_is_marked(pages):
    text = Reader(pages["prices"]).text
    assert "v5e:2x4, does not fit" in text
    assert "v5e:4x8, ≥" in text
    assert "✗ not compiled" in text
    assert "not known whether it fits" in text
    assert "the compiler died" in text


def test_what_was_tried_and_refused_is_said(pages):
    text = Reader(pages["suggestions"]).text
    for words in (
        *("stopped early: the time was up", "1 sharding left out: predicted faster than the chips can be"),
        *("its numbers were not compared with the program's", "not everything of it is known: opaque kernel"),
        *("within the error of the prices", "remove the constraint at model.py:31", "19.9% less time"),
    ):
        assert words in text


def test_where_values_differ_stands_in_words_too(found, pages):
    text = Reader(pages["verification"]).text
    assert "[12:24, 0:9]" in text
    assert "wrong, beyond 10 times: 288 blocks" in text
    assert "every element is 4 times what it should be, which is the size of X" in text
    assert "Neither program moves" not in text
    for output in found["verification"].numerics.comparisons:
        if output.error_map is not None and output.wrong:
            assert max(map(max, output.error_map.errors)) == pytest.approx(output.largest_error, rel=0.01)


def test_numbers_that_were_not_compared_are_no_pass():
    from hloscope.verification.judging import judge_verification
    from hloscope.verification.model import Numerics, NumericsStatus

    hung = Numerics(status=NumericsStatus.HUNG, message="no end after 10 s")
    text = Reader(judge_verification(result_examples.program(), result_examples.program(), hung).report("html")).text
    assert "The numbers were not compared: hung." in text
    assert "no end after 10 s" in text
    assert "✓" not in text


def test_what_had_no_match_is_said(pages):
    text = Reader(pages["comparison"]).text
    assert "not matched custom-call.9" in text
    assert "nothing is compiled of it" in text
    assert "not predicted" in text


def test_it_says_what_it_is_about(pages):
    heads = {
        "check": "Check of 8 targets commit aaaaaaaaaaaa",
        "comparison": "model.py:step ~/logs compared with model.py:step: 8 devices, TPU v5 lite",
        "prices": "model.py:step a step on 6 slices",
        "suggestions": "~/project/model.py:step shardings on v5e:2x4",
        "verification": "model.py:step compared with model.py:step on v5e:2x4",
    }
    for subject, head in heads.items():
        assert head in Reader(pages[subject]).text


def test_nothing_to_compare_is_said():
    found = replace(result_examples.comparison(), programs=())
    assert "No program of the profile could be compared." in Reader(found.report("html")).text


def test_a_check_of_nothing_has_a_page(tmp_path):
    text = Reader(CheckReport(checks=(), root=tmp_path).report("html")).text
    assert "Check of 0 targets" in text


@pytest.mark.parametrize("subject", SUBJECTS)
def test_no_home_folder_and_no_user_stands_on_it(pages, subject):
    page = pages[subject]
    shown = page.partition('id="data"')[0]
    for text in (shown, json.dumps(data_of(page))):
        assert "/home/me" not in text
    if subject in ("check", "suggestions"):
        assert "~/" in shown


def hostile(subject, found):
    """The same with strings that a browser would obey in the place of names."""
    evil = EVIL + "<script>window.owned=1</script>\"'&" + "x" * 10_000
    if subject == "check":
        wrong = replace(found.checks[1].findings[0], message=evil, fix=evil, rule=evil, source=f"{evil}:3")
        checks = [replace(one, name=evil, findings=(wrong,)) for one in found.checks if one.error is None]
        return replace(found, checks=(*checks, replace(found.checks[4], error=evil)), commit=evil)
    if subject == "prices":
        return Prices(
            (replace(found[0], target=evil, slice=replace(found[0].slice, name=evil), notes=(evil,)), found[-1])
        )
    if subject == "suggestions":
        spec = replace(found.front[0].specs[0], name=evil, before=evil)
        way = replace(found.front[0], recipe=evil, specs=(spec,), code=(evil,), because=(evil,), mesh={evil: 8})
        return replace(found, target=evil, front=(way,), recipes={evil: 1.0}, notes=(evil,))
    if subject == "verification":
        outputs = tuple(
            replace(one, name=evil, wrong_shards=(evil,), exchanged=(evil,)) for one in found.numerics.comparisons
        )
        numerics = replace(
            found.numerics, comparisons=outputs, inputs=(evil,), not_compared={evil: evil}, notes=(evil,)
        )
        return replace(found, numerics=numerics, target=replace(found.target, target=evil))
    operations = tuple(replace(one, name=evil, opcode=evil, rule=evil) for one in found.programs[0].operations)
    of = replace(found.programs[0], program=evil, operations=operations, notes=(evil,))
    return replace(found, target=evil, programs=(of,), notes=(evil,))


@pytest.mark.parametrize("subject", SUBJECTS)
def test_hostile_strings_are_text(found, subject):
    page = hostile(subject, found[subject]).report("html")
    assert not UNSEEN.search(page.partition("<main")[2])
    read = Reader(page)
    assert [attributes for tag, attributes in read.tags if tag == "script"] == [
        {"type": "application/octet-stream", "id": "data"},
        {},
    ]
    assert "<script>window.owned=1</script>" in read.text or "window.owned" not in read.text
    assert not {"img", "iframe"} & {tag for tag, _ in read.tags}
    longest = max(map(len, re.findall("x{3,}", " ".join(read.letters))), default=0)
    assert 20 < longest <= 2000


def test_a_command_writes_it(root, tmp_path):
    text = root / "fixtures/captured/mixture_of_experts.mixture_of_experts.jax-0.10.hlo"
    slices = ["--slice", "v5e:2x4", "--slice", "v6e:2x4"]
    page = tmp_path / "page.html"
    done = CliRunner().invoke(
        group, ["price", str(text), "--mesh", "X=8", *slices, "--format", "html", "-o", str(page)]
    )
    assert done.exit_code == 0, done.output
    read = Reader(page.read_text(encoding="utf-8"))
    assert "The shortest step that is known is" in read.text
    assert "Whether it fits is not known everywhere." in read.text  # which text does not tell


def test_every_command_that_has_such_a_page_lists_it():
    assert set(FORMATS["html"][1].split()) == {"analysis", "difference", *SUBJECTS}


@pytest.mark.parametrize(
    ("compiled", "stopped", "words"),
    [
        (1, "the time limit was reached", "because no other sharding was compiled: the time limit was reached"),
        (1, None, "No conclusion, because no other sharding was compiled"),
        (6, "the time limit was reached", "was found among 5 shardings, before the time limit was reached"),
        (6, None, "Nothing better than the program as written was found"),
    ],
)
def test_what_was_not_compiled_is_not_said_to_be_no_better(compiled, stopped, words):
    found = replace(result_examples.suggestions(), front=(), compiled=compiled, stopped=stopped)
    assert format_headline(found).endswith(words)
    assert words in Reader(render("suggestions", "html", found, Canvas())).text
