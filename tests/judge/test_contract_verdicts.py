"""A program held against a contract: what holds, what breaks it, and what nobody can decide."""

from __future__ import annotations

from dataclasses import replace

import pytest
from contract_examples import ARRAY, GATHER, PRICED, REDUCE, SCATTER, program
from hypothesis import given
from hypothesis import strategies as st

from hloscope.analysis.provenance import short_source
from hloscope.analysis.totals import compute_totals
from hloscope.contracts import no, only
from hloscope.judge.evaluate import evaluate
from hloscope.judge.model import Contract
from hloscope.judge.notation import parse_contract, read_contract
from hloscope.judge.verdict import BreachKind
from hloscope.model import Memory, SliceFact, SourceFrame, Unmodelled
from hloscope.model.analysis import RepeatedLine, RepeatedWork
from hloscope.model.trial import UnknownOperation
from hloscope.model.vocabulary import Bound, Kind, Link

BOTH = program(REDUCE, GATHER)


def verdict(text, analysis=BOTH):
    return evaluate(parse_contract(text), analysis)


def breaches(text, analysis=BOTH):
    return [
        (breach.kind.value.removeprefix("contract-"), breach.message) for breach in verdict(text, analysis).breaches
    ]


HOLDS = """
all-reduce@Y
all-reduce@Y <= 32KiB x1; all-gather@X <= 2MiB x6; nothing else
all-*; nothing else
*@*; nothing else
all-reduce@Y over ici; all-gather@X in "model/moe.py"; nothing else
all-gather@X in "moe.py:91" <= 2.1MB
all-gather in "layers.py:40" <= 12.6MB/step
all-gather in "model/*.py"
no all-to-all
no all-gather@Y
no all-reduce in "moe.py"
no * over dcn
wire <= 9.5MB/step
wire@X <= 9437184B/step; wire@Y <= 32768B/step
payload@Y <= 32KiB
""".strip().splitlines()


@pytest.mark.parametrize("text", HOLDS)
def test_what_holds(text):
    found = verdict(text)
    assert found.holds, str(found)
    assert found.findings == ()


@pytest.fixture
def broken(says):
    """The kinds of what a verdict finds; the sentences stand in the golden, by the contract's text."""

    def kinds(text, analysis=BOTH, key=""):
        found = breaches(text, analysis)
        if found:
            says([f"{kind}: {message}" for kind, message in found], key or text)
        return [kind for kind, _ in found]

    return kinds


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("all-to-all", 1),
        ("all-reduce@X", 1),
        ("all-reduce@(X,Y)", 1),
        ('all-gather@X in "attention.py"', 1),
        ("all-reduce@Y <= 32767B", 1),
        ("all-gather@X <= 12MB/step", 1),
        ("all-gather@X x5", 1),
        ("none", 2),
        ("all-reduce@Y; nothing else", 1),
        ("no all-gather", 1),
        ("no *@X", 1),
        ("no *", 2),
        ("wire@X <= 9MB/step", 1),
        ("payload <= 1kB", 1),
    ],
)
def test_what_breaks(broken, text, count):
    assert broken(text) == ["broken"] * count


def test_the_failure_text(says):
    failed = verdict("all-reduce@Y <= 16KiB; nothing else")
    assert [breach.accept for breach in failed.breaches] == ["all-reduce@Y <= 32.8kB x1", "all-gather@X <= 2.1MB x6"]
    says(failed)


def test_the_failure_text_with_times(says):
    timed = replace(GATHER, time_us=73.1, exposed_us=70.0)
    assert "73.1 us" in says(verdict("none", program(timed)))


def test_the_failure_text_has_what_was_tried_against_a_collective(says):
    tried = "argument W: P('X', None) -> P(None, 'X'), 492 us -> 73.9 us"
    assert f"tried: {tried}" in says(verdict("none", program(replace(GATHER, tried=tried))))


def test_findings_point_at_the_source():
    (finding,) = verdict("no all-gather").findings
    assert (finding.rule, finding.severity, finding.source, finding.line) == (
        "contract-broken",
        "error",
        "/home/me/model/moe.py:91",
        20,
    )
    assert "all-gather@X <= 2.1MB x6" in finding.fix


