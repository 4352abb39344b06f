"""Python's front door: errors in Python's words, short tracebacks, and values that are taken where they are clear."""

from __future__ import annotations

import inspect
import re
import traceback
from pathlib import Path

import numpy as np
import pytest
from jax.sharding import AxisType

import hloscope
from hloscope import rules
from hloscope.base.calls import front_door
from hloscope.base.errors import (
    HloscopeError,
    MeshError,
    NotationError,
    Option,
    TargetError,
    UnknownKeywordError,
    WrongCallError,
    say,
)
from hloscope.compile import lowering
from hloscope.compile.target import make_facts

ROOT = Path(__file__).parent.parent
SOURCES = [path for path in (ROOT / "hloscope").rglob("*.py") if path.parts[len(ROOT.parts) + 1] != "cli"]
GOLDENS = sorted((ROOT / "tests").rglob("goldens/messages.txt"))
HLO = "fixtures/captured/matmul.matmul.jax-0.10.hlo"
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*|\bhloscope (?:analyze|explain|price|verify|record|diff|accept|rules)\b")
OTHERS = re.compile(r"""--(?:xla_\w+|hloscope-\w+|depth)|--(?:steps|opt)(?= \d|",)|XLA_FLAGS=--xla\w*|--help""")
"""Options of XLA, pytest, git and users' scripts."""


def flags_in(text: str) -> list[str]:
    return FLAG.findall(OTHERS.sub("", text))


def test_a_rules_page_speaks_python_too():
    pages = rules.pages()
    told = [flags_in(text) for page in pages.values() for _, text in (("", page.summary), *page.sections)]
    assert len(told) > 60
    assert not any(told)
    assert "ranges=" in str(rules.page("untested").sections)


# ---- how a call fails


@pytest.fixture
def failing():
    def inside(_):
        raise ValueError("the inside")

    @front_door
    def fails(what):
        try:
            inside(what)
        except ValueError as error:
            raise MeshError(f"{what} is wrong", fix=say("give ", Option("mesh", {"X": 4}))) from error

    return fails


def test_the_message_is_last_and_what_it_was_made_from_is_left_out(failing):
    with pytest.raises(MeshError) as caught:
        failing("it")
    error = caught.value
    assert str(error) == 'it is wrong\n   = fix: give mesh={"X": 4}'
    assert (error.fix, error.__cause__, error.__context__) == ('give mesh={"X": 4}', None, None)
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)][1:] == ["called"]
    told = "".join(traceback.format_exception(error))
    assert told.endswith('MeshError: it is wrong\n   = fix: give mesh={"X": 4}\n')
    assert "the inside" not in told


def test_a_traceback_is_whole_for_whoever_asks(failing, monkeypatch):
    monkeypatch.setenv("HLOSCOPE_TRACEBACK", "full")
    with pytest.raises(MeshError) as caught:
        failing("it")
    told = "".join(traceback.format_exception(caught.value))
    assert "ValueError: the inside" in told
    assert "in inside" in told


def test_an_error_that_passed_through_jax_has_no_word_of_its_frames(failing):
    def noted():
        error = MeshError("it")
        error.add_note("--------------------\nFor simplicity, JAX has removed its internal frames from ...")
        error.add_note("the user's own")
        raise error

    with pytest.raises(MeshError) as caught:
        front_door(noted)()
    assert caught.value.__notes__ == ["the user's own"]


def test_what_hloscope_itself_fails_over_is_shown_whole():
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        front_door(broken)()
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][-1] == "broken"


def test_sentences_of_results_speak_python(tmp_path):
    text = (ROOT / HLO).read_text().replace("{X", "{", 1)
    found = hloscope.analyze_text(re.sub(r", mesh=.*", "", text))
    assert not flags_in(str(found))
    assert all(not flags_in(note) for note in found.notes)
    (tmp_path / "step.hlo").write_text(text.replace("@Sharding", "@Other"))
    foreign = hloscope.analyze(tmp_path / "step.hlo")
    assert not flags_in(" ".join(foreign.notes)), foreign.notes


# ---- values that are taken where they are clear


def matmul(x, w):
    return x @ w


