"""The report on a program of very many collectives: what costs most, parts of the model, findings of one cause."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from report_examples import FULL, GATHER

from hloscope.base.canvas import Canvas
from hloscope.model import ModelPart, Phase, Role, SourceFrame, StepTime
from hloscope.model.finding import Finding, Severity, by_cause
from hloscope.model.vocabulary import Bound, Kind
from hloscope.report.checks import list_once, make_report
from hloscope.report.collectives import (
    choose_grouping,
    find_dearest,
    find_module,
    find_unlike_layers,
    group_by_name,
    group_collectives,
)
from hloscope.report.formats import render

LAYERS = 36
PROJECTIONS = {"attn.q": 20.0, "attn.k": 5.0, "attn.v": 5.0, "attn.o": 20.0, "mlp.gate": 60.0, "mlp.up": 55.0}
FIX = "keep it"
LINE = SourceFrame(file="/home/me/model.py", line=16, function="Linear.__call__")


def at(module, phase, role, kind, exposed_us, layer, **other):
    part = ModelPart(module=module, layers=() if layer is None else (layer,), phase=phase, role=role, line=LINE)
    return replace(GATHER, kind=kind, executions=1, part=part, exposed_us=exposed_us, time_us=2 * exposed_us, **other)


def of_layer(layer):
    for number, (name, exposed_us) in enumerate(PROJECTIONS.items()):
        module = f"layers.*.{name}"
        gather, scatter = f"gather.{layer}.{number}", f"scatter.{layer}.{number}"
        yield at(module, Phase.FORWARD, Role.WEIGHTS, Kind.ALL_GATHER, exposed_us, layer, name=gather)
        yield at(
            module, Phase.BACKWARD, Role.WEIGHTS, Kind.ALL_GATHER, 2 * exposed_us, layer, name=f"again.{layer}.{number}"
        )
        for part in range(6):
            yield at(
                module,
                Phase.BACKWARD,
                Role.GRADIENT,
                Kind.COLLECTIVE_PERMUTE,
                exposed_us / 2,
                layer,
                name=f"{scatter}.{part}",
            )


NORM = at(None, Phase.OPTIMIZER, None, Kind.ALL_REDUCE, 3.0, None, name="norm")
MANY = (*(one for layer in range(LAYERS) for one in of_layer(layer)), NORM)
TWICE = tuple(
    Finding(
        rule="duplicate-collective",
        severity=Severity.NOTE,
        message=f"all-gather over X moves the same values as %gather.{layer}.{number}",
        computation="body",
        instruction=f"again.{layer}.{number}",
        line=layer,
        source="/home/me/model.py:16",
        cost="88.1 MB sent per device, 1.19 ms each",
        fix=FIX,
    )
    for layer in range(LAYERS)
    for number in range(len(PROJECTIONS))
)
STEP = StepTime(
    step_us=100_000.0, compute_us=60_000.0, exposed_us=40_000.0, hidden_us=1.0, hbm_us=1.0, peak_flops_share=None,
    first_step_us=100_000.0, basis="cycles", bound=Bound.EXACT,
)  # fmt: skip
TRAINING = replace(FULL, collectives=MANY, findings=TWICE, time=STEP)


def report(analysis, **how):
    return render("analysis", "text", analysis, Canvas(**{"width": 100, **how}))


def section(text, title):
    """The lines of a section, each with single blanks."""
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(title)) + 1
    end = lines.index("", start)
    return [" ".join(line.split()) for line in lines[start:end]]


@pytest.mark.parametrize(("width", "lines"), [(80, 70), (100, 60)])
def test_a_step_of_36_layers_fits_a_screen(width, lines):
    assert len(MANY) > 1700
    text = report(TRAINING, width=width)
    assert len(text.splitlines()) <= lines
    assert max(map(len, text.splitlines())) <= width


def test_which_weights_cost_most_and_in_which_layers():
    first, second = section(report(TRAINING), "Collectives by part")[2:4]
    assert first.split()[0] == "layers[0-35].mlp.gate"
    assert second.split()[0] == "layers[0-35].mlp.up"


def test_which_pass_waits_longest():
    (waiting,) = [line for line in section(report(TRAINING), "Predicted time") if line.startswith("exposed: ")]
    order = [words.split()[0] for words in waiting.removeprefix("exposed: ").split(" · ")]
    assert order == ["backward", "forward", "optimizer"]


def test_the_three_that_cost_most_stand_first_with_place_and_advice():
    things = find_dearest(MANY, 3)
    assert [(thing.first.part.role, thing.first.part.phase) for thing in things] == [
        (Role.GRADIENT, Phase.BACKWARD),
        (Role.WEIGHTS, Phase.BACKWARD),
        (Role.GRADIENT, Phase.BACKWARD),
    ]
    assert [part.name for part in group_collectives(things[0].members, find_module)] == [
        "layers[0-35].mlp.gate",
        "layers[0-35].mlp.up",
    ]
    told = section(report(TRAINING), "What costs most")
    assert any(line.endswith(FIX) for line in told)  # of the finding about the second
    assert len([line for line in told if line[0].isdigit() and line[1] == " "]) == 3


def test_what_was_tried_is_told_before_what_was_not():
    tried = replace(TRAINING, collectives=tuple(replace(one, tried="shard it: 2 ms less") for one in MANY))
    told = section(report(tried), "What costs most")
    assert sum(line == "tried: shard it: 2 ms less" for line in told) == 3
    assert not any("not tried" in line for line in told)


def test_without_prices_bytes_decide():
    unpriced = tuple(replace(one, time_us=None, exposed_us=None) for one in MANY)
    largest = replace(unpriced[5], wire_bytes=10**12)
    (first,) = find_dearest((*unpriced, largest), 1)
    assert first.first.part == largest.part
    text = report(replace(TRAINING, collectives=unpriced, time=None))
    assert "exposed" not in text


def test_a_layer_that_costs_much_more_is_named():
    slow = [replace(one, exposed_us=5000.0) if one.part.layers == (7,) else one for one in MANY if one.part.layers]
    group = group_collectives(slow, find_module)[0]
    assert [layer for layer, _ in find_unlike_layers(group)] == [7]
    assert not list(find_unlike_layers(group_collectives(MANY, find_module)[0]))


def test_layers_with_gaps_are_told_as_they_are():
    some = [one for one in MANY if one.part.layers and one.part.layers[0] in (0, 1, 2, 4)]
    assert group_collectives(some, find_module)[0].name == "layers[0-2, 4].mlp.gate"


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("kind", {"all-gather", "collective-permute", "all-reduce"}),
        ("axis", {"X"}),
        ("line", {"model.py:16 in Linear.__call__"}),
    ],
)
def test_other_groups(by, names):
    text = report(TRAINING, group_by=by)
    assert any(line.startswith(name) for name in names for line in section(text, "Collectives by"))


def test_a_program_of_few_is_listed_one_by_one_unless_groups_are_asked_for():
    few = replace(TRAINING, collectives=MANY[:40])
    assert "What costs most" not in report(few)
    assert "Collectives by part" in report(few, group_by="module")


def test_where_nothing_names_a_module_collectives_are_listed():
    assert choose_grouping(tuple(replace(one, part=None) for one in MANY), Canvas()) is None


def test_all_lists_each_by_itself():
    text = report(replace(TRAINING, collectives=MANY[:200]), everything=True)
    kinds = ("all-gather", "collective-permute")
    rows = [line.split() for line in text.splitlines()]
    assert sum(len(row) > 1 and row[0].isdigit() and row[1] in kinds for row in rows) == 200
    assert text.count("note[duplicate-collective]") == len(TWICE)


def test_no_collective_is_in_two_groups_or_in_none():
    for groups in (group_collectives(MANY, find_module), group_by_name(MANY, lambda one: str(one.kind))):
        assert sum(len(group.members) for group in groups) == len(MANY)
        assert sum(group.exposed_us for group in groups) == pytest.approx(sum(one.exposed_us for one in MANY))


def test_unknown_bytes_are_no_zero():
    unknown = replace(TRAINING, collectives=(replace(MANY[0], wire_bytes=None), *MANY[1:]))
    gate = next(line for line in section(report(unknown), "Collectives by part") if ".attn.q" in line)
    assert "≥" in gate


def test_findings_of_one_cause_are_one_with_its_places():
    found = section(report(TRAINING), "Findings")
    assert sum(line.startswith("note[") for line in found) == 1
    assert f"{len(TWICE) - 1} more places like it" in " ".join(found)
    assert any(line.startswith("= in: layers[0-35].mlp.gate") for line in found)


def test_json_has_each_finding_and_each_place():
    document = json.loads(render("analysis", "json", TRAINING, Canvas()))
    assert len(document["findings"]) == len(TWICE)
    assert len(document["collectives"]) == len(MANY)
    first = document["parts"][document["collectives"][0]["part"]]
    assert (first["module"], first["layers"], first["phase"], first["role"]) == (
        "layers.*.attn.q",
        [0],
        "forward",
        "weights",
    )


def test_one_annotation_for_a_cause_on_a_line():
    ((_, finding),) = list_once(make_report(TRAINING))
    assert f"{len(TWICE) - 1} more places like it" in finding.message


def test_what_is_accepted_of_a_cause_stays_apart():
    some = tuple(replace(finding, allowed="on purpose") if finding.line == 3 else finding for finding in TWICE)
    assert sorted(map(len, by_cause(some))) == [len(PROJECTIONS), len(TWICE) - len(PROJECTIONS)]


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("moves %a.1, 3.1 MB in 2 us", "moves %b, 20 kB in 1.5 ms", True),
        ("`params['layers'][0]['w']` is gathered", "`params['layers'][12]['w']` is gathered", True),
        ("`layers_0` waits 12%", "`layers_11` waits 3.5%", True),
        ("at model.py:12", "at model.py:13", False),
        ("`params['a']` is gathered", "`params['b']` is gathered", False),
        ("bf16[2,4] is widened", "bf16[2,8] is widened", False),
    ],
)
def test_what_findings_of_one_cause_may_differ_in(one, other, alike):
    at = {"rule": "a", "severity": Severity.NOTE, "instruction": "x"}
    assert (len(by_cause([Finding(message=message, **at) for message in (one, other)])) == 1) is alike


def test_what_has_no_place_differs_in_layers_alone():
    names = ("params['layers'][0]['w']", "params['layers'][7]['w']", "step")
    findings = [
        Finding(rule="a", severity=Severity.NOTE, message=f"{name} takes {size}")
        for name, size in zip(names, ("1 MB", "1 MB", "2 MB"), strict=True)
    ]
    assert list(map(len, by_cause(findings))) == [2, 1]
    assert len(by_cause([findings[0], replace(findings[0], message=findings[0].message.replace("1 MB", "2 MB"))])) == 2


def test_many_collectives_are_grouped_in_no_time():
    report(TRAINING)
    start = time.process_time()
    group_collectives(MANY, find_module)
    find_dearest(MANY, 3)
    assert time.process_time() - start < 0.1