COLLECTIVES = st.builds(
    lambda one, axes, payload, executions: replace(
        one, axes=axes, payload_bytes=payload, wire_bytes=payload, executions=executions
    ),
    st.sampled_from([REDUCE, GATHER, SCATTER]),
    st.sampled_from([("X",), ("Y",), ("X", "Y"), ("X:(1)2",)]),
    st.integers(1, 10**12),
    st.integers(1, 1000),
)


@given(st.lists(COLLECTIVES, min_size=1, max_size=5))
def test_what_a_failure_says_to_accept_is_accepted(collectives):
    analysis = program(*collectives)
    failed = verdict("none", analysis)
    accepted = parse_contract("; ".join([*(breach.accept for breach in failed.breaches), "nothing else"]))
    assert evaluate(accepted, analysis).holds, str(evaluate(accepted, analysis))


def test_two_limits_are_checked_each_for_itself():
    (clause,) = parse_contract("all-reduce@Y <= 1GiB").clauses
    contract = Contract(clauses=(replace(clause, max_bytes_per_step=1),))
    assert [breach.kind for breach in evaluate(contract, BOTH).breaches] == [BreachKind.BROKEN]


@given(st.lists(COLLECTIVES, min_size=1, max_size=5))
def test_a_raised_limit_holds(collectives):
    analysis = program(*collectives)
    for text in ("wire <= 0B", "payload@X <= 0B", "wire@(X,Y) <= 0B"):
        for breach in verdict(text, analysis).breaches:
            if breach.kind is BreachKind.BROKEN:
                assert verdict(breach.accept, analysis).holds


def test_a_ban_and_a_limit_cover_products_and_parts_of_axes_and_an_expectation_does_not(broken):
    product = replace(GATHER, axes=("X", "Y"))
    part = replace(GATHER, axes=("X:(1)2",))
    for one in (product, part):
        assert broken("no all-gather@X", program(one), ",".join(one.axes)) == ["broken"]
        assert not verdict("wire@X <= 1MB/step", program(one)).holds
    assert broken("all-gather@X", program(product)) == ["broken"]
    assert not verdict("all-gather@X", program(part)).holds
    assert verdict("all-gather@X:(1)2", program(part)).holds
    assert verdict("all-gather@(Y,X)", program(product)).holds


def test_the_narrowest_expectation_takes_a_collective():
    other = replace(
        GATHER, name="all-gather.9", payload_bytes=100, executions=1, source=REDUCE.source, operand_shapes=()
    )
    both = program(GATHER, other)
    text = 'all-gather@X <= 100B x1; all-gather in "moe.py" <= 2.1MB x6; nothing else'
    assert verdict(text, both).holds
    assert not verdict("all-gather@X <= 100B x1; all-* <= 2.1MB x6; nothing else", both).holds


UNKNOWN = Unmodelled(
    what="trip count of %while.3 cannot be read",
    effect="everything inside it is counted for one trip, which is a lower bound",
    instruction="while.3",
    line=5,
)
UNREAD = replace(GATHER, executions=1, executions_bound=Bound.AT_LEAST)


@pytest.mark.parametrize("text", ["all-gather@X", "no all-reduce", "wire <= 1GB/step", "all-gather; nothing else"])
def test_a_contract_over_what_was_not_understood_fails_and_says_so(says, text):
    analysis = program(UNREAD, unmodelled=(UNKNOWN,))
    failed = verdict(text, analysis)
    (breach,) = failed.breaches
    assert (breach.kind, breach.accept) == (BreachKind.UNDECIDED, "at-least-ok")
    assert "%while.3" in breach.message
    passed = verdict(f"{text}; at-least-ok", analysis)
    assert passed.holds
    (remark,) = passed.remarks
    says([breach.message, remark])


def test_a_contract_over_opaque_communication_fails():
    opaque = replace(
        GATHER, kind=Kind.OPAQUE, name="kernel", axes=None, groups=(), payload_bytes=None, wire_bytes=None, executions=1
    )
    analysis = program(opaque)
    assert [kind for kind, _ in breaches("no all-gather", analysis)] == ["undecided", "undecided"]
    assert [kind for kind, _ in breaches("wire@X <= 1GB/step", analysis)] == ["undecided", "undecided"]
    assert verdict("no all-gather; at-least-ok", analysis).holds
    assert not verdict("none; at-least-ok", analysis).holds


