"""The notation of contracts: what it reads, what it prints, and what it says of mistakes."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.analysis.vocabulary import Kind, Link
from hloscope.contracts import (
    Contract,
    all_gather,
    all_reduce,
    at_most,
    collective,
    exposed,
    hbm,
    no,
    none,
    only,
    time,
    trips,
)
from hloscope.contracts.model import Ban, Expectation, Limit, Quantity, Selector, Trips, format_contract
from hloscope.contracts.notation import parse_contract, parse_selector, read_contract
from hloscope.contracts.quantities import BYTE_UNITS, MILLIONTHS, NANOSECONDS, format_amount, parse_amount, rounded_up
from hloscope.errors import NotationError

PLACE = 'write "model/attention.py" or "moe.py:40"'
SPELLINGS = [
    (all_reduce("Y"), "all-reduce@Y"),
    (all_reduce("Y", max_bytes="32 KiB", count=2), "all-reduce@Y <= 32KiB x2"),
    (
        only(all_gather(("X", "Y"), max_bytes_per_step="1.5 MB"), at_least_ok=True),
        "all-gather@(Y, X) <= 1_500kB / step\nnothing else\nat-least-ok",
    ),
    (none(), "none"),
    (no("all-gather", "fsdp", source="model/attention.py"), 'no all-gather@fsdp in "model/attention.py"'),
    (no("all-*", link="dcn"), "no all-* over dcn"),
    (at_most(wire_bytes="6 MB", axis="fsdp"), "wire@fsdp <= 6MB/step"),
    (at_most(payload_bytes=6_000_000), "payload <= 6MB"),
    (hbm(max="14 GiB") & time(max="1.2 ms") & exposed(max="5%"), "hbm <= 14GiB; time <= 1200us; exposed <= 5.0 %"),
    (exposed(max="80 us"), "exposed <= 0.08ms"),
    (
        trips("moe.py:40", 16) & only(collective("*", "X"), equivalent=True),
        "trips 'moe.py:40' = 16; *@X; nothing else; equivalent",
    ),
]


@pytest.mark.parametrize(("python", "line"), SPELLINGS, ids=[line for _, line in SPELLINGS])
def test_python_and_text_are_equal(python, line):
    assert parse_contract(line) == python
    assert read_contract(line) == python
    assert read_contract(line.replace("\n", ";").split(";")) == python
    assert parse_contract(str(python)) == python


def test_the_text_in_place_of_a_table_is_a_contract():
    with pytest.raises(NotationError) as caught:
        read_contract({"expect": [{"kind": "all-reduce", "axes": "Y"}]})
    said = tomllib.loads(caught.value.fix.partition(": ")[2])["contract"]
    assert read_contract(said) == only(all_reduce("Y", max_bytes="32 KiB", count=2)) & no("all-gather", "X") & hbm(
        max="14 GiB"
    ) & trips("moe.py:40", 16)


def test_the_order_and_repetition_of_clauses_mean_nothing():
    assert parse_contract("no all-gather; all-reduce@Y; no all-gather") == no("all-gather") & all_reduce("Y")
    assert all_reduce(("X", "Y")) == all_reduce(("Y", "X"))


def test_comments_and_blank_lines():
    assert parse_contract("\n# what training needs\nall-reduce@Y # gradients\n\n;none-of-these\n"[:-16]) == all_reduce(
        "Y"
    )


ERRORS = {
    "all-gahter@X": """\
error: there is no kind of collective 'all-gahter'
  --> contract, column 1
   | all-gahter@X
   | ^
   = fix: did you mean all-gather?""",
    "hmb <= 14GiB": """\
error: there is no kind of collective 'hmb'
  --> contract, column 1
   | hmb <= 14GiB
   | ^
   = fix: did you mean hbm?""",
    "all-reduce@Y <= 32": """\
error: the amount 32 has no unit
  --> contract, column 19
   | all-reduce@Y <= 32
   |                   ^
   = fix: write, for example, 32KiB or 6MB""",
    "hbm <= 1GiB\nall-reduce@Y <= 32Kb x2": """\
error: unknown unit 'Kb'
  --> contract, line 2, column 19
   | all-reduce@Y <= 32Kb x2
   |                   ^
   = fix: did you mean KiB or kB?""",
    "time <= 3h": """\
error: unknown unit 'h'
  --> contract, column 10
   | time <= 3h
   |          ^
   = fix: use one of ns, us, ms, s""",
    "wire <= 0.3B": """\
