"""A program held against a contract: what holds, what breaks it, and what nobody can decide."""

from __future__ import annotations

from dataclasses import replace

import pytest
from contract_examples import ARRAY, GATHER, PRICED, REDUCE, SCATTER, program
from hypothesis import given
from hypothesis import strategies as st

from hloscope.analysis.model import Memory, SliceFact, SourceFrame, UnknownOperation, Unmodelled
from hloscope.analysis.places import short_source
from hloscope.analysis.totals import totals_of
from hloscope.analysis.vocabulary import Bound, Kind, Link
from hloscope.contracts import no, only
from hloscope.contracts.evaluate import evaluate
from hloscope.contracts.notation import parse_contract, read_contract
from hloscope.contracts.verdict import BreachKind

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


BROKEN = {
    "all-to-all": ["all-to-all is expected, and there is none"],
    "all-reduce@X": ["all-reduce@X is expected, and there is none"],
    "all-reduce@(X,Y)": ["all-reduce@(X,Y) is expected, and there is none"],
    'all-gather@X in "attention.py"': ['all-gather@X in "attention.py" is expected, and there is none'],
    "all-reduce@Y <= 32767B": ["all-reduce@Y moves 32.8 kB each time, more than 32767B"],
    "all-gather@X <= 12MB/step": ["all-gather@X moves 12.6 MB per step, more than 12MB"],
    "all-gather@X x5": ["all-gather@X runs 6 times per step, more than 5"],
    "none": ["all-reduce@Y 32.8 kB x1 is not in the contract", "all-gather@X 2.10 MB x6 is not in the contract"],
    "all-reduce@Y; nothing else": ["all-gather@X 2.10 MB x6 is not in the contract"],
    "no all-gather": ["all-gather@X 2.10 MB x6 is there, against the contract"],
    "no *@X": ["all-gather@X 2.10 MB x6 is there, against the contract"],
    "no *": [
        "all-reduce@Y 32.8 kB x1 is there, against the contract",
        "all-gather@X 2.10 MB x6 is there, against the contract",
    ],
    "wire@X <= 9MB/step": ["9.44 MB per step, more than wire@X <= 9MB/step"],
    "payload <= 1kB": ["12.6 MB per step, more than payload <= 1kB/step"],
}


@pytest.mark.parametrize("text", BROKEN)
def test_what_breaks(text):
    assert breaches(text) == [("broken", message) for message in BROKEN[text]]


def test_the_failure_text():
    assert (
        str(verdict("all-reduce@Y <= 16KiB; nothing else"))
        == """\
model.py:step breaks its contract in 2 ways: all-reduce@Y <= 16KiB; nothing else

error[contract-broken]: all-reduce@Y moves 32.8 kB each time, more than 16KiB
  --> mlp.py:7 in block: 32.8 kB, %all-reduce.1 at HLO line 10
   = expected: all-reduce@Y <= 16KiB
   =    found: all-reduce@Y 32.8 kB x1
   = to accept it: all-reduce@Y <= 32KiB x1

error[contract-broken]: all-gather@X 2.10 MB x6 is not in the contract
  --> moe.py:91 in expert: 2.10 MB x 6, %all-gather.8 at HLO line 20
      why: W is sharded over X
   = expected: nothing else than all-reduce@Y <= 16KiB
   =    found: all-gather@X 2.10 MB x6
   = to accept it: all-gather@X <= 2MiB x6"""
    )


def test_the_failure_text_with_times():
    timed = replace(GATHER, time_us=73.1, exposed_us=70.0)
    assert "2.10 MB x 6, 73.1 us each (70 us exposed)" in str(verdict("none", program(timed)))


def test_findings_point_at_the_source():
    (finding,) = verdict("no all-gather").findings
    assert (finding.rule, finding.severity, finding.source, finding.line) == (
        "contract-broken",
        "error",
        "/home/me/model/moe.py:91",
        20,
    )
    assert finding.fix == "to accept it: all-gather@X <= 2MiB x6, in place of no all-gather"


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