def test_totals_known_at_least_only_fail(broken):
    analysis = program(GATHER, totals=replace(compute_totals((GATHER,)), bound=Bound.AT_LEAST))
    assert broken("all-gather@X", analysis) == ["undecided"]


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"axes": None}, "no all-gather@X"),
        ({"link": Link.UNKNOWN}, "no * over dcn"),
        ({"source": ()}, 'no all-gather in "attention.py"'),
        ({"wire_bytes": None}, "wire@X <= 1GB/step"),
        ({"payload_bytes": None}, "all-gather@X <= 1GB"),
    ],
)
def test_what_may_be_meant_is_not_passed(facts, text):
    failed = verdict(text, program(replace(GATHER, **facts)))
    assert {breach.kind for breach in failed.breaches} == {BreachKind.UNDECIDED}


def test_an_unknown_limit_fails(broken):
    for text in ("hbm <= 14GiB", "time <= 1ms", "exposed <= 5%", "exposed <= 5us; at-least-ok", "repeated <= 2"):
        assert broken(text) == ["undecided"]


def test_memory_and_time(says):
    analysis = program(REDUCE, memory=Memory(peak_bytes=13 * 2**30), time=PRICED)
    assert verdict("hbm <= 14GiB; time <= 1ms; exposed <= 10%; exposed <= 100us", analysis).holds
    failed = verdict("hbm <= 12GiB; time <= 0.9ms; exposed <= 5%; exposed <= 99us", analysis)
    assert {breach.accept for breach in failed.breaches} == {
        "hbm <= 13GiB",
        "time <= 1ms",
        "exposed <= 10%",
        "exposed <= 100us",
    }
    says([breach.message for breach in failed.breaches])


def repeating(ratio, bound=Bound.EXACT):
    found = RepeatedWork(
        ratio=ratio, bound=bound, padding=1.0, recomputed=0.0, traced_flops=100.0, compiled_flops=100.0 * (ratio or 0)
    )
    return program(REDUCE, repeated=found)


def test_repeated_work(says):
    for ratio in (0.5, 1.0, 1.05):
        assert verdict("repeated <= 1.05", repeating(ratio)).holds
    failed = verdict("repeated <= 1.05", repeating(2.3000001))
    assert [breach.accept for breach in failed.breaches] == ["repeated <= 2.31"]
    says([breach.message for breach in failed.breaches])
    line = RepeatedLine(ratio=8.0, axes=("X", "Y"), devices=8, module=None, source=(SourceFrame(file="a.py", line=12),))
    found = replace(repeating(2.3).repeated, lines=(line,))
    [breach] = verdict("repeated <= 1.05", program(REDUCE, repeated=found)).breaches
    assert "(most of it at a.py:12)" in breach.message


@pytest.mark.parametrize(
    ("ratio", "bound", "kinds"),
    [
        (None, Bound.UNKNOWN, ["undecided"]),
        (1.0, Bound.AT_LEAST, ["undecided"]),
        (1.04, Bound.UNKNOWN, ["undecided"]),
        (1.04, Bound.AT_MOST, []),
        (2.0, Bound.AT_LEAST, ["broken"]),
        (2.0, Bound.AT_MOST, ["undecided"]),
        (2.0, Bound.UNKNOWN, ["undecided"]),
    ],
)
def test_repeated_work_that_is_not_known_exactly(broken, says, ratio, bound, kinds):
    assert broken("repeated <= 1.05", repeating(ratio, bound)) == kinds
    is_open = bound in (Bound.AT_LEAST, Bound.UNKNOWN) and (ratio or 2) <= 1.05
    assert verdict("repeated <= 1.05; at-least-ok", repeating(ratio, bound)).holds == (is_open or not kinds)
    says([breach.message for breach in verdict("repeated <= 1.05", repeating(ratio, bound)).breaches])


@pytest.mark.parametrize("facts", [{"basis": "roofline"}, {"bound": Bound.AT_LEAST}, {"bound": Bound.UNKNOWN}])
@pytest.mark.parametrize("text", ["time <= 2ms", "exposed <= 50%", "exposed <= 1ms"])
def test_a_time_that_is_a_lower_bound_passes_no_limit(broken, facts, text):
    analysis = program(REDUCE, time=replace(PRICED, **facts))
    assert broken(text, analysis) == ["undecided"]
    assert verdict(f"{text}; at-least-ok", analysis).holds
    assert broken("time <= 1us; at-least-ok", analysis) == ["broken"]


