"""Where text may be broken, and that nothing of it is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from hloscope.report.layout import Breaks, count_lines, fold, fold_message, measure_longest_piece


def lines(text, width):
    return [line.plain for line in fold(Text(text), width)]


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("short", 5, ["short"]),
        ("over X · 8 times · moe.py:14 in expert", 20, ["over X · 8 times", "moe.py:14 in expert"]),
        ("moe.py:14 in expert", 12, ["moe.py:14 in", "expert"]),
        ("a long part of words · 8 times", 12, ["a long part", "of words", "8 times"]),
        ("one device sends 6.58 GB", 20, ["one device sends", "6.58 GB"]),
        ("f32[16], f32[8,8], +1 more", 24, ["f32[16], f32[8,8],", "+1 more"]),
        ("%all-reduce.2, HLO line 97", 23, ["%all-reduce.2, HLO", "line 97"]),
        ("P(('data', 'model'), None)", 15, ["P(('data',", "'model'), None)"]),
        ("params['layers']['w1']", 18, ["params['layers']", "['w1']"]),
        ("state.value.kernel", 12, ["state.value.", "kernel"]),
        ("experiments/train.py:step", 20, ["experiments/", "train.py:step"]),
        ("bf16[1024,512,14336]", 14, ["bf16[1024,512,", "14336]"]),
        ("the_training_step", 13, ["the_training_", "step"]),
        ("ab12345cd", 5, ["ab", "12345", "cd"]),
        ("123456789", 4, ["1234", "5678", "9"]),
        ("漢字漢字", 5, ["漢字", "漢字"]),
        ("", 5, [""]),
    ],
)
def test_places_to_break(text, width, expected):
    assert lines(text, width) == expected


@pytest.mark.parametrize(
    ("breaks", "longest"),
    [
        (Breaks.NEVER, "donated params['layers']['kernel_abc'] 16 MB · x"),
        (Breaks.BETWEEN_PARTS, "donated params['layers']['kernel_abc'] 16 MB"),
        (Breaks.BETWEEN_WORDS, "params['layers']['kernel_abc']"),
        (Breaks.AFTER_PUNCTUATION, "params['layers']"),
        (Breaks.IN_IDENTIFIERS, "['layers']"),
        (Breaks.BETWEEN_CHARACTERS, "16"),
        (Breaks.IN_NUMBERS, "1"),
    ],
)
def test_longest_piece(breaks, longest):
    text = Text("donated params['layers']['kernel_abc'] 16 MB · x")
    assert measure_longest_piece(text, breaks) == len(longest)


def test_styles_stay():
    text = Text.assemble(("bold", "bold"), " ", ("dim", "dim"))
    first, second = fold(text, 4)
    assert [(span.start, span.end, span.style) for span in first.spans] == [(0, 4, "bold")]
    assert [(span.start, span.end, span.style) for span in second.spans] == [(0, 3, "dim")]


TEXTS = st.text(st.sampled_from("abz019 _.,/[](){}'=:@%·-漢"), max_size=80).map(lambda text: " ".join(text.split()))


@given(TEXTS, st.integers(2, 60))
def test_nothing_is_lost_and_no_line_is_too_wide(text, width):
    folded = lines(text, width)
    assert re.sub(r"[ ·]", "", "".join(folded)) == re.sub(r"[ ·]", "", text)
    assert max(map(cell_len, folded)) <= width
    assert count_lines(Text(text), width) == len(folded)


def breaks_in(text, width):
    """The one or two characters around each break."""
    rest = text
    for line in lines(text, width)[:-1]:
        end = rest.index(line) + len(line)
        yield rest[end - 1 : end + 1]
        rest = re.sub(r"^ (?:· )?", "", rest[end:])


@given(TEXTS, st.integers(2, 60))
def test_a_word_that_fits_on_a_line_is_whole(text, width):
    if measure_longest_piece(Text(text), Breaks.BETWEEN_WORDS) <= width:
        assert all(around[1] == " " for around in breaks_in(text, width))


@given(TEXTS, st.integers(2, 60))
def test_a_word_whose_pieces_fit_is_broken_after_punctuation(text, width):
    if measure_longest_piece(Text(text), Breaks.AFTER_PUNCTUATION) <= width:
        assert all(around[0] in ",/])}." or around[1] == " " for around in breaks_in(text, width))


@given(TEXTS, st.integers(2, 60))
def test_a_number_that_fits_on_a_line_is_whole(text, width):
    numbers = re.findall(r"\d+", text)
    if all(len(number) <= width for number in numbers):
        folded = lines(text, width)
        assert [number for line in folded for number in re.findall(r"\d+", line)] == numbers


@given(st.text(alphabet="ab -", min_size=1, max_size=20), st.text(alphabet="cd ", min_size=1, max_size=60))
def test_a_message_with_a_label_wider_than_the_line_loses_nothing(label, words):
    text = f"       = {label}: {words}"
    whole = "".join(line.plain for line in fold_message(text, 20))
    assert whole.replace(" ", "") == text.replace(" ", "")
