import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.errors import NotationError
from hloscope.program.notation import (
    parse_axis_types,
    parse_dims,
    parse_indices,
    parse_mesh,
    parse_static,
    split_keyword,
)

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True)


def test_mesh_keeps_its_order() -> None:
    assert list(parse_mesh("Y=2, X = 4").items()) == [("Y", 2), ("X", 4)]


@given(st.dictionaries(NAMES, st.integers(1, 2**20), min_size=1, max_size=5))
def test_mesh_and_dims_round_trip(sizes: dict[str, int]) -> None:
    text = ",".join(f"{name}={size}" for name, size in sizes.items())
    assert list(parse_mesh(text).items()) == list(sizes.items())
    assert parse_dims(text) == sizes


def test_a_dimension_may_be_empty_and_an_axis_may_not() -> None:
    assert parse_dims("S=0") == {"S": 0}
    with pytest.raises(NotationError, match='the mesh axis "S" has size 0'):
        parse_mesh("S=0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", {"X": "auto", "Y": "auto"}),
        (" Explicit ", {"X": "explicit", "Y": "explicit"}),
        ("manual", {"X": "manual", "Y": "manual"}),
        ("X=explicit,Y=auto", {"X": "explicit", "Y": "auto"}),
        ("Y=explicit", {"X": "auto", "Y": "explicit"}),
    ],
)
def test_axis_types(text: str, expected: dict[str, str]) -> None:
    assert parse_axis_types(text, ("X", "Y")) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("shift=5", ("shift", 5)),
        ("scale = -1.5e3", ("scale", -1500.0)),
        ("mode='a=b'", ("mode", "a=b")),
        ("shape=(8, 128)", ("shape", (8, 128))),
        ("causal=True", ("causal", True)),
        ("mask=None", ("mask", None)),
    ],
)
def test_static(text: str, expected: tuple[str, object]) -> None:
    assert parse_static(text) == expected


def test_indices() -> None:
    assert parse_indices("0") == (0,)
    assert parse_indices(" 2, 0 ") == (2, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("w=bf16[8@X]", ("w", "bf16[8@X]")),
        (" w = bf16[8] ", ("w", "bf16[8]")),
        ("bf16[8@X]", (None, "bf16[8@X]")),
        ("a==b", (None, "a==b")),
        ("w=", ("w", "")),
    ],
)
def test_split_keyword(text: str, expected: tuple[str | None, str]) -> None:
    assert split_keyword(text) == expected


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (
            parse_mesh,
            "X=4,Y=0",
            'error: the mesh axis "Y" has size 0\n'
            "  --> mesh, column 7\n"
            "   | X=4,Y=0\n"
            "   |       ^\n"
            "   = fix: a mesh axis has size 1 or more",
        ),
        (
            parse_mesh,
            "X=4,X=2",
            'error: "X" is given twice\n  --> mesh, column 5\n   | X=4,X=2\n   |     ^\n   = fix: give each name once',
        ),
        (
            parse_mesh,
            "X:4",
            "error: this is no mesh\n"
            "  --> mesh, column 2\n"
            "   | X:4\n"
            "   |  ^\n"
            '   = why: ":" does not belong here; expected "="\n'
            "   = fix: write, for example, X=4,Y=2",
        ),
        (
            parse_mesh,
            "X=4,",
            "error: this is no mesh\n"
            "  --> mesh, column 5\n"
            "   | X=4,\n"
            "   |     ^\n"
            "   = why: it ends here; expected a name\n"
            "   = fix: write, for example, X=4,Y=2",
        ),
        (parse_mesh, "", "error: an empty mesh\n   = fix: write, for example, X=4,Y=2"),
        (
            parse_dims,
            "S=-1",
            'error: the dimension "S" has size -1\n'
            "  --> list of dimensions, column 3\n"
            "   | S=-1\n"
            "   |   ^\n"
            "   = fix: sizes are 0 or more",
        ),
        (
            parse_indices,
            "0,-1",
            "error: the position -1 is negative\n"
            "  --> list of positions, column 3\n"
            "   | 0,-1\n"
            "   |   ^\n"
            "   = fix: count from 0",
        ),
        (
            parse_indices,
            "1,01",
            "error: the position 01 is given twice\n"
            "  --> list of positions, column 3\n"
            "   | 1,01\n"
            "   |   ^\n"
            "   = fix: give each position once",
        ),
        (
            parse_static,
            "mode = true ",
            'error: "true" is no Python literal\n'
            "  --> static argument, column 8\n"
            "   | mode = true \n"
            "   |        ^\n"
            "   = why: only numbers, strings, True, False, None and tuples, lists, dicts and sets of them can be given "
            "as text\n"
            "   = fix: write True",
        ),
        (
            parse_static,
            "5",
            'error: "5" does not say which argument it is for\n   = fix: write, for example, shift=5',
        ),
        (
            lambda text: parse_axis_types(text, ("X", "Y")),
            "X=explicitt",
            'error: unknown axis type "explicitt"\n'
            "  --> list of axis types, column 3\n"
            "   | X=explicitt\n"
            "   |   ^\n"
            "   = fix: did you mean explicit?",
        ),
        (
            lambda text: parse_axis_types(text, ("X", "Y")),
            "Z=auto",
            'error: the mesh has no axis "Z"\n'
            "  --> list of axis types, column 1\n"
            "   | Z=auto\n"
            "   | ^\n"
            "   = fix: its axes are X, Y",
        ),
        (
            lambda text: parse_axis_types(text, ("X", "Y")),
            "none",
            'error: unknown axis type "none"\n'
            "  --> list of axis types, column 1\n"
            "   | none\n"
            "   | ^\n"
            "   = fix: use auto, explicit or manual",
        ),
        (
            lambda text: parse_axis_types(text, ("X", "Y")),
            " ",
            "error: an empty list of axis types\n   = fix: write, for example, explicit, or X=explicit,Y=auto",
        ),
    ],
)
def test_refused(parse, text: str, message: str) -> None:
    with pytest.raises(NotationError) as caught:
        parse(text)
    assert str(caught.value) == message


@given(st.text(max_size=16))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_mesh, parse_dims, parse_indices, parse_static, lambda given: parse_axis_types(given, ("X",))):
        try:
            read = parse(text)
        except NotationError:
            continue
        assert isinstance(read, dict | tuple)


def test_a_single_word_is_a_string() -> None:
    assert parse_static("mode=fast") == ("mode", "fast")
    assert parse_static("mode='fast'") == ("mode", "fast")
