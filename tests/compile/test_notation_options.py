import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.base.errors import NotationError
from hloscope.compile.notation import (
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
    with pytest.raises(NotationError) as caught:
        parse_mesh("S=0")
    assert re.findall(r'"S"|\b0\b', caught.value.what) == ['"S"', "0"]


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
    ("parse", "text", "column", "words"),
    [
        (parse_mesh, "X=4,Y=0", 7, ['"Y"', "0"]),
        (parse_mesh, "X=4,X=2", 5, ['"X"', "twice"]),
        (parse_mesh, "X:4", 2, ['":"', '"="']),
        (parse_mesh, "X=4,", 5, ["it ends", "name"]),
        (parse_mesh, "", None, ["empty"]),
        (parse_dims, "S=-1", 3, ['"S"', "-1"]),
        (parse_indices, "0,-1", 3, ["-1", "negative"]),
        (parse_indices, "1,01", 3, ["01", "twice"]),
        (parse_static, "mode = true ", 8, ['"true"', "literal", " True"]),
        (parse_static, "5", None, ['"5"']),
        (lambda text: parse_axis_types(text, ("X", "Y")), "X=explicitt", 3, ['"explicitt"', " explicit?"]),
        (lambda text: parse_axis_types(text, ("X", "Y")), "Z=auto", 1, ['"Z"', "X, Y"]),
        (lambda text: parse_axis_types(text, ("X", "Y")), "none", 1, ['"none"', "auto, explicit"]),
        (lambda text: parse_axis_types(text, ("X", "Y")), " ", None, ["empty"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(says, parse, text: str, column: int | None, words: list[str]) -> None:
    with pytest.raises(NotationError) as caught:
        parse(text)
    said = f"{caught.value.what}; {caught.value.why}; {caught.value.fix}"
    assert [word for word in words if word not in said] == []
    says(caught)
    if column is None:
        assert caught.value.where is None
    else:
        assert caught.value.where.endswith(f", column {column}")
        assert caught.value.excerpt.splitlines() == [text, f"{'^':>{column}}"]


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