@given(st.lists(COLLECTIVES, min_size=1, max_size=5))
def test_a_raised_limit_holds(collectives):
    analysis = program(*collectives)
    for text in ("wire <= 0B", "payload@X <= 0B", "wire@(X,Y) <= 0B"):
        for breach in verdict(text, analysis).breaches:
            if breach.kind is BreachKind.BROKEN:
                assert verdict(breach.accept, analysis).holds


def test_a_ban_and_a_limit_cover_products_and_parts_of_axes_and_an_expectation_does_not():
    product = replace(GATHER, axes=("X", "Y"))
    part = replace(GATHER, axes=("X:(1)2",))
    for one in (product, part):
        assert breaches("no all-gather@X", program(one)) == [
            ("broken", f"{'all-gather@(X,Y)' if one is product else 'all-gather@X:(1)2'} 2.10 MB x6 is there, "
             "against the contract")
        ]  # fmt: skip
        assert not verdict("wire@X <= 1MB/step", program(one)).holds
    assert breaches("all-gather@X", program(product)) == [("broken", "all-gather@X is expected, and there is none")]
    assert verdict("all-gather@X", program(part)).holds
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
def test_a_contract_over_what_was_not_understood_fails_and_says_so(text):
    analysis = program(UNREAD, unmodelled=(UNKNOWN,))
    failed = verdict(text, analysis)
    assert [(breach.kind, breach.message) for breach in failed.breaches] == [
        (BreachKind.UNDECIDED, "trip count of %while.3 cannot be read, so the contract cannot be decided")
    ]
    assert failed.breaches[0].accept == "at-least-ok"
    passed = verdict(f"{text}; at-least-ok", analysis)
    assert passed.holds
    assert passed.remarks == ("at-least-ok: what was not understood is not held against the contract",)


def test_a_contract_over_opaque_communication_fails():
    opaque = replace(
        GATHER, kind=Kind.OPAQUE, name="kernel", axes=None, groups=(), payload_bytes=None, wire_bytes=None, executions=1
    )
    analysis = program(opaque)
    assert [kind for kind, _ in breaches("no all-gather", analysis)] == ["undecided", "undecided"]
    assert [kind for kind, _ in breaches("wire@X <= 1GB/step", analysis)] == ["undecided", "undecided"]
    assert verdict("no all-gather; at-least-ok", analysis).holds
    assert not verdict("none; at-least-ok", analysis).holds


def test_totals_known_at_least_only_fail():
    analysis = program(GATHER, totals=replace(totals_of((GATHER,)), bound=Bound.AT_LEAST))
    assert breaches("all-gather@X", analysis) == [("undecided", "what moves is not known exactly")]


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


def test_an_unknown_limit_fails():
    for text, reason in (
        ("hbm <= 14GiB", "HLO text does not tell what the compiler allocates"),
        ("time <= 1ms", "the step was not priced, so its time is not known"),
        ("exposed <= 5%", "the step was not priced, so its time is not known"),
        ("exposed <= 5us; at-least-ok", "the step was not priced, so its time is not known"),
    ):
        ((kind, message),) = breaches(text)
        assert kind == "undecided"
        assert message.endswith(f"cannot be decided: {reason}")


def test_memory_and_time():
    analysis = program(REDUCE, memory=Memory(peak_bytes=13 * 2**30), time=PRICED)
    assert verdict("hbm <= 14GiB; time <= 1ms; exposed <= 10%; exposed <= 100us", analysis).holds
    failed = verdict("hbm <= 12GiB; time <= 0.9ms; exposed <= 5%; exposed <= 99us", analysis)
    assert {(breach.message, breach.accept) for breach in failed.breaches} == {
        ("hbm is 13 GiB, more than 12GiB", "hbm <= 13GiB"),
        ("time is 1 ms, more than 900us", "time <= 1ms"),
        ("exposed is 10% of 1 ms, more than 5%", "exposed <= 10%"),
        ("exposed is 100 us, more than 99us", "exposed <= 100us"),
    }