def facts(**given):
    made = make_facts(**given)
    return next(getattr(made, name) for name in given)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"dims": "Z=4,D=8"}, {"Z": 4, "D": 8}),
        ({"dims": {"Z": np.int64(4)}}, {"Z": 4}),
        ({"mesh": {"X": np.int32(4)}}, {"X": 4}),
        ({"dcn": {"X": np.int8(2)}}, {"X": 2}),
        ({"allow": None}, ()),
        ({"allow": "all-gather@X: why"}, ("all-gather@X: why",)),
        ({"donate": np.int64(0)}, (0,)),
        ({"donate": [0, np.int64(1)]}, (0, 1)),
        ({"donate": "0,1"}, (0, 1)),
        ({"timeout_s": "5m"}, 300.0),
        ({"timeout_s": np.float32(2)}, 2.0),
        ({"axis_types": AxisType.Explicit}, "explicit"),
        ({"axis_types": {"X": AxisType.Explicit}}, "X=explicit"),
        ({"args": "f32[8@X]"}, ("f32[8@X]",)),
        ({"args": ["f32[8@X]"]}, ("f32[8@X]",)),
        ({"processes": np.int64(2)}, 2),
        ({"kernel_costs": "splash=7e11,2e8"}, {"splash": (7e11, 2e8)}),
        ({"chip_overrides": "hbm_bytes_per_s=750e9"}, ("hbm_bytes_per_s=750e9",)),
        ({"kwargs": None}, {}),
    ],
    ids=str,
)
def test_what_is_clear_is_taken(given, meant):
    found = facts(**given)
    assert found == meant
    assert type(found) is type(meant)


class Odd:
    """Nothing that anything takes."""


ODD = (Odd(), b"step", 1.5, True, None, ["a", 2], {1: 2}, {"a": Odd()}, "no such thing", -1, float("nan"), ())
OF_TEXT = ("mesh", "slice", "dcn", "chip_overrides", "kernel_costs", "allow", "rule_options", "select", "ignore")
OF_FUNCTIONS = ("args", "kwargs", "out", "static", "donate", "dims", "axis_types", "platform", "processes")
OF_ALL = ("mesh", "slice", "dcn", "chip_overrides", "kernel_costs", "compiler_options", "timeout_s")


def tried(call, *given, **options):
    """What a call says of what it was given; None where it takes it."""
    try:
        call(*given, **options)
    except HloscopeError as error:
        told, frames = str(error), traceback.extract_tb(error.__traceback__)
    else:
        return None
    assert not flags_in(told), told
    assert " at 0x" not in told
    assert len(frames) <= 3, frames
    return told


@pytest.mark.parametrize("name", [*OF_TEXT, "source_root", "only", "save_hlo", "args", "target"])
def test_odd_values_beside_hlo_text_are_taken_or_refused_with_a_sentence(name):
    taken = []
    for odd in ODD:
        options = {name: odd} if name == "target" else {"target": str(ROOT / HLO), name: odd}
        if tried(hloscope.analyze, **options) is None:
            taken.append(odd)
    assert not any(isinstance(odd, Odd | bytes | float) for odd in taken), taken


@pytest.fixture
def nothing_is_compiled(monkeypatch):
    """Ends each call where its arguments have been read."""

    def lower(*_args, **_kwargs):
        raise TargetError("this far")

    monkeypatch.setattr(lowering, "lower", lower)


@pytest.mark.parametrize("name", [*OF_FUNCTIONS, *OF_ALL])
@pytest.mark.parametrize("call", [hloscope.analyze, hloscope.shardings, hloscope.explain], ids=lambda one: one.__name__)
def test_odd_values_beside_functions_are_taken_or_refused_with_a_sentence(nothing_is_compiled, call, name):
    for odd in ODD:
        given = {"args": ("f32[8,8]", "f32[8,8]"), name: odd}
        told = tried(call, matmul, **given)
        assert told is not None
        if isinstance(odd, Odd) or (isinstance(odd, bytes) and name != "static"):
            assert told != "this far" or name == "out", (name, odd)


def test_odd_shardings_of_outputs():
    for odd in (Odd(), [Odd()], b"P('X')", 3):
        with pytest.raises(NotationError, match="out must be an output's sharding"):
            hloscope.analyze(matmul, ("f32[8@X,8]", "f32[8,8]"), mesh={"X": 2}, out=odd)


