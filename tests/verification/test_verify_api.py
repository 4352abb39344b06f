"""`hloscope.verify` from Python: named functions in a child process, closures in this one."""

from __future__ import annotations

import importlib
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


def test_closures_are_verified_in_this_process():
    found = hloscope.verify(*closures(2), **FACTS, scale={"B": 16, "D": 8})
    assert found.passed
    assert found.numerics.ran_on == "8 simulated CPU devices"
    assert found.numerics.dims == {"B": 16, "D": 8}
    assert found.numerics.notes == ("run in this process, because a function cannot be imported in another",)
    assert repr(found).startswith("<Verification of closures.<locals>.step against closures.<locals>.twin: passed>")


def test_a_wrong_closure_fails():
    found = hloscope.verify(*closures(3), **FACTS, scale={"B": 16, "D": 8})
    assert not found.passed
    assert [one.rule for one in found.findings] == ["wrong-result"]


def test_a_closure_whose_devices_decide_is_not_run_here():
    def step(x):
        return x * 2

    @jax.shard_map(in_specs=P("X"), out_specs=P("X"), check_vma=False)
    def twin(x):
        here = jax.lax.axis_index("X")
        body = lambda c: (c[0] + 1, jax.lax.psum(c[1], "X"))  # noqa: E731
        return jax.lax.while_loop(lambda c: c[0] < here, body, (0, x))[1]

    found = hloscope.verify(step, twin, ("f32[64@X]",), mesh={"X": 8})
    assert found.numerics.status == "not run"
    assert found.numerics.message.startswith("a collective stands under a branch or a loop that the devices decide")
    assert not found.passed


def test_gradients_and_one_device():
    target, twin = (f"{USER_CODE}/wrong_twins.py:{name}" for name in ("matmul", "matmul"))
    found = hloscope.verify(target, twin, grad=True, against_single_device=True, on="cpu")
    assert [(one.subject, one.name, one.against) for one in found.numerics.comparisons] == [
        ("target", "result", "reference"),
        ("target", "result", "the target on a single device"),
        ("reference", "result", "the target on a single device"),
        ("target", "gradient of x", "reference"),
        ("target", "gradient of w", "reference"),
    ]
    assert found.passed


@pytest.mark.parametrize("name", ["pytree", "three_chips", "two_slices"])
def test_keys_pytrees_and_slices_of_all_kinds(name, root, tmp_path):
    target = root / "tests/program/user_code/modern.py"
    twin = shutil.copy(target, tmp_path / f"twin_of_{name}.py")
    found = hloscope.verify(f"{target}:{name}", f"{twin}:{name}")
    assert found.passed
    assert found.communication.same
    assert found.numerics.comparisons


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"scale": {"Q": 8}},
            "error: the target's dimensions have no letter 'Q'\n   = why: its letters are B, D, F\n"
            "   = fix: write its argument types with letters, such as 'bf16[B@X,D]', and their sizes as dims",
        ),
        ({"ranges": {"y": (0, 8)}}, "error: the target has no argument 'y'\n   = fix: it has x, w"),
        ({"ranges": {"x": 3}}, "error: the range of x cannot be 3\n   = fix: give its two ends: (0, 8)"),
        ({"ranges": {"x": (3, 2)}}, "error: the range of x is empty\n   = why: 3 is not below 2"),
        (
            {"ignore": ["more-than-refrence"]},
            "error: a verification has no finding named 'more-than-refrence'\n"
            "   = fix: did you mean more-than-reference?",
        ),
    ],
)
def test_names_that_do_not_exist(options, message):
    names = (f"{USER_CODE}/wrong_twins.py:{name}" for name in ("matmul", "wrong_axis"))
    with pytest.raises(hloscope.HloscopeError) as caught:
        hloscope.verify(*names, **options)
    assert str(caught.value) == message


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


def test_functions_are_verified_as_they_are_here_and_not_as_their_file_is_now(edited):
    found = hloscope.verify(edited.step, edited.twin, **FACTS, scale={"B": 16, "D": 8})
    assert (found.passed, found.numerics.notes) == (True, ())
    file = Path(edited.__file__)
    file.write_text(EDITED.replace("FACTOR = 2", "FACTOR = 3"))
    found = hloscope.verify(edited.step, edited.twin, **FACTS, scale={"B": 16, "D": 8})
    assert found.passed
    assert "a file was edited" in found.numerics.notes[0]
    file.write_text(EDITED)
    edited.FACTOR = 3
    assert not hloscope.verify(edited.step, edited.twin, **FACTS, scale={"B": 16, "D": 8}).passed
    file.write_text("import nothing_of_that_name\n")
    assert hloscope.verify(edited.step, edited.step, **FACTS, against_single_device=True).passed