@pytest.mark.parametrize("facts", [{"basis": "roofline"}, {"bound": Bound.AT_LEAST}, {"bound": Bound.UNKNOWN}])
@pytest.mark.parametrize("text", ["time <= 2ms", "exposed <= 50%", "exposed <= 1ms"])
def test_a_time_that_is_a_lower_bound_passes_no_limit(facts, text):
    analysis = program(REDUCE, time=replace(PRICED, **facts))
    assert breaches(text, analysis) == [("undecided", f"{text} cannot be decided: the predicted time is a lower bound")]
    assert verdict(f"{text}; at-least-ok", analysis).holds
    assert breaches("time <= 1us; at-least-ok", analysis) == [("broken", "time is 1 ms, more than 1us")]


@pytest.mark.parametrize("text", ["no all-gather@fspd", "all-gather@X; no *@fspd", "wire@fspd <= 1MB/step"])
def test_an_axis_that_the_mesh_does_not_have(text):
    analysis = program(replace(GATHER, axes=("X",)), mesh=("X=4", "fsdp=2"))
    assert ("vacuous", "the mesh has no axis fspd: did you mean fsdp?") in breaches(text, analysis)


def test_an_axis_of_one_device():
    analysis = program(REDUCE, mesh=("X=1", "Y=8"))
    assert breaches("no all-gather@X", analysis) == [
        ("vacuous", "the mesh axis X has size 1, so nothing can move over it")
    ]
    assert verdict("no all-gather@*", analysis).holds


@pytest.mark.parametrize("text", ["none", "hbm <= 32GiB"])
def test_a_program_that_does_not_fit(text):
    unfit = program(memory=Memory(fits=False, peak_bytes=20 * 2**30, hbm_bytes=16 * 2**30))
    (breach,) = verdict(text, unfit).breaches
    assert breach.message == "the program does not fit in the memory of a device, so it cannot run"
    assert (breach.kind, breach.expected, breach.found) == (BreachKind.BROKEN, "16 GiB or less", "20 GiB")


def test_a_mesh_that_is_not_known():
    assert breaches("no all-gather@X", program(REDUCE, mesh=(), num_partitions=8)) != []
    nothing = replace(program(), mesh=None)
    assert breaches("no all-gather@X", nothing) == [
        ("undecided", "the contract names mesh axes, and the program's mesh is not known")
    ]


@pytest.mark.parametrize("text", ["none", "no all-gather", "wire <= 1MB/step"])
def test_a_program_on_one_device_is_noticed(text):
    alone = program(mesh=("X=1",), num_partitions=1)
    assert breaches(text, alone) == [
        ("vacuous", "the program runs on one device, so no contract on communication can fail")
    ]
    assert breaches(text, replace(alone, mesh=None))[0][0] == "vacuous"
    assert verdict("hbm <= 1GiB", replace(alone, memory=Memory(peak_bytes=1))).holds


@pytest.mark.parametrize("text", ["none", "no all-gather", "wire <= 1MB/step; at-least-ok"])
def test_dead_code_is_noticed(text):
    assert breaches(text, program(outputs=())) == [("vacuous", "the program computes nothing: it returns no array")]
    assert breaches(text, program(arguments=(replace(ARRAY, used=False),))) == [
        ("vacuous", "the compiled program reads none of its arguments: its code is dead")
    ]
    assert verdict(text, program()).holds


def test_a_ban_on_a_file_that_is_not_there(tmp_path):
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
    assert (breach.kind, breach.message) == (
        BreachKind.VACUOUS,
        f"there is no file atention.py in {tmp_path}, so nothing can come from it",
    )


def test_groups_of_one_device_move_nothing():
    assert verdict("none", program(replace(GATHER, axes=(), group_size=1, wire_bytes=0))).holds


TRIPS = 'trips "layers.py:40" = 16'