@pytest.mark.parametrize(
    ("text", "exposed_us", "kinds"),
    [
        ("exposed <= 5%", 1350.0, ["undecided"]),
        ("exposed <= 100us", 1350.0, ["undecided"]),
        ("exposed <= 2ms", 1350.0, []),
        ("exposed <= 2ms", None, ["undecided"]),
        ("exposed <= 5%", 0.0, []),
        ("time <= 4ms", 1350.0, []),
    ],
)
def test_a_branch_that_takes_less_time_may_wait_longer(broken, text, exposed_us, kinds):
    longest = replace(PRICED, step_us=3040.0, exposed_us=8.0, bound=Bound.AT_MOST)
    waits = replace(REDUCE, executions=1, executions_bound=Bound.AT_MOST, exposed_us=exposed_us)
    assert broken(text, program(waits, time=longest)) == kinds


@pytest.mark.parametrize("text", ["no all-gather@fspd", "all-gather@X; no *@fspd", "wire@fspd <= 1MB/step"])
def test_an_axis_that_the_mesh_does_not_have(broken, text):
    analysis = program(replace(GATHER, axes=("X",)), mesh=("X=4", "fsdp=2"))
    assert "vacuous" in broken(text, analysis)


def test_an_axis_of_one_device(broken):
    analysis = program(REDUCE, mesh=("X=1", "Y=8"))
    assert broken("no all-gather@X", analysis) == ["vacuous"]
    assert verdict("no all-gather@*", analysis).holds


@pytest.mark.parametrize("text", ["none", "hbm <= 32GiB"])
def test_a_program_that_does_not_fit(says, text):
    unfit = program(memory=Memory(fits=False, peak_bytes=20 * 2**30, hbm_bytes=16 * 2**30))
    (breach,) = verdict(text, unfit).breaches
    says(breach.message)
    assert (breach.kind, breach.expected, breach.found) == (BreachKind.BROKEN, "16 GiB or less", "20 GiB")


def test_a_limit_above_the_memory_of_a_device_cannot_fail(says):
    fits = program(memory=Memory(fits=True, peak_bytes=2**30, hbm_bytes=16 * 2**30))
    (breach,) = verdict("hbm <= 100GiB", fits).breaches
    says(breach.message)
    assert (breach.kind, breach.expected, breach.found) == (BreachKind.VACUOUS, "16 GiB or less", "hbm <= 100GiB")
    assert verdict("hbm <= 16GiB", fits).holds
    assert verdict("hbm <= 100GiB", replace(fits, memory=Memory(peak_bytes=2**30))).holds  # the slice is not known


def test_a_mesh_that_is_not_known(broken):
    assert breaches("no all-gather@X", program(REDUCE, mesh=(), num_partitions=8)) != []
    nothing = replace(program(), mesh=None)
    assert broken("no all-gather@X", nothing) == ["undecided"]


@pytest.mark.parametrize("text", ["none", "no all-gather", "wire <= 1MB/step"])
def test_a_program_on_one_device_is_noticed(broken, text):
    alone = program(mesh=("X=1",), num_partitions=1)
    assert broken(text, alone) == ["vacuous"]
    assert breaches(text, replace(alone, mesh=None))[0][0] == "vacuous"
    assert verdict("hbm <= 1GiB", replace(alone, memory=Memory(peak_bytes=1))).holds


@pytest.mark.parametrize("text", ["none", "no all-gather", "wire <= 1MB/step; at-least-ok"])
def test_dead_code_is_noticed(broken, text):
    assert broken(text, program(outputs=()), "no outputs") == ["vacuous"]
    assert broken(text, program(arguments=(replace(ARRAY, used=False),)), "unused arguments") == ["vacuous"]
    assert verdict(text, program()).holds