error: 0.3B is no whole number of B
  --> contract, column 9
   | wire <= 0.3B
   |         ^
   = fix: give it in B: 1B""",
    "all-reduce@ <= 3B": """\
error: this is no contract
  --> contract, column 13
   | all-reduce@ <= 3B
   |             ^
   = why: "<=" does not belong here; expected a mesh axis or "("
   = fix: write, for example, all-reduce@Y <= 32KiB x2""",
    "only all-reduce@Y": """\
error: this is no contract
  --> contract, column 6
   | only all-reduce@Y
   |      ^
   = why: "all-reduce@Y" does not belong here; \
expected "x" and a count, "@", "over", "in", "<=" or the end of the clause
   = fix: write all-reduce@Y; nothing else""",
    "all-reduce@Y; all-reduce@Y <= 3kB": """\
error: all-reduce@Y is expected twice
  --> contract, column 15
   | all-reduce@Y; all-reduce@Y <= 3kB
   |               ^
   = why: each collective is held against one expectation
   = fix: join the two, or tell them apart by their place: in "file.py:12\"""",
    'trips "a.py:1" = 0': """\
error: a loop of no trips moves nothing
  --> contract, column 18
   | trips "a.py:1" = 0
   |                  ^
   = fix: give 1 trip or more""",
    'trips "a.py:1" = 2\ntrips "a.py:1" = 3': """\
error: the trips of a.py:1 are given twice
  --> contract, line 2, column 7
   | trips "a.py:1" = 3
   |       ^
   = fix: keep one of them""",
    "none; all-gather": """\
error: the contract says none, and expects a collective
  --> contract, column 1
   | none; all-gather
   | ^
   = fix: for "no others than these" write: nothing else""",
    'all-gather in "none.py"; none': """\
error: the contract says none, and expects a collective
  --> contract, column 26
   | all-gather in "none.py"; none
   |                          ^
   = fix: for "no others than these" write: nothing else""",
    "hbm@X <= 3GB": """\
error: hbm belongs to a device, not to an axis or a network
  --> contract, column 1
   | hbm@X <= 3GB
   | ^
   = fix: write hbm <= …, or wire@AXIS <= …""",
    "hbm <= 3GB/step": """\
error: hbm is a peak, which no step adds to, not an amount per step
  --> contract, column 11
   | hbm <= 3GB/step
   |           ^
   = fix: leave out /step""",
    "exposed <= 5%/step": """\
error: exposed is a share of the step, not an amount per step
  --> contract, column 14
   | exposed <= 5%/step
   |              ^
   = fix: leave out /step""",
    "all-reduce@(X,Y": """\
error: this is no contract
  --> contract, column 16
   | all-reduce@(X,Y
   |                ^
   = why: it ends here; expected ")" or ","
   = fix: write, for example, all-reduce@Y <= 32KiB x2""",
    "all-reduce@Y <=\nhbm <= 1GB": """\
error: this is no contract
  --> contract, line 1, column 16
   | all-reduce@Y <=
   |                ^
   = why: the clause ends here; expected an amount with its unit
   = fix: write, for example, all-reduce@Y <= 32KiB x2""",
    "wier@X <= 3MB/step now": """\
error: this is no contract
  --> contract, column 20
   | wier@X <= 3MB/step now
   |                    ^
   = why: "now" does not belong here; expected "x" and a count or the end of the clause
   = fix: did you mean wire?""",
    "  ": """\
error: an empty contract
  --> contract
   = fix: write, for example, all-reduce@Y <= 32KiB x2""",
}


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("all-gather@X,Y <= 3kB", "all-gather@(X,Y) <= 3kB"),
        ("wire@Y,X <= 3kB", "wire@(X,Y) <= 3kB/step"),
        ("no all-gather@X over dcn in model/a.py:12", 'no all-gather@X over dcn in "model/a.py:12"'),
        ("all-gather in a.py <= 3kB x2; hbm <= 1GB", "all-gather in 'a.py' <= 3kB x2; hbm <= 1GB"),
    ],
)
def test_brackets_and_quotes_may_be_left_out(text, other):
    assert parse_contract(text) == parse_contract(other)