@pytest.mark.parametrize(
    "name", ["reference", "seed", "ranges", "scale", "rtol", "atol", "on", "timeout_s", "ignore", "slice"]
)
def test_odd_values_of_a_verification(nothing_is_compiled, name):
    for odd in ODD:
        given = {"reference": lambda x, w: w @ x, "args": ("f32[8,8]", "f32[8,8]"), name: odd}
        told = tried(hloscope.verify, matmul, **given)
        assert told is not None
        if isinstance(odd, Odd | bytes):
            assert told != "this far", (name, odd)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (hloscope.price, "slices"),
        (hloscope.explain, "collective"),
        (hloscope.explain, "try_s"),
        (hloscope.explain, "source_root"),
        (hloscope.check, "contract"),
        (hloscope.check, "baseline"),
        (hloscope.check, "fail_on"),
        (hloscope.diff, "new"),
        (hloscope.diff, "base"),
        (hloscope.recording, "only"),
        (hloscope.recording, "top"),
        (hloscope.recording, "run_below_bytes"),
        (hloscope.recording, "stop_after"),
        (hloscope.recording, "slice"),
        (hloscope.recording, "select"),
        (hloscope.analyze_all, "folder"),
        (hloscope.analyze_all, "jobs"),
        (hloscope.analyze_all, "memory"),
        (hloscope.analyze_text, "text"),
        (hloscope.analyze_text, "name"),
        (hloscope.Analysis.from_dict, "document"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_odd_values_of_other_functions(call, name):
    needed = {hloscope.price: {"slices": "v5e:2x4"}, hloscope.analyze_all: {"folder": ROOT / "fixtures"}}
    for odd in ODD:
        first = () if call in (hloscope.recording, hloscope.analyze_text, hloscope.analyze_all) else (str(ROOT / HLO),)
        if call is hloscope.analyze_text and name == "name":
            first = (ROOT.joinpath(HLO).read_text(),)
        if call == hloscope.Analysis.from_dict:
            first = ()
        told = tried(call, *first, **{**needed.get(call, {}), name: odd})
        assert told is not None or not isinstance(odd, Odd | bytes), (name, odd)


def test_odd_looks_at_a_result():
    found = hloscope.analyze(ROOT / HLO)
    for odd in ODD:
        assert tried(found.report, width=odd)
        assert tried(found.report, odd)
        assert tried(found.collectives.by, odd)
        assert tried(found.fails, odd)
        assert tried(lambda odd: found[odd], odd)
        assert tried(found.collectives.where, odd)
        assert tried(rules.page, odd)
        if not isinstance(odd, str) and odd is not None and odd != ():
            assert tried(lambda odd: found.collectives.where(axis=odd), odd)
            assert tried(lambda odd: found.collectives.where(module=odd), odd)
            assert tried(lambda odd: found.collectives.where(source=odd), odd)
            assert tried(lambda odd: found.collectives.where(link=odd), odd)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: hloscope.analyze(b"step.hlo"), TargetError),
        (lambda: hloscope.analyze(None), TargetError),
        (lambda: hloscope.analyze([matmul]), TargetError),
        (lambda: hloscope.analyze(matmul, slice=5), NotationError),
        (lambda: hloscope.analyze(matmul, ignore=b"uneven-sharding"), NotationError),
        (lambda: hloscope.analyze(matmul, select="rule"), NotationError),
        (lambda: hloscope.explain(matmul, collective=1.5), NotationError),
        (lambda: hloscope.explain(matmul, try_s="soon"), NotationError),
        (lambda: hloscope.analyze_text(7), NotationError),
        (lambda: hloscope.check(ROOT / HLO, contract="none", fail_on="much"), NotationError),
        (lambda: hloscope.analyze(matmul, meshes=4), UnknownKeywordError),
    ],
    ids=["bytes", "None", "list", "slice", "ignore", "select", "collective", "try_s", "text", "fail_on", "keyword"],
)
def test_what_is_not_clear_is_refused_with_one_sentence(says, call, kind):
    with pytest.raises(kind) as caught:
        call()
    says(caught)


# ---- calls that do not fit


