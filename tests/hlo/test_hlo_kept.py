"""Templates on disk: what does not decode is not used."""

from __future__ import annotations

import pytest
from hlo_texts import MODULE

from hloscope.hlo.builder import Builder
from hloscope.hlo.columns import Columns
from hloscope.hlo.kept import KIND, MOST_ROWS, Kept, key_of
from hloscope.hlo.language import language
from hloscope.hlo.learnt import Learnt
from hloscope.hlo.rows import dialect
from hloscope.hlo.scanner import Scanner
from hloscope.hlo.templates import Recipe, Template
from hloscope.store import Store

TEMPLATE = Template((("a", Recipe(0, 3, 0, 0)),), ())


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def learn(kept: Kept, monkeypatch) -> Learnt:
    words = Learnt(dialect(percent=True, shapes=False), kept)
    monkeypatch.setattr("hloscope.hlo.scanner.learnt", lambda _: words)
    Scanner(Builder(Columns(MODULE, None))).scan()
    return words


def test_what_is_kept_is_what_was_learnt(store, monkeypatch):
    first = learn(Kept(store, "k"), monkeypatch)
    again = Kept(store, "k")
    assert len(first._templates) > 4
    for pieces, template in first._templates.items():
        assert again.template(pieces) == template
    assert len(first.shapes._templates) > 5
    for pieces, template in first.shapes._templates.items():
        assert again.shape(pieces) == template
    assert again.has_line("x = f32[] add(x)") is False
    assert again.has_line("x = f32[] add(%x)")


def test_what_is_kept_is_not_parsed_again(store, monkeypatch):
    learn(Kept(store, "k"), monkeypatch)
    known, parsed = language(), []
    parse = known.parse

    def noted(start, text):
        found = parse(start, text)
        parsed.append(text if start == "instruction" else start)
        return found

    monkeypatch.setattr(known, "parse", noted)
    learn(Kept(store, "k"), monkeypatch)
    assert "header" in parsed
    assert "computation_head" not in parsed
    assert not [text for text in parsed if text.startswith("x = ")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"1",
        b"[1]",
        b"[1,2,3]",
        b"[[],[],[],[]]",
        b'[[["a",1]],[["a",1]],[]]',
        b'[[["a",[[["k",[1]]],[]]]],[["a",[[8],["f32",[1],0,[1]]]]],[]]',
    ],
)
def test_rows_that_do_not_decode(store, body):
    store.put(KIND, "k", body)
    kept = Kept(store, "k")
    assert kept.template(("a",)) is None
    assert kept.shape(("a",)) is None
    assert not kept.has_line("a")


def test_room_is_bounded_and_the_newest_stay(store):
    kept = Kept(store, "k")
    for number in range(MOST_ROWS + 100):
        kept.add_template((str(number),), TEMPLATE)
    kept.save()
    again = Kept(store, "k")
    assert again.template(("99",)) is None
    assert again.template(("100",)) == again.template((str(MOST_ROWS + 99),)) == TEMPLATE


def test_without_a_store_nothing_is_kept():
    kept = Kept(None, "k")
    kept.add_template(("a",), TEMPLATE)
    kept.save()
    assert kept.template(("a",)) is None


def test_the_key_names_what_templates_depend_on():
    assert key_of("a") != key_of("b")
    assert key_of("a") == key_of("a")