def test_a_ban_on_a_file_that_is_not_there(says, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "attention.py").write_text("\n" * 12)
    for text, holds in (
        ('no all-gather in "model/attention.py"', True),
        ('no all-gather in "attention.py:12"', True),
        ('no all-gather in "attention.py:13"', False),
        ('no all-gather in "*tention.py"', True),
        ('no all-gather in "model/atention.py"', False),
        ('no all-reduce in "moe.py"', True),
    ):
        found = evaluate(parse_contract(text), BOTH, root=tmp_path)
        assert found.holds is holds, str(found)
    (breach,) = evaluate(parse_contract('no all-to-all in "atention.py:3"'), BOTH, root=tmp_path).breaches
    assert breach.kind is BreachKind.VACUOUS
    assert "atention.py" in says(breach.message)


def test_groups_of_one_device_move_nothing():
    assert verdict("none", program(replace(GATHER, axes=(), group_size=1, wire_bytes=0))).holds


TRIPS = 'trips "layers.py:40" = 16'


def test_the_users_word_for_a_trip_count(says, broken):
    analysis = program(UNREAD, unmodelled=(UNKNOWN,))
    found = verdict(f"all-gather@X x16; nothing else; {TRIPS}", analysis)
    assert found.holds, str(found)
    (remark,) = found.remarks
    assert TRIPS in remark
    assert remark in str(found)
    says(remark, "remark")
    assert verdict('all-gather@X x16; trips "%while.3" = 16', analysis).holds
    assert broken(f"all-gather@X x15; {TRIPS}", analysis) == ["broken"]
    assert not verdict(f"wire <= 25MB/step; {TRIPS}", analysis).holds
    assert verdict(f"wire <= 26MB/step; {TRIPS}", analysis).holds


def test_a_loop_that_may_not_run_is_known_at_most():
    analysis = program(replace(UNREAD, executions_bound=Bound.UNKNOWN), unmodelled=(UNKNOWN,))
    assert verdict(f"all-gather@X x16; {TRIPS}", analysis).holds


@pytest.mark.parametrize("place", ["layers.py:41", "%while.4", "other.py"])
def test_a_trip_count_for_no_loop(broken, place):
    text = f'all-gather@X x16; trips "{place}" = 16'
    assert broken(text, program(UNREAD, unmodelled=(UNKNOWN,))) == ["vacuous", "undecided"]


def test_two_loops_need_two_lines():
    inner = replace(UNKNOWN, instruction="while.4")
    both = program(replace(UNREAD, loops=("while.3", "while.4")), unmodelled=(UNKNOWN, inner))
    assert not verdict(f"all-gather@X; {TRIPS}", both).holds
    found = verdict(f'all-gather@X x32; {TRIPS}; trips "moe.py:91" = 2', both)
    assert found.holds, str(found)


def test_equivalent_spellings_are_equal_only_when_the_contract_says_so():
    gathered = replace(GATHER, axes=("Y",), payload_bytes=32_768, wire_bytes=16_384, executions=1, loops=())
    parts = program(SCATTER, gathered)
    assert not verdict("all-reduce@Y <= 32KiB; nothing else", parts).holds
    assert verdict("all-reduce@Y <= 32KiB x1; nothing else; equivalent", parts).holds
    assert not verdict("all-reduce@Y <= 16KiB; nothing else; equivalent", parts).holds
    halves = [
        replace(one, payload_bytes=16_384, wire_bytes=8_192, name=f"{one.name}.{at}")
        for one in (SCATTER, gathered)
        for at in "12"
    ]
    assert verdict("all-reduce@Y <= 16KiB x2; nothing else; equivalent", program(*halves)).holds
    assert not verdict("all-reduce@Y <= 32KiB x1; nothing else; equivalent", program(*halves)).holds
    whole = program(REDUCE)
    text = "reduce-scatter@Y <= 32KiB; all-gather@Y <= 32KiB; nothing else"
    assert not verdict(text, whole).holds
    assert verdict(f"{text}; equivalent", whole).holds
    assert not verdict("all-reduce@Y; nothing else; equivalent", program(SCATTER)).holds
    assert not verdict("reduce-scatter@Y; nothing else; equivalent", whole).holds


