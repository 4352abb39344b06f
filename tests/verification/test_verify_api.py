"""`hloscope.verify` from Python: named functions in a child process, closures in this one."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from pathlib import Path

import jax
import pytest
from jax.sharding import PartitionSpec as P
from verify_helpers import USER_CODE

import hloscope

pytestmark = pytest.mark.tpu_compiler
FACTS = {"mesh": {"X": 8}, "args": ("f32[B@X,D]", "f32[D,D]"), "dims": {"B": 512, "D": 256}, "slice": "v5e:2x4"}


def closures(factor):
    def step(x, w):
        return factor * x @ w

    @jax.shard_map(in_specs=(P("X", None), P(None, None)), out_specs=P("X", None))
    def twin(x, w):
        return 2 * x @ w

    return step, twin


def test_closures_are_verified_in_this_process(says):
    found = hloscope.verify(*closures(2), **FACTS, scale={"B": 16, "D": 8})
    assert found.passed
    assert re.findall(r"\d+|CPU", found.numerics.ran_on) == ["8", "CPU"]
    assert found.numerics.dims == {"B": 16, "D": 8}
    (note,) = found.numerics.notes
    assert "this process" in note
    shown = repr(found).splitlines()[0]
    assert re.findall(r"(?<=>\.)\w+|(?<=: )\w+", shown) == ["step", "twin", "passed"]
    says([found.numerics.ran_on, note, shown])


@pytest.mark.parametrize(
    ("made", "expected"),
    [(lambda x: {"a": x}, lambda x: {"b": x}), (lambda x: x, lambda x: (x,)), (lambda x: [x, x], lambda x: (x, x))],
    ids=["names", "a tuple of one", "list and tuple"],
)
def test_outputs_in_another_structure_are_noted(says, made, expected):
    found = hloscope.verify(
        lambda x: made(x * 2), lambda x: expected(x + x), ("f32[8@X]",), mesh={"X": 8}, slice="cpu:8"
    )
    assert found.passed
    (note,) = [note for note in found.target.notes if "by position" in note]
    assert note in str(found)
    says(note)


def test_outputs_in_the_same_structure_are_not():
    found = hloscope.verify(lambda x: {"a": x * 2}, lambda x: {"a": x + x}, ("f32[8@X]",), mesh={"X": 8}, slice="cpu:8")
    assert found.passed
    assert not any("by position" in note for note in found.target.notes)


@pytest.mark.parametrize("decorated", [0, 1])
def test_the_arguments_may_be_those_of_either_decorator(decorated):
    pair = [*closures(2)]
    pair[decorated] = hloscope.target(**FACTS)(pair[decorated])
    assert hloscope.verify(*pair, scale={"B": 16, "D": 8}).passed


def test_a_wrong_closure_fails():
    found = hloscope.verify(*closures(3), **FACTS, scale={"B": 16, "D": 8})
    assert not found.passed
    assert [one.rule for one in found.findings] == ["wrong-result"]


def test_a_closure_whose_devices_decide_is_not_run_here(says):
    def step(x):
        return x * 2

    @jax.shard_map(in_specs=P("X"), out_specs=P("X"), check_vma=False)
    def twin(x):
        here = jax.lax.axis_index("X")
        body = lambda c: (c[0] + 1, jax.lax.psum(c[1], "X"))  # noqa: E731
        return jax.lax.while_loop(lambda c: c[0] < here, body, (0, x))[1]

    found = hloscope.verify(step, twin, ("f32[64@X]",), mesh={"X": 8})
    assert found.numerics.status == "not run"
    assert "each device decides" in says(found.numerics.message)
    assert not found.passed


def test_gradients_and_one_device(says):
    target, twin = (f"{USER_CODE}/wrong_twins.py:{name}" for name in ("matmul", "matmul"))
    found = hloscope.verify(target, twin, grad=True, against_single_device=True, on="cpu")
    alone = found.numerics.comparisons[1].against
    assert re.findall(r"target|single device", says(alone)) == ["target", "single device"]
    assert [(one.subject, one.name, one.against) for one in found.numerics.comparisons] == [
        ("target", "result", "reference"),
        ("target", "result", alone),
        ("reference", "result", alone),
        ("target", "gradient of x", "reference"),
        ("target", "gradient of w", "reference"),
    ]
    assert found.passed


@pytest.mark.parametrize("name", ["pytree", "three_chips", "two_slices"])
def test_keys_pytrees_and_slices_of_all_kinds(name, root, tmp_path):
    target = root / "tests/compile/user_code/modern.py"
    twin = shutil.copy(target, tmp_path / f"twin_of_{name}.py")
    found = hloscope.verify(f"{target}:{name}", f"{twin}:{name}")
    assert found.passed
    assert found.communication.same
    assert found.numerics.comparisons


@pytest.mark.parametrize(
    ("options", "wrong", "helps"),
    [
        ({"scale": {"Q": 8}}, "'Q'", "B, D, F"),
        ({"ranges": {"y": (0, 8)}}, "'y'", "x, w"),
        ({"ranges": {"x": 3}}, "x cannot be 3", "(0, 8)"),
        ({"ranges": {"x": (3, 2)}}, "of x", "3 is not below 2"),
        ({"ignore": ["more-than-refrence"]}, "'more-than-refrence'", "more-than-reference?"),
    ],
    ids=["scale", "argument", "range", "ends", "ignore"],
)
def test_names_that_do_not_exist(says, options, wrong, helps):
    names = (f"{USER_CODE}/wrong_twins.py:{name}" for name in ("matmul", "wrong_axis"))
    with pytest.raises(hloscope.HloscopeError) as caught:
        hloscope.verify(*names, **options)
    assert wrong in caught.value.what
    assert helps in (caught.value.why or caught.value.fix)
    says(caught)


EDITED = """
import jax
from jax.sharding import PartitionSpec as P

FACTOR = 2


def step(x, w):
    return x @ w * 2


@jax.shard_map(in_specs=(P("X", None), P(None, None)), out_specs=P("X", None))
def twin(x, w):
    return x @ w * FACTOR
"""


@pytest.fixture
def edited(tmp_path, monkeypatch):
    (tmp_path / "edited_twins.py").write_text(EDITED)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("edited_twins")
    del sys.modules["edited_twins"]


@pytest.mark.long
def test_functions_are_verified_as_they_are_here_and_not_as_their_file_is_now(says, edited):
    found = hloscope.verify(edited.step, edited.twin, **FACTS, scale={"B": 16, "D": 8})
    assert (found.passed, found.numerics.notes) == (True, ())
    file = Path(edited.__file__)
    file.write_text(EDITED.replace("FACTOR = 2", "FACTOR = 3"))
    found = hloscope.verify(edited.step, edited.twin, **FACTS, scale={"B": 16, "D": 8})
    assert found.passed
    assert "edited" in says(found.numerics.notes[0])
    file.write_text(EDITED)
    edited.FACTOR = 3
    assert not hloscope.verify(edited.step, edited.twin, **FACTS, scale={"B": 16, "D": 8}).passed
    file.write_text("import nothing_of_that_name\n")
    assert hloscope.verify(edited.step, edited.step, **FACTS, against_single_device=True).passed