def test_the_users_word_for_a_trip_count():
    analysis = program(UNREAD, unmodelled=(UNKNOWN,))
    found = verdict(f"all-gather@X x16; nothing else; {TRIPS}", analysis)
    assert found.holds, str(found)
    assert found.remarks == (f"{TRIPS} is the contract's word: it was not read from the program",)
    assert TRIPS in str(found)
    assert verdict('all-gather@X x16; trips "%while.3" = 16', analysis).holds
    assert breaches(f"all-gather@X x15; {TRIPS}", analysis) == [
        ("broken", "all-gather@X runs 16 times per step, more than 15")
    ]
    assert not verdict(f"wire <= 25MB/step; {TRIPS}", analysis).holds
    assert verdict(f"wire <= 26MB/step; {TRIPS}", analysis).holds


def test_a_loop_that_may_not_run_is_known_at_most():
    analysis = program(replace(UNREAD, executions_bound=Bound.UNKNOWN), unmodelled=(UNKNOWN,))
    assert verdict(f"all-gather@X x16; {TRIPS}", analysis).holds


@pytest.mark.parametrize("place", ["layers.py:41", "%while.4", "other.py"])
def test_a_trip_count_for_no_loop(place):
    found = breaches(f'all-gather@X x16; trips "{place}" = 16', program(UNREAD, unmodelled=(UNKNOWN,)))
    assert found == [
        ("vacuous", f"no loop with collectives and an unknown trip count is at {place}"),
        ("undecided", "trip count of %while.3 cannot be read, so the contract cannot be decided"),
    ]


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
def test_a_contract_that_says_nothing_fails(text):
    assert ("vacuous", "the contract says nothing that a program could break") in breaches(text)


def test_an_empty_contract_in_toml_fails():
    (breach,) = evaluate(read_contract([]), BOTH).breaches
    assert (breach.kind, breach.found) == (BreachKind.VACUOUS, "nothing")


def test_dead_code_keeps_no_limit_on_memory_or_time():
    dead = replace(program(), arguments=(replace(ARRAY, used=False),))
    found = breaches("hbm <= 1GiB", replace(dead, memory=Memory(peak_bytes=10)))
    assert found == [("vacuous", "the compiled program reads none of its arguments: its code is dead")]


@pytest.mark.parametrize(
    "contract", [only(), no("all-gather", "Z"), no("all-to-all")], ids=["broken", "vacuous", "kept"]
)
def test_only_what_is_surely_broken_is_broken(contract):
    assert evaluate(contract, BOTH).broken is (contract == only())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no all-to-all@X:(7)3", "no mesh axis has a part X:(7)3, so nothing can move over it"),
        ("no all-to-all@X:(4)1", "no mesh axis has a part X:(4)1, so nothing can move over it"),
        ("wire@*:(1)3 <= 1MB", "no mesh axis has a part *:(1)3, so nothing can move over it"),
        ("no all-to-all@X:(2)2", None),
    ],
)
def test_parts_of_axes_that_the_mesh_does_not_have(text, message):
    found = evaluate(parse_contract(text), BOTH)
    assert [breach.message for breach in found.breaches] == ([] if message is None else [message])


@pytest.mark.parametrize("text", ["no all-to-all over dcn", "wire over dcn <= 1MB/step"])
def test_nothing_crosses_dcn_on_one_slice(text):
    one = SliceFact(name="v5e:2x4", chip="v5e", chips=8, devices=8, slices=1, used_devices=8, chosen_by="user")
    found = evaluate(parse_contract(text), replace(BOTH, slice=one))
    assert [(breach.kind, breach.message) for breach in found.breaches] == [
        ("contract-vacuous", "the program runs on one slice, so nothing can cross DCN")
    ]
    assert evaluate(parse_contract(text), replace(BOTH, slice=replace(one, slices=2))).holds


def test_one_shift_to_a_neighbour_is_no_collective_matmul():
    shift = replace(GATHER, kind=Kind.COLLECTIVE_PERMUTE, payload_bytes=1024, wire_bytes=1024, executions=1)
    contract = parse_contract("all-gather@X <= 1MB; nothing else; equivalent")
    assert not evaluate(contract, program(shift)).holds
    assert evaluate(contract, program(replace(shift, executions=3))).holds


