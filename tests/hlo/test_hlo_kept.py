"""Templates on disk: what does not decode is not used."""

from __future__ import annotations

import json

import pytest
from hlo_texts import MODULE

from hloscope.hlo.builder import Builder
from hloscope.hlo.columns import Columns
from hloscope.hlo.holes import Dialect
from hloscope.hlo.kept import KIND, MOST_ROWS, Kept, key_of
from hloscope.hlo.scanner import Scanner
from hloscope.hlo.skeletons import Skeletons
from hloscope.hlo.unusual import Unusual
from hloscope.store import Store

DIALECT = Dialect(percent=True)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def learnt() -> Skeletons:
    scanner = Scanner(Builder(Columns(MODULE, None)))
    scanner._skeletons = Skeletons(DIALECT)
    scanner.scan()
    return scanner._skeletons


def test_what_is_kept_is_what_was_learnt(store):
    skeletons = learnt()
    Kept(store, "k", DIALECT.cut).save(skeletons.known, skeletons._without_shapes)
    again = Kept(store, "k", DIALECT.cut)
    assert len(skeletons.known) > 10
    for pieces, template in skeletons.known.items():
        found = again.template(pieces)
        if isinstance(template, Unusual):
            assert found is template
        else:
            assert (found.outline, found.shape, found.called) == (template.outline, template.shape, template.called)
    for pieces, outline in skeletons._without_shapes.items():
        assert again.outline(pieces) == outline


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", b"1", b"[1]", b"[1,2]", b"[[],[],[]]", b'[[["a",1]],[["a",[1]]]]', b'[[["a","NO"]],[]]']
)
def test_rows_that_do_not_decode(store, body):
    store.put(KIND, "k", body)
    kept = Kept(store, "k", DIALECT.cut)
    assert kept.template(("a",)) is None
    assert kept.outline(("a",)) is None


def test_room_is_bounded_and_the_newest_stay(store):
    old = {(f"old {number}",): Unusual.IRREGULAR for number in range(MOST_ROWS)}
    new = {(f"new {number}",): Unusual.INCOMPLETE for number in range(100)}
    Kept(store, "k", DIALECT.cut).save(old, {})
    Kept(store, "k", DIALECT.cut).save(new, {})
    rows, _ = json.loads(store.get(KIND, "k"))
    assert len(rows) == MOST_ROWS
    assert Kept(store, "k", DIALECT.cut).template(("new 99",)) is Unusual.INCOMPLETE


def test_the_key_names_what_templates_depend_on():
    assert key_of("a", percent=True) != key_of("b", percent=True)
    assert key_of("a", percent=True) != key_of("a", percent=False)
    assert key_of("a", percent=True) == key_of("a", percent=True)