def test_a_selector_alone():
    assert parse_selector('all-*@(X,Y) over dcn in "a.py"', where="here") == Selector(
        kind="all-*", axes=("X", "Y"), link=Link.DCN, source="a.py"
    )
    with pytest.raises(NotationError) as caught:
        parse_selector("all-gather <= 3kB", where="here")
    assert str(caught.value) == (
        "error: this names no collectives\n  --> here, column 12\n   | all-gather <= 3kB\n   |            ^\n"
        '   = why: "<=" does not belong here\n'
        '   = fix: write, for example, all-gather@(X,Y) in "model/attention.py"'
    )


@pytest.mark.parametrize("text", ERRORS)
def test_mistakes_in_the_notation(text):
    with pytest.raises(NotationError) as caught:
        parse_contract(text)
    assert str(caught.value) == ERRORS[text]


@pytest.mark.parametrize(
    ("build", "what", "fix"),
    [
        (lambda: collective("all_gather"), "there is no kind of collective 'all_gather'", "did you mean all-gather?"),
        (lambda: no("all-gather", link="pcie"), "there is no link 'pcie'", "use ici or dcn"),
        (lambda: all_reduce("Y", max_bytes="32"), "the amount 32 has no unit", "write, for example, 32KiB or 6MB"),
        (
            lambda: all_reduce("Y", max_bytes=-1),
            "max_bytes is -1",
            'write max_bytes="32 KiB", or a whole number of bytes',
        ),
        (
            lambda: all_reduce("Y", count="2"),
            "count is '2'",
            "give a whole number of executions, 0 or more",
        ),
        (lambda: trips("moe.py:40", 0), "trips is 0", "give a whole number of executions, 1 or more"),
        (lambda: time(max=5), "time is limited by 5, without a unit", 'write time(max="1.2 ms")'),
        (at_most, "at_most limits nothing", 'write at_most(wire_bytes="6 MB", axis="fsdp")'),
        (
            lambda: all_reduce("Y", max_bytes=1, max_bytes_per_step=2),
            "max_bytes and max_bytes_per_step are both given",
            "keep one of them",
        ),
        (
            lambda: only(all_reduce("Y"), all_reduce("Y", count=2)),
            "all-reduce@Y is expected twice",
            'join the two, or tell them apart by their place: in "file.py:12"',
        ),
        (lambda: no("all-gather", ""), "axes cannot be ''", 'write "X", or ("X", "Y") for their product'),
        (lambda: no("all-gather", ()), "axes cannot be ()", 'write "X", or ("X", "Y") for their product'),
        (lambda: no("all-gather", "X Y"), "axes cannot be 'X Y'", 'write "X", or ("X", "Y") for their product'),
        (lambda: no("all-gather", 3), "axes cannot be 3", 'write "X", or ("X", "Y") for their product'),
        (lambda: no("all-gather", source=" "), "' ' is no place in the code", PLACE),
        (lambda: no("all-gather", source=3), "3 is no place in the code", PLACE),
        (lambda: trips("a\nb.py:3", 2), "'a\\nb.py:3' is no place in the code", PLACE),
        (
            lambda: no(None),
            "there is no kind of collective None",
            f"use one of {', '.join(Kind)}, or a pattern such as all-*",
        ),
    ],
)
def test_mistakes_in_python(build, what, fix):
    with pytest.raises(NotationError) as caught:
        build()
    assert (caught.value.what, caught.value.fix) == (what, fix)


@pytest.mark.parametrize(
    ("toml", "what", "where", "fix"),
    [
        ("3", "a contract cannot be 3", "target step", 'write ["all-reduce@Y", "nothing else"]'),
        ("[3]", "3 is no line of a contract", "target step", 'write "all-reduce@Y <= 32KiB"'),
        (
            "{ only = true, expect = [{ kind = 'all-reduce', axes = 'Y' }] }",
            "a contract is text, and this is a table",
            "target step",
            'write its clauses as text: contract = ["all-reduce@Y <= 32KiB x2", "no all-gather@X", "hbm <= 14GiB", '
            '\'trips "moe.py:40" = 16\', "nothing else"]',
        ),
        (
            "['all-reduce', 'al-reduce']",
            "there is no kind of collective 'al-reduce'",
            "target step, entry 2, column 1",
            "did you mean all-reduce?",
        ),
    ],
)
def test_mistakes_in_toml(toml, what, where, fix):
    with pytest.raises(NotationError) as caught:
        read_contract(tomllib.loads(f"c = {toml}")["c"], where="target step")
    assert (caught.value.what, caught.value.where, caught.value.fix) == (what, where, fix)


