"""Results as notebooks show them: HTML without scripts, whose words are those of the report in text."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_examples import FULL, GATHER, NOTHING
from test_hostile_strings import EVIL, UNSEEN, hostile_text
from test_verification_report import BAD, RAN

import hloscope
from hloscope.base.errors import Option, say
from hloscope.model import ArrayFact, Mesh
from hloscope.model.trial import Figures, Suggestion, Suggestions
from hloscope.model.vocabulary import Bound
from hloscope.verification.judging import judge_verification

CAPTURED = Path(__file__).parent.parent.parent / "fixtures/captured"
EXPERTS, BY_HAND = (
    CAPTURED / f"mixture_of_experts.{name}.jax-0.10.hlo"
    for name in ("mixture_of_experts", "mixture_of_experts_shard_map")
)
TAGS = {
    *("div", "span", "strong", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "pre"),
    *("svg", "g", "path", "rect", "line", "circle", "polygon", "text", "tspan", "title", "desc"),
}
APART = {"div", "td", "th", "text", "tspan", "title", "desc", "summary"}


class Reader(HTMLParser):
    """The tags, attributes and letters of a fragment, as a browser reads them."""

    def __init__(self, fragment):
        super().__init__()
        self.tags, self.attributes, self.open, self.letters = set(), set(), [], []
        self.feed(fragment)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.letters += [" "] if tag in APART else []

    def handle_data(self, data):
        self.letters.append(data)

    @property
    def text(self):
        return " ".join("".join(self.letters).split())


@lru_cache(maxsize=1)
def experts():
    return hloscope.analyze(EXPERTS, slice="v5e:2x4", mesh={"X": 4, "Y": 2})


def suggestions(name="step"):
    figures = Figures(
        step_us=312.0,
        step_us_range=(300.0, 330.0),
        step_bound=Bound.EXACT,
        hbm_bytes=10**9,
        wire_bytes=10**6,
        wire_bytes_by_axis={"X": 10**6},
        wire_bound=Bound.EXACT,
        collectives=1,
    )
    own = Suggestion(recipe=None, mesh={"X": 8}, is_own=True, figures=figures)
    better = replace(
        own,
        recipe=name,
        is_own=False,
        gain=0.2,
        is_worth_it=True,
        figures=replace(own.figures, step_us=250.0),
        because=(f"less {name}",),
        code=(f"x = {name}",),
    )
    return Suggestions(target=name, slice="v5e:2x4", own=own, front=(better,), space=9, ranked=9, compiled=2)


RESULTS = {
    "analysis": experts,
    "analysis by hand": lambda: FULL,
    "nothing": lambda: NOTHING,
    "diff": lambda: hloscope.diff(EXPERTS, BY_HAND, slice="v5e:2x4"),
    "suggestions": suggestions,
    "prices": lambda: hloscope.price(EXPERTS, ["v5e:2x4", "v6e:2x4"]),
    "verification": lambda: judge_verification(
        replace(NOTHING, collectives=(GATHER,)), NOTHING, replace(RAN, comparisons=(BAD,))
    ),
    "timeline": lambda: experts().timeline(),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_fragment_is_whole_and_without_scripts(name):
    fragment = RESULTS[name]()._repr_html_()
    read = Reader(fragment)
    assert read.open == []
    assert read.tags <= TAGS, read.tags - TAGS
    assert not {each for each in read.attributes if each.startswith("on") or each in ("id", "class", "href", "src")}
    assert len(fragment) < 40_000


@pytest.mark.parametrize("name", [name for name in RESULTS if name != "timeline"])
def test_its_figures_are_those_of_the_report_in_text(name):
    found = RESULTS[name]()
    fragment = found._repr_html_()
    if name == "suggestions":
        fragment = re.sub(r"<svg.*?</svg>", "", fragment)  # whose axes have round numbers
    shown = set(re.findall(r"\d[\d.,]* (?:[kMGT]?B|us|ms|s)\b", Reader(fragment).text))
    report = " ".join(found.report(width=200).split())
    assert shown or name == "nothing"
    assert {figure for figure in shown if figure not in report} <= {"0 us"}  # what is hidden, where nothing is


def test_an_analysis_shows_what_there_is_first():
    text = Reader(experts()._repr_html_()).text
    assert "One device sends 6.58 GB per step, in 8 transfers from 1 collective." in text
    assert "76.7 ms a step: 2.43 ms computing, 74.2 ms exposed" in text
    assert "mixture_of_experts.py:26 in expert_forward" in text
    assert "3 arguments" in text
    assert "found.mesh_picture()" in text


def test_a_verification_that_failed_shows_its_findings():
    fragment = RESULTS["verification"]()._repr_html_()
    assert '<details style="margin-top:6px" open' in fragment
    assert "failed: " in Reader(fragment).text


def test_a_verification_shows_which_shards_are_wrong():
    output = ArrayFact(
        name="result",
        dtype="f32",
        global_shape=(64, 32),
        local_shape=(16, 32),
        sharding="P('X', None)",
        chosen_by=None,
        bytes_per_device=2048,
    )
    mesh = Mesh(axis_names=("X", "Y"), axis_sizes=(4, 2))
    target = replace(NOTHING, mesh=mesh, num_partitions=8, outputs=(output,))
    fragment = judge_verification(target, NOTHING, replace(RAN, comparisons=(BAD,)))._repr_html_()
    assert "✗: elements are wrong on 2." in Reader(fragment).text  # X=1, Y=0
    assert fragment.count(">✗<") == 1
    assert "Where values differ" in fragment


def test_a_timeline_is_a_strip():
    text = Reader(experts().timeline()._repr_html_()).text
    assert "one step, 76.7 ms" in text
    assert "%while.11, 8 times, 76.3 ms" in text
    assert "one of 8 times, 9.54 ms" in text
    assert "waits for collectives: %all-gather.8" in text


def test_options_are_pythons():
    text = Reader(
        replace(FULL, notes=(say("the mesh is a guess: give it as ", Option("mesh", {"X": 4, "Y": 2})),))._repr_html_()
    ).text
    assert 'mesh={"X": 4, "Y": 2}' in text
    assert "--mesh" not in text


def test_what_has_no_fragment_is_shown_as_markdown():
    found = hloscope.explain(EXPERTS)
    assert found._repr_html_() is None
    assert found._repr_markdown_()


def test_hostile_strings_are_text():
    hostile = hloscope.analyze_text(hostile_text(), slice="v5e:2x2")
    hostile = replace(hostile, target=EVIL, notes=(EVIL, "x" * 10_000))
    for found in (hostile, suggestions(EVIL), judge_verification(hostile, replace(hostile, target="<script>"), RAN)):
        fragment = found._repr_html_()
        read = Reader(fragment)
        assert read.tags <= TAGS
        assert UNSEEN.search(fragment) is None
        assert len(fragment) < 60_000
        assert "<img src=x>" in read.text