def test_permutes_of_a_collective_matmul():
    permute = replace(
        GATHER,
        kind=Kind.COLLECTIVE_PERMUTE,
        group_size=None,
        payload_bytes=8192,
        wire_bytes=8192,
        executions=1,
        loops=(),
    )
    permutes = [replace(permute, name=f"collective-permute.{index}") for index in range(3)]
    text = "all-gather@X <= 32KiB; nothing else"
    assert not verdict(text, program(*permutes)).holds
    assert verdict(f"{text}; equivalent", program(*permutes)).holds
    windowed = [replace(permute, name=f"collective-permute.{index}") for index in range(5)]
    assert verdict(f"{text}; equivalent", program(*windowed)).holds
    assert not verdict(f"{text}; equivalent", program(*windowed, replace(permute, name="one.more"))).holds
    assert verdict("reduce-scatter@X <= 32KiB x1; nothing else; equivalent", program(*windowed)).holds


def test_contracts_join():
    assert only(no("all-gather")).closed
    joined = parse_contract("all-reduce@Y") & parse_contract("no all-gather; equivalent")
    assert joined == parse_contract("all-reduce@Y; no all-gather; equivalent")


@pytest.mark.parametrize("text", ["equivalent", "at-least-ok", "equivalent; at-least-ok"])
def test_a_contract_that_says_nothing_fails(broken, text):
    assert "vacuous" in broken(text)


def test_an_empty_contract_in_toml_fails():
    (breach,) = evaluate(read_contract([]), BOTH).breaches
    assert (breach.kind, breach.found) == (BreachKind.VACUOUS, "nothing")


def test_dead_code_keeps_no_limit_on_memory_or_time(broken):
    dead = replace(program(), arguments=(replace(ARRAY, used=False),))
    assert broken("hbm <= 1GiB", replace(dead, memory=Memory(peak_bytes=10))) == ["vacuous"]


@pytest.mark.parametrize(
    "contract", [only(), no("all-gather", "Z"), no("all-to-all")], ids=["broken", "vacuous", "kept"]
)
def test_only_what_is_surely_broken_is_broken(contract):
    assert evaluate(contract, BOTH).broken is (contract == only())


@pytest.mark.parametrize("text", ["no all-to-all@X:(7)3", "no all-to-all@X:(4)1", "wire@*:(1)3 <= 1MB"])
def test_parts_of_axes_that_the_mesh_does_not_have(broken, text):
    assert broken(text) == ["vacuous"]
    assert broken("no all-to-all@X:(2)2") == []


@pytest.mark.parametrize("text", ["no all-to-all over dcn", "wire over dcn <= 1MB/step"])
def test_nothing_crosses_dcn_on_one_slice(broken, text):
    one = SliceFact(name="v5e:2x4", chip="v5e", chips=8, devices=8, slices=1, used_devices=8, chosen_by="user")
    assert broken(text, replace(BOTH, slice=one)) == ["vacuous"]
    assert evaluate(parse_contract(text), replace(BOTH, slice=replace(one, slices=2))).holds


def test_one_shift_to_a_neighbor_is_no_collective_matmul():
    shift = replace(GATHER, kind=Kind.COLLECTIVE_PERMUTE, payload_bytes=1024, wire_bytes=1024, executions=1)
    contract = parse_contract("all-gather@X <= 1MB; nothing else; equivalent")
    assert not evaluate(contract, program(shift)).holds
    assert evaluate(contract, program(replace(shift, executions=3))).holds


def test_a_limit_that_only_a_branch_would_break_is_not_surely_broken(broken):
    perhaps = replace(GATHER, executions_bound=Bound.AT_MOST)
    assert broken("wire <= 1MB/step", program(REDUCE, perhaps)) == ["undecided"]
    assert broken("wire <= 1MB/step", program(GATHER, perhaps), "surely") == ["broken"]


@pytest.mark.parametrize("clause", ["all-gather@X x6", "all-gather@X <= 13MB/step"])
def test_an_expectation_that_only_a_branch_would_exceed_is_not_surely_broken(broken, clause):
    perhaps = replace(GATHER, executions_bound=Bound.AT_MOST)
    assert broken(clause, program(GATHER, perhaps)) == ["undecided"]
    surely = program(GATHER, replace(GATHER, name="all-gather.9"), perhaps)
    assert broken(clause, surely, "surely") == ["broken"]


