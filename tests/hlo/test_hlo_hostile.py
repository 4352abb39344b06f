"""Text made to break a reader: it ends with a module or an error, never with a crash or a hang."""

from __future__ import annotations

import gc
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from hlo_texts import mentions

from hloscope.base.errors import HloParseError
from hloscope.hlo import parse_module

HEAD = "HloModule m\n\nENTRY %e (p: f32[2]) -> f32[2] {\n  %p = f32[2]{0} parameter(0)\n"
DEEP = 10_000


def read(line: str) -> str:
    """What is wrong with a line, or the number of instructions."""
    try:
        module = parse_module(f"{HEAD}  {line}\n}}\n")
    except HloParseError as error:
        return error.what
    return str(sum(len(computation.instructions) for computation in module.computations))


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        (f"%r = f32[] add(%p), foo={'{' * DEEP}{'}' * DEEP}", "2"),
        (f"%r = f32[] add(%p), backend_config={'{x:' * DEEP}{'}' * DEEP}", "2"),
        (f"%r = {'(' * DEEP}f32[]{')' * DEEP} tuple(%p)", "tuple 100"),
        (f"%r = f32[] {'add(' * DEEP}%p{')' * DEEP}", "operands 100"),
        (f"%r = f32[] call(%p), called_computations={'{' * DEEP}{'}' * DEEP}", "2"),
        (f"%r = f32[] {'call(), to_apply={ %x = f32[] ' * 300}negate(%p){'}' * 300}", "inline 100"),
        (f"%r = f32[] add({', '.join(['%p'] * 20_000)})", "2"),
        (f"%r = f32[2] constant({{{', '.join(['1.5'] * 500_000)}}})", "2"),
    ],
    ids=["braces", "config", "tuples", "operands", "computations", "inline", "many operands", "literal"],
)
def test_deep_and_long_lines(says, line, outcome):
    found = read(line)
    if outcome.isdigit():
        assert found == outcome
    else:
        assert mentions(says(found), outcome)


@pytest.mark.parametrize(
    "tail",
    [
        "foo={" + '"' * 1_000_001,
        "foo={" + '\\"' * 500_000,
        "foo={" + "'\\'" * 300_001,
        "foo={" + "/*" * 500_000,
        "metadata={" * 100_000,
        "backend_config={" * 100_000,
        'foo="' + '\\"' * 500_000,
        "foo=" + "{" * DEEP,
        "a={" * 100_000,
    ],
)
def test_what_is_never_closed_takes_linear_time(tail):
    assert re.search("%e|string", read(f"%r = f32[] add(%p), {tail}"))


def test_backend_config_that_is_too_deep_for_json():
    module = parse_module(HEAD + f"  %r = f32[] add(%p), backend_config={chr(123) + 'a' + chr(125)}\n}}\n")
    assert module.entry.root.backend_config == {"raw": "{a}"}
    deep = '{"a":' * DEEP + "1" + "}" * DEEP
    module = parse_module(HEAD + f"  %r = f32[] add(%p), backend_config={deep}\n}}\n")
    assert list(module.entry.root.backend_config) in (["raw"], ["a"])


@pytest.mark.parametrize(
    "garbage", ["\x00", "\ufeff", "\x0c", "\ud800", "%", "{", "}", '"', "/*", "ENTRY", "@", "=", ")"]
)
@pytest.mark.parametrize("place", [0, 5, 20, 40, 60, 80, len(HEAD)])
def test_garbage_anywhere_is_an_error_or_a_module(garbage, place):
    text = HEAD + "  ROOT %r = f32[2]{0} add(%p, %p)\n}\n"
    line, column = place_of_error(text[:place] + garbage + text[place:])
    assert line >= 1
    assert column >= 1


def place_of_error(text: str) -> tuple[int, int]:
    """Line and column of what is wrong with a text; the first place of one that can be read."""
    try:
        parse_module(text)
    except HloParseError as error:
        return error.line, error.column
    return 1, 1


def test_text_that_never_repeats_is_read_by_the_whole_rule():
    lines = "".join(f"  %r{i} = f32[2]{{0}} add(%p, %p), a{i}=x\n" for i in range(2500))
    module = parse_module(f"{HEAD}{lines}}}\n")
    assert len(module.entry.instructions) == 2501
    assert module.entry.instruction("r2400").attributes == {"a2400": "x"}
    assert module.entry.instruction("r2400").line == 2405


def test_garbage_collection_is_on_again_after_an_error():
    assert gc.isenabled()
    with pytest.raises(HloParseError):
        parse_module(HEAD)
    assert gc.isenabled()


BODY = "  %q = f32[2]{0} negate(%p)\n  ROOT %r = f32[2]{0} add(%p, %q)\n}\n"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (HEAD + "\n" * 1_000_000 + BODY, 3),
        ("\n" * 1_000_000 + HEAD + BODY + "\n" * 1_000_000, 3),
        (HEAD.replace("\n", "\r\n") + BODY.replace("\n", "\r", 1) + "\r\n\r\r\n", 3),
        (HEAD + f'  %s = f32[] negate(%p), metadata={{op_name="{"x" * 5_000_000}"}}\n' + BODY, 4),
        (HEAD + f'  %s = f32[] negate(%p), foo="{chr(92) * 5_000_000}"\n' + BODY, 4),
        ((HEAD + BODY).replace("\n", " ") + " " * 10_000_000, 3),
        (f"HloModule m ENTRY e {{ p = f32[] parameter(0), {','.join(f'a{i}={{{i}}}' for i in range(50_000))} }}", 1),
        (HEAD + f"  %s = f32[] negate(%p), foo={{{'0,' * 5_000_000}0}}\n" + BODY, 4),
    ],
    ids=[
        "empty lines",
        "empty lines around",
        "line ends",
        "long string",
        "backslashes",
        "one line",
        "attributes",
        "10 MB",
    ],
)
def test_large_and_odd_layouts(text, count):
    module = parse_module(text)
    assert len(module.entry.instructions) == count
    assert module.entry.root.line >= 1


@pytest.mark.parametrize("text", ["\0" * 1_000_000, HEAD + "\0" * 1_000_000 + BODY, HEAD + BODY + "\0"])
def test_nul_bytes(text):
    with pytest.raises(HloParseError) as caught:
        parse_module(text)
    assert re.search(r"not HLO|U\+0000", caught.value.what)


def test_threads_read_at_the_same_time():
    texts = [
        (HEAD + BODY).replace("%q", f"%q{index}").replace("negate(%p)", f"negate(%p), a{index}=1")
        for index in range(40)
    ]
    broken = [text.replace("add(%p, ", "add(%x, ").replace("%e", f"%e{index}") for index, text in enumerate(texts)]

    def read_one(text):
        try:
            return parse_module(text).entry.instructions[1].name
        except HloParseError as error:
            return error.what

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read_one, texts)) == [f"q{index}" for index in range(40)]
        found = [re.findall(r"%\w+", what) for what in pool.map(read_one, broken)]
        assert found == [["%x", f"%e{index}"] for index in range(40)]
    assert gc.isenabled()
