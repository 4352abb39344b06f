"""The facts of an auto-sharded program do not depend on the form in which its groups are printed."""

from __future__ import annotations

import json

import pytest
from group_text import PRINTED, groups_of, written
from test_every_spelling import FACTS, VERSIONS, read

import hloscope

PROGRAMS = [
    "partitioned.fsdp_gradients",
    "partitioned.scanned_layers",
    "partitioned.scanned_gradients",
    "partitioned.sparsecore_calls",
    "partitioned.scanned_gradients_cpu",
    "partitioned.offloaded_activations",
    "partitioned.resharded_transpose",
    "partitioned.split_axis",
]
FORMS = ("a list", "an iota", "invented axes", "permuted devices", "a part of an axis")


def facts_of(text, name):
    """Everything that the analysis says of the collectives and of their sums."""
    found = hloscope.analyze_text(text, name=name, mesh=FACTS[name]["mesh"]).to_dict()
    assert found["collectives"]
    for one in found["collectives"]:
        groups = found["device_groups"][one["groups"]]
        one["groups"] = groups if one["kind"] == "collective-permute" else sorted(map(sorted, groups))
    return found["collectives"], found["totals"], found["unmodelled"]


def form_of(found):
    return "list" if found["list"] else "iota" if found["shape"] else "mesh"


def test_the_compiled_texts_hold_all_forms():
    texts = [read(name, version) for name in PROGRAMS for version in VERSIONS]
    assert {form_of(found) for text in texts for found in PRINTED.finditer(text)} == {"list", "iota", "mesh"}
    assert all(len(PRINTED.findall(text)) == text.count("replica_groups=") for text in texts)


@pytest.mark.parametrize("form", range(len(FORMS)), ids=FORMS)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_groups_in_another_form(name, version, form):
    text = read(name, version)
    other, count = PRINTED.subn(lambda found: list(written(groups_of(found)))[form], text)
    assert count > 0
    assert other != text or FORMS[form] == "a list"
    assert json.dumps(facts_of(other, name)) == json.dumps(facts_of(text, name))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_form_means_the_same_groups(name, version):
    """The forms that these tests write are read back by their own reader, too."""
    for found in PRINTED.finditer(read(name, version)):
        for form in written(groups_of(found)):
            assert groups_of(PRINTED.fullmatch(form)) == groups_of(found)