def test_an_unknown_keyword_is_what_python_calls_it():
    with pytest.raises(TypeError, match=r"meshes.*\n.*did you mean mesh"):
        hloscope.analyze(matmul, meshes=4)


@pytest.mark.parametrize(
    ("call", "unknown", "meant"),
    [
        (lambda: hloscope.price(matmul, "v5e:2x4", slice="garbage"), "slice", "slices"),
        (lambda: hloscope.price(matmul, slice="v5e:2x4"), "slice", "slices"),
        (lambda: hloscope.price(matmul, "v5e:2x4", slize="v5e:2x4"), "slize", "slices"),
        (lambda: hloscope.analyze(matmul, slize="v5e:2x4"), "slize", "slice"),
        (lambda: hloscope.analyze(matmul, sav_hlo="step.hlo"), "sav_hlo", "save_hlo"),
        (lambda: hloscope.analyze(matmul, source_rot="src"), "source_rot", "source_root"),
        (lambda: hloscope.check(matmul, contracts="none"), "contracts", "contract"),
        (lambda: hloscope.check(matmul, failon="note"), "failon", "fail_on"),
        (lambda: hloscope.explain(matmul, colective=1), "colective", "collective"),
        (lambda: hloscope.explain(matmul, trial=False), "trial", "trials"),
        (lambda: hloscope.verify(matmul, matmul, atoll=1.0), "atoll", "atol"),
        (lambda: hloscope.target(msh={"X": 2}), "msh", "mesh"),
        (lambda: hloscope.accept("step", job=2), "job", "jobs"),
        (lambda: hloscope.analyze(ROOT / HLO).report(fmt="json"), "fmt", "format"),
        (lambda: hloscope.analyze(ROOT / HLO).collectives.where(axes="X"), "axes", "axis"),
    ],
)
def test_a_keyword_is_held_against_the_functions_own(call, unknown, meant):
    with pytest.raises(UnknownKeywordError) as caught:
        call()
    assert f"unexpected keyword argument {unknown!r}" in caught.value.what
    assert caught.value.fix == f"did you mean {meant}?"


@pytest.mark.parametrize("name", ["allow", "rule_options", "select", "contract"])
@pytest.mark.parametrize("call", [hloscope.shardings, hloscope.explain, hloscope.price, hloscope.verify])
def test_what_a_function_does_not_show_it_does_not_take(call, name):
    needed = {hloscope.price: ["v5e:2x4"], hloscope.verify: [matmul]}
    with pytest.raises(UnknownKeywordError) as caught:
        call(matmul, *needed.get(call, ()), **{name: "all-gather@X: why"})
    shown = [known for known in inspect.signature(call).parameters if known in caught.value.fix]
    assert name not in inspect.signature(call).parameters
    assert shown == list(inspect.signature(call).parameters) or "did you mean" in caught.value.fix


ARGUMENTS = ("f32[8,8]", "f32[8,8]")
WRONG_CALLS = {
    "several arguments": lambda: hloscope.analyze(matmul, *ARGUMENTS, mesh={"X": 2}),
    "two programs": lambda: hloscope.compare(hloscope.analyze(ROOT / HLO), hloscope.analyze(ROOT / HLO)),
    "no reference": lambda: hloscope.verify(matmul, args=ARGUMENTS),
    "no slices": lambda: hloscope.price(matmul),
    "axis by position": lambda: hloscope.analyze(ROOT / HLO).collectives.where("all-gather", "X"),
    "too much": lambda: hloscope.analyze(ROOT / HLO).fails("note", "error"),
    "twice": lambda: hloscope.analyze(matmul, ARGUMENTS, args=ARGUMENTS),
    "nothing like it": lambda: hloscope.doctor(quickly=True),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_wrong_call_is_a_type_error_with_a_fix_and_without_our_frames(says, name):
    with pytest.raises(TypeError) as caught:
        WRONG_CALLS[name]()
    error = caught.value
    assert isinstance(error, WrongCallError)
    assert error.fix
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)][2:] == ["called"]
    assert (error.__cause__, error.__context__) == (None, None)
    says(error)


def test_a_type_error_of_the_inside_stays_whole():
    def broken():
        return len(3)

    with pytest.raises(TypeError) as caught:
        front_door(broken)()
    assert not isinstance(caught.value, HloscopeError)
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][-1] == "broken"