@given(st.integers(0, 10**18), st.sampled_from([BYTE_UNITS, NANOSECONDS, MILLIONTHS]))
def test_amounts_print_and_read_back(amount, units):
    assert parse_amount(format_amount(amount, units), units, where="") == amount


@given(st.integers(0, 10**15))
def test_a_rounded_amount_is_never_too_small(amount):
    assert amount <= rounded_up(amount) <= amount * 1.01 + 1


@pytest.mark.parametrize(("amount", "text"), [(32768, "32KiB"), (6_000_000, "6MB"), (1_572_864, "1.5MiB"), (0, "0B")])
def test_amounts_are_short(amount, text):
    assert format_amount(amount, BYTE_UNITS) == text


NAMES = st.from_regex(r"[A-Za-z_]\w{0,6}", fullmatch=True)
AXES = st.none() | st.lists(NAMES | st.just("*") | NAMES.map(lambda name: f"{name}:(1)2"), min_size=1, max_size=3).map(
    tuple
)
LINKS = st.sampled_from([None, Link.ICI, Link.DCN])
SIZES = st.none() | st.integers(0, 10**15)
PLACES = st.from_regex(r"[\w/*. -]{1,12}(:\d{1,3})?", fullmatch=True).filter(lambda text: "\n" not in text)
SELECTORS = st.builds(
    Selector,
    kind=st.sampled_from([*map(str, Kind), "*", "all-*", "*-permute"]),
    axes=AXES,
    link=LINKS,
    source=st.none() | PLACES,
)
EXPECTATIONS = st.builds(
    lambda selector, size, per_step, count: Expectation(
        selector=selector,
        max_bytes=None if per_step else size,
        max_bytes_per_step=size if per_step else None,
        max_count=count,
    ),
    SELECTORS,
    SIZES,
    st.booleans(),
    st.none() | st.integers(0, 10**6),
)
LIMITS = st.builds(
    Limit,
    quantity=st.sampled_from([Quantity.WIRE, Quantity.PAYLOAD]),
    most=st.integers(0, 10**15),
    axes=AXES,
    link=LINKS,
) | st.builds(
    lambda quantity, most, share: Limit(quantity=quantity, most=most, share=share and quantity is Quantity.EXPOSED),
    st.sampled_from([Quantity.HBM, Quantity.TIME, Quantity.EXPOSED]),
    st.integers(0, 10**12),
    st.booleans(),
)
CONTRACTS = st.builds(
    Contract,
    clauses=st.tuples(
        st.lists(EXPECTATIONS, max_size=3, unique_by=lambda one: one.selector),
        st.lists(st.builds(Ban, selector=SELECTORS), max_size=2),
        st.lists(LIMITS, max_size=2),
        st.lists(
            st.builds(Trips, source=PLACES, count=st.integers(1, 99)), max_size=2, unique_by=lambda one: one.source
        ),
    ).map(lambda parts: tuple(clause for part in parts for clause in part)),
    closed=st.booleans(),
    equivalent=st.booleans(),
    at_least_ok=st.booleans(),
).filter(lambda contract: contract != Contract())


@pytest.mark.parametrize("axis", ["a b", "a-b", "a.b", "a b:(1)2"])
def test_axes_whose_names_need_quotes_have_them(axis):
    contract = parse_contract(f"all-gather@'{axis}'; no all-reduce@(x,\"{axis}\"); wire@'{axis}' <= 6MB/step")
    expectation, ban, limit = contract.clauses
    assert (expectation.selector.axes, sorted(ban.selector.axes), limit.axes) == ((axis,), sorted(("x", axis)), (axis,))
    assert f'all-gather@"{axis}"' in format_contract(contract)
    assert parse_contract(format_contract(contract)) == contract


@given(CONTRACTS)
def test_printed_contracts_read_back(contract):
    assert parse_contract(format_contract(contract)) == contract
    assert parse_contract(format_contract(contract).replace("; ", "\n")) == contract


@given(st.text(alphabet='al-reduce@Y<=32KiBx(),; no"in*over/step\n#', max_size=40))
def test_any_text_is_a_contract_or_a_notation_error(text):
    try:
        contract = parse_contract(text)
    except NotationError as error:
        contract, told = None, error
    if contract is None:
        assert told.where.startswith("contract")
        assert told.excerpt is None or "^" in told.excerpt
    else:
        assert parse_contract(str(contract)) == contract