@pytest.mark.parametrize(
    ("bounds", "kind", "words"),
    [
        ((Bound.UNKNOWN,), "undecided", "perhaps 6"),
        ((Bound.AT_LEAST,), "broken", "at least 6"),
        ((Bound.AT_LEAST, Bound.AT_MOST), "broken", "at least 6"),
        ((Bound.EXACT, Bound.UNKNOWN), "broken", "at least 6"),
        ((Bound.AT_MOST, Bound.UNKNOWN), "undecided", "perhaps 12"),
        ((Bound.EXACT, Bound.AT_MOST), "broken", "up to 12"),
    ],
)
def test_a_count_without_an_upper_bound_is_never_up_to_anything(says, bounds, kind, words):
    gathers = [replace(GATHER, name=f"all-gather.{at}", executions_bound=bound) for at, bound in enumerate(bounds)]
    found, message = breaches("all-gather@X x5", program(*gathers))[-1]
    assert found == kind
    assert words in says(message)


def test_unknown_bytes_are_never_up_to_anything(broken):
    found = program(GATHER, replace(GATHER, name="all-gather.9", payload_bytes=None, wire_bytes=None))
    assert broken("none", found)[-1] == "broken"


def test_a_time_that_may_be_less_breaks_no_limit_surely(broken):
    analysis = program(REDUCE, time=replace(PRICED, bound=Bound.AT_MOST))
    assert broken("time <= 0.9ms", analysis) == ["undecided"]
    assert verdict("time <= 1ms", analysis).holds


def test_a_time_that_rests_on_unknown_operations_passes_no_limit(broken):
    unknown = UnknownOperation(what="custom-call to foo", count=1, bytes=8, time_us=10.0)
    analysis = program(REDUCE, time=replace(PRICED, unknown_operations=(unknown,)))
    assert broken("time <= 2ms", analysis) == ["undecided"]
    assert verdict("time <= 2ms; at-least-ok", analysis).holds
    little = replace(PRICED, unknown_operations=(replace(unknown, time_us=9.9),))
    assert verdict("time <= 2ms", program(REDUCE, time=little)).holds


def test_a_path_that_windows_wrote():
    frame = SourceFrame(file=r"C:\work\my model.py", line=12, function="f")
    there = program(replace(GATHER, source=(frame,)))
    for place in ("my model.py", "work/my model.py", "my model.py:12"):
        assert [kind for kind, _ in breaches(f'no all-gather in "{place}"', there)] == ["broken"]
    assert verdict('no all-gather in "model.py"', there).holds
    assert short_source(there.collectives[0].source) == "my model.py:12 in f"


def test_arrays_without_elements_are_noticed(broken):
    empty = replace(REDUCE, payload_bytes=0, wire_bytes=0)
    assert broken("all-reduce@Y <= 32KiB; nothing else", program(empty)) == ["vacuous"]
    assert verdict("all-reduce@Y; all-gather@X", program(empty, GATHER)).holds
    assert not verdict("all-reduce@Y <= 1B", program(replace(REDUCE, payload_bytes=None))).holds


# ---- by which operation


MAXIMUM = replace(REDUCE, reduction="maximum")
MIXED = replace(REDUCE, reduction=None)


def test_an_expectation_of_a_sum_takes_no_maximum(says, broken):
    assert verdict("all-reduce@Y by add x1; nothing else", program(REDUCE)).holds
    assert verdict("all-reduce@Y x1; nothing else", program(MAXIMUM)).holds
    failed = verdict("all-reduce@Y by add x1; nothing else", program(MAXIMUM))
    says(
        [breach.message for breach in failed.breaches] + [breach.accept for breach in failed.breaches if breach.accept]
    )
    assert broken("all-reduce@Y by add", program(MIXED)) == ["broken"]
    assert verdict(
        "all-reduce@Y by add; all-reduce@Y x1; nothing else", program(REDUCE, MAXIMUM)
    ).holds  # the narrowest


def test_a_ban_on_an_operation(broken):
    assert verdict("no all-reduce by maximum", program(REDUCE, GATHER)).holds
    assert broken("no all-reduce by maximum", program(MAXIMUM)) == ["broken"]
    assert broken("no all-* by maximum", program(MIXED)) == ["undecided"]


def test_equivalent_spellings_keep_the_operation():
    halves = SCATTER, replace(SCATTER, kind=Kind.ALL_GATHER, reduction=None)
    text = "equivalent; all-reduce@Y by {}; nothing else"
    assert verdict(text.format("add"), program(*halves)).holds
    assert not verdict(text.format("maximum"), program(*halves)).holds
