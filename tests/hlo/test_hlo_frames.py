"""Stack tables and quoted strings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.hlo import parse_module
from hloscope.hlo.columns import FrameTables
from hloscope.hlo.grammar import unquote

LOCATIONS = ((1, 1, 10, 0, 10, 9), (1, 2, 20, 4, 21, 5), (9, 1, 30, 0, 30, 1))


def tables(*stack_frames):
    return FrameTables(
        file_names=("a.py",), function_names=("f", "g"), file_locations=LOCATIONS, stack_frames=stack_frames
    )


def test_innermost_first():
    frames = tables((1, 0), (2, 1)).frames(2)
    assert [(frame.file, frame.function, frame.line, frame.column) for frame in frames] == [
        ("a.py", "g", 20, 4),
        ("a.py", "f", 10, 0),
    ]


def test_a_cycle_of_parents_ends():
    assert len(tables((1, 2), (2, 1)).frames(1)) == 2
    assert len(tables((1, 1)).frames(1)) == 1


@pytest.mark.parametrize("stack_frame_id", [-1, 0, 4, 100])
def test_unknown_ids_have_no_frames(stack_frame_id):
    assert tables((1, 0), (2, 1), (3, 2)).frames(stack_frame_id) == ()


def test_the_walk_ends_where_a_table_has_no_entry():
    assert tables((1, 0), (3, 1)).frames(2) == ()


def test_printed_parents_are_one_more_than_real():
    module = parse_module(
        'HloModule m\n\nFileNames\n1 "a"\n\nFunctionNames\n1 "f"\n\n'
        "FileLocations\n1 {file_name_id=1 function_name_id=1 line=5}\n\n"
        "StackFrames\n1 {file_location_id=1 parent_frame_id=1}\n2 {file_location_id=1 parent_frame_id=2}\n\n"
        "ENTRY e {\n  p = f32[] parameter(0)\n}\n"
    )
    assert [len(module.frames(frame)) for frame in (1, 2)] == [1, 2]
    assert module.frames(1)[0].column == 0


def test_empty_tables():
    module = parse_module(
        "HloModule m\n\nFileNames\n\nFunctionNames\n\nFileLocations\n\nStackFrames\n\n"
        "ENTRY e {\n  p = f32[] parameter(0)\n}\n"
    )
    assert module.frames(1) == ()


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_strings_come_back(value):
    """What XLA's printer does: quotes, backslashes and bytes outside ASCII become escapes."""
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in "\"'\\" else f"\\{byte:03o}" for byte in value.encode()
    )
    assert unquote(f'"{escaped}"') == value


@pytest.mark.parametrize(
    ("text", "value"),
    [(r'"a\tb"', "a\tb"), (r'"\x41"', "A"), (r"'it\'s'", "it's"), (r'"\q"', "q"), ('"日"', "日"), ('"', "")],
)
def test_escapes(text, value):
    assert unquote(text) == value
