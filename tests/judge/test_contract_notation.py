"""The notation of contracts: what it reads, what it prints, and what it says of mistakes."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.base.errors import NotationError, WrongCallError
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
    repeated,
    time,
    trips,
)
from hloscope.judge.model import (
    BYTE_UNITS,
    MILLIONTHS,
    MOVED,
    NANOSECONDS,
    Ban,
    Expectation,
    Limit,
    Quantity,
    Selector,
    Trips,
    format_amount,
    format_contract,
    parse_amount,
    round_up,
)
from hloscope.judge.notation import parse_contract, parse_selector, read_contract
from hloscope.model.vocabulary import Kind, Link

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
    (all_reduce("Y", by="add", count=1), "all-reduce@Y by add x1"),
    (no("all-*", by="maximum", link="dcn", source="a.py"), 'no all-* by maximum over dcn in "a.py"'),
    (at_most(wire_bytes="6 MB", axis="fsdp"), "wire@fsdp <= 6MB/step"),
    (at_most(payload_bytes=6_000_000), "payload <= 6MB"),
    (hbm(max="14 GiB") & time(max="1.2 ms") & exposed(max="5%"), "hbm <= 14GiB; time <= 1200us; exposed <= 5.0 %"),
    (exposed(max="80 us"), "exposed <= 0.08ms"),
    (repeated(max=1.05), "repeated <= 1.05"),
    (repeated(max=2), "repeated <= 2.000"),
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


ERRORS = [
    ("all-gahter@X", "column 1"),
    ("hmb <= 14GiB", "column 1"),
    ("all-reduce@Y <= 32", "column 19"),
    ("hbm <= 1GiB\nall-reduce@Y <= 32Kb x2", "line 2, column 19"),
    ("time <= 3h", "column 10"),
    ("wire <= 0.3B", "column 9"),
    ("all-reduce@ <= 3B", "column 13"),
    ("only all-reduce@Y", "column 6"),
    ("all-reduce@Y by pmax", "column 17"),
    ("all-reduce@Y by average", "column 17"),
    ("no all-gather by add", "column 18"),
    ("all-reduce@Y by", "column 16"),
    ("all-reduce@Y; all-reduce@Y <= 3kB", "column 15"),
    ('trips "a.py:1" = 0', "column 18"),
    ('trips "a.py:1" = 2\ntrips "a.py:1" = 3', "line 2, column 7"),
    ("none; all-gather", "column 1"),
    ('all-gather in "none.py"; none', "column 26"),
    ("hbm@X <= 3GB", "column 1"),
    ("hbm <= 3GB/step", "column 11"),
    ("exposed <= 5%/step", "column 14"),
    ("repeated <= 2/step", "column 14"),
    ("repeated@X <= 2", "column 1"),
    ("repeated <= 105%", "column 16"),
    ("repeated <= 1.05GB", "column 17"),
    ("repeated <= 1.0000001", "column 13"),
    ("all-reduce@(X,Y", "column 16"),
    ("all-reduce@Y <=\nhbm <= 1GB", "line 1, column 16"),
    ("wier@X <= 3MB/step now", "column 20"),
    ("  ", ""),
]


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


def test_a_selector_alone(says):
    assert parse_selector('all-*@(X,Y) by add over dcn in "a.py"', where="here") == Selector(
        kind="all-*", axes=("X", "Y"), reduction="add", link=Link.DCN, source="a.py"
    )
    with pytest.raises(NotationError) as caught:
        parse_selector("all-gather <= 3kB", where="here")
    assert caught.value.where == "here, column 12"
    says(caught)


@pytest.mark.parametrize(("text", "place"), ERRORS, ids=[text.replace("\n", "; ") for text, _ in ERRORS])
def test_mistakes_in_the_notation(says, text, place):
    with pytest.raises(NotationError) as caught:
        parse_contract(text)
    assert caught.value.where == ", ".join(filter(None, ("contract", place)))
    assert caught.value.fix
    says(caught)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: collective("all_gather"), "all_gather"),
        (lambda: no("all-gather", link="pcie"), "pcie"),
        (lambda: all_reduce("Y", max_bytes="32"), "32"),
        (lambda: all_reduce("Y", max_bytes=-1), "-1"),
        (lambda: all_reduce("Y", count="2"), "count"),
        (lambda: trips("moe.py:40", 0), "trips"),
        (lambda: time(max=5), "time"),
        (at_most, "at_most"),
        (lambda: all_reduce("Y", max_bytes=1, max_bytes_per_step=2), "max_bytes_per_step"),
        (lambda: only(all_reduce("Y"), all_reduce("Y", count=2)), "all-reduce@Y"),
        (lambda: no("all-gather", ""), "''"),
        (lambda: no("all-gather", ()), "()"),
        (lambda: no("all-gather", "X Y"), "X Y"),
        (lambda: no("all-gather", 3), "3"),
        (lambda: no("all-gather", source=" "), "' '"),
        (lambda: no("all-gather", source=3), "3"),
        (lambda: trips("a\nb.py:3", 2), "b.py:3"),
        (lambda: no(None), "None"),
    ],
)
def test_mistakes_in_python(says, build, named):
    with pytest.raises(NotationError) as caught:
        build()
    assert named in caught.value.what
    assert caught.value.fix
    says(caught)


@pytest.mark.parametrize(
    ("toml", "where"),
    [
        ("3", "target step"),
        ("[3]", "target step"),
        ("{ only = true, expect = [{ kind = 'all-reduce', axes = 'Y' }] }", "target step"),
        ("['all-reduce', 'al-reduce']", "target step, entry 2, column 1"),
    ],
)
def test_mistakes_in_toml(says, toml, where):
    with pytest.raises(NotationError) as caught:
        read_contract(tomllib.loads(f"c = {toml}")["c"], where="target step")
    assert caught.value.where == where
    assert caught.value.fix
    says(caught)


@given(st.integers(0, 10**18), st.sampled_from([BYTE_UNITS, NANOSECONDS, MILLIONTHS]))
def test_amounts_print_and_read_back(amount, units):
    assert parse_amount(format_amount(amount, units), units, where="") == amount


@given(st.integers(0, 10**15))
def test_a_rounded_amount_is_never_too_small(amount):
    assert amount <= round_up(amount) <= amount * 1.01 + 1


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
LIMITS = (
    st.builds(
        Limit,
        quantity=st.sampled_from([Quantity.WIRE, Quantity.PAYLOAD]),
        most=st.integers(0, 10**15),
        selector=st.builds(Selector, axes=AXES, link=LINKS),
    )
    | st.builds(
        Limit, quantity=st.sampled_from([each for each in Quantity if each not in MOVED]), most=st.integers(0, 10**12)
    )
    | st.builds(
        Limit,
        quantity=st.just(Quantity.EXPOSED),
        most=st.integers(0, 999_999),
        share=st.just(True),  # less than 100%
    )
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
    assert (expectation.selector.axes, sorted(ban.selector.axes), limit.selector.axes) == (
        (axis,),
        sorted(("x", axis)),
        (axis,),
    )
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


@pytest.mark.parametrize(
    ("call", "refused"),
    [
        (lambda: all_reduce("X", max_bytes="1 foo"), NotationError),
        (lambda: all_reduce("X", by="sum"), NotationError),
        (lambda: all_reduce("X", count=-1), NotationError),
        (lambda: all_reduce(5), NotationError),
        (lambda: hbm(max="x"), NotationError),
        (lambda: repeated(max="5%"), NotationError),
        (lambda: repeated(max=0), NotationError),
        (lambda: all_reduce("X") & all_reduce("X", count=2), NotationError),
        (lambda: all_reduce("X", max_byte="1KiB"), WrongCallError),
        (lambda: hbm(maxx=1), WrongCallError),
        (hbm, WrongCallError),
        (lambda: only(3), WrongCallError),
    ],
)
def test_a_wrong_call_is_refused_in_the_words_of_python(says, call, refused):
    with pytest.raises(refused) as caught:
        call()
    assert not str(caught.value).startswith("error: ")
    assert type(caught.value).__mro__.index(refused) <= 1
    says(caught)


def test_contradicting_lines_are_refused_in_the_words_of_the_command_line():
    with pytest.raises(NotationError, match=r"^error: ") as caught:
        read_contract(["all-reduce@X", "all-reduce@X x2"])
    assert caught.value.where == "contract, entry 2"