def test_a_limit_that_only_a_branch_would_break_is_not_surely_broken():
    perhaps = replace(GATHER, executions_bound=Bound.AT_MOST)
    assert breaches("wire <= 1MB/step", program(REDUCE, perhaps)) == [
        ("undecided", "up to 9.47 MB per step, more than wire <= 1MB/step")
    ]
    assert breaches("wire <= 1MB/step", program(GATHER, perhaps)) == [
        ("broken", "up to 18.9 MB per step, more than wire <= 1MB/step")
    ]


@pytest.mark.parametrize(
    ("clause", "words"),
    [
        ("all-gather@X x6", "runs up to 12 times per step, more than 6"),
        ("all-gather@X <= 13MB/step", "moves up to 25.2 MB per step, more than 13MB"),
    ],
)
def test_an_expectation_that_only_a_branch_would_exceed_is_not_surely_broken(clause, words):
    perhaps = replace(GATHER, executions_bound=Bound.AT_MOST)
    assert breaches(clause, program(GATHER, perhaps)) == [("undecided", f"all-gather@X {words}")]
    surely = program(GATHER, replace(GATHER, name="all-gather.9"), perhaps)
    assert [kind for kind, _ in breaches(clause, surely)] == ["broken"]


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ((Bound.UNKNOWN,), ("undecided", "runs perhaps 6 times")),
        ((Bound.AT_LEAST,), ("broken", "runs at least 6 times")),
        ((Bound.AT_LEAST, Bound.AT_MOST), ("broken", "runs at least 6 times")),
        ((Bound.EXACT, Bound.UNKNOWN), ("broken", "runs at least 6 times")),
        ((Bound.AT_MOST, Bound.UNKNOWN), ("undecided", "runs perhaps 12 times")),
        ((Bound.EXACT, Bound.AT_MOST), ("broken", "runs up to 12 times")),
    ],
)
def test_a_count_without_an_upper_bound_is_never_up_to_anything(bounds, words):
    gathers = [replace(GATHER, name=f"all-gather.{at}", executions_bound=bound) for at, bound in enumerate(bounds)]
    kind, what = words
    assert breaches("all-gather@X x5", program(*gathers))[-1] == (kind, f"all-gather@X {what} per step, more than 5")


def test_unknown_bytes_are_never_up_to_anything():
    found = program(GATHER, replace(GATHER, name="all-gather.9", payload_bytes=None, wire_bytes=None))
    assert breaches("none", found)[-1] == ("broken", "all-gather@X unknown bytes x12 is not in the contract")


def test_a_time_that_may_be_less_breaks_no_limit_surely():
    analysis = program(REDUCE, time=replace(PRICED, bound=Bound.AT_MOST))
    assert breaches("time <= 0.9ms", analysis) == [("undecided", "time is 1 ms, more than 900us")]
    assert verdict("time <= 1ms", analysis).holds


def test_a_time_that_rests_on_unknown_operations_passes_no_limit():
    unknown = UnknownOperation(what="custom-call to foo", count=1, bytes=8, time_us=10.0)
    analysis = program(REDUCE, time=replace(PRICED, unknown_operations=(unknown,)))
    told = "time <= 2ms cannot be decided: custom-call to foo is priced without knowing what it does"
    assert breaches("time <= 2ms", analysis) == [("undecided", told)]
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


def test_arrays_without_elements_are_noticed():
    empty = replace(REDUCE, payload_bytes=0, wire_bytes=0)
    told = "every collective is of an array without elements, so nothing can move"
    assert breaches("all-reduce@Y <= 32KiB; nothing else", program(empty)) == [("vacuous", told)]
    assert verdict("all-reduce@Y; all-gather@X", program(empty, GATHER)).holds
    assert not verdict("all-reduce@Y <= 1B", program(replace(REDUCE, payload_bytes=None))).holds
