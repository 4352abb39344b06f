"""What a user finds who knows hloscope by `help()` alone: names that are there, programs that can be told apart."""

from __future__ import annotations

import copy
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import hloscope
from hloscope.analysis.totals import label_programs
from hloscope.base.errors import HloscopeError, NotationError, TargetError

ROOT = Path(__file__).parent.parent
CAPTURED = ROOT / "fixtures" / "captured"
MATMUL = CAPTURED / "matmul.matmul.jax-0.10.hlo"
EXPERTS = CAPTURED / "mixture_of_experts.mixture_of_experts.jax-0.10.hlo"


@pytest.fixture(scope="module")
def experts():
    return hloscope.analyze(EXPERTS, slice="v5e:2x4")


@pytest.fixture(scope="module")
def gradients():
    return hloscope.analyze(ROOT / "fixtures/spellings/partitioned.fsdp_gradients.jax-0.10.hlo", slice="v5e:2x4")


def in_a_fresh_process(code: str) -> str:
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout


# ---- names


def test_contracts_are_there_in_a_fresh_process_and_load_late():
    said = in_a_fresh_process(
        "import sys, hloscope\n"
        "print('contracts' in dir(hloscope), 'hloscope.contracts' in sys.modules)\n"
        "print(hloscope.contracts.none(), hloscope.contracts.no('all-gather', 'X'))\n"
    )
    assert said == "True False\nnone no all-gather@X\n"


# ---- two programs of one name


def on(found, **changed):
    return replace(found, **changed)


def axes_of(found):
    return zip(found.mesh.axis_names, found.mesh.axis_sizes, strict=True)


def test_programs_of_one_name_are_told_apart_by_what_they_differ_in(experts):
    other_slice = on(experts, slice=replace(experts.slice, name="v6e:2x4"))
    other_mesh = on(
        experts, mesh=replace(experts.mesh, axis_names=tuple(f"{name}_" for name in experts.mesh.axis_names))
    )
    first, *rest = experts.arguments
    other_spec = on(experts, arguments=(replace(first, sharding="P('Q')"), *rest))
    other_out = on(experts, outputs=tuple(replace(array, sharding="P('Q')") for array in experts.outputs))

    def apart(*programs):
        return label_programs(["step"] * len(programs), programs)

    assert apart(experts, other_slice) == ("step (v5e:2x4)", "step (v6e:2x4)")
    assert apart(experts, other_mesh)[1] == f"step ({','.join(f'{n}_={s}' for n, s in axes_of(experts))})"
    assert apart(experts, other_spec) == (f"step ({first.name}: {first.sharding})", f"step ({first.name}: P('Q'))")
    assert apart(experts, other_out)[1] == f"step ({experts.outputs[0].name}: P('Q'))"
    assert apart(experts, experts, other_slice) == ("step (1)", "step (2)", "step (3)")
    assert label_programs(["step", "step"], [experts, None]) == ("step (1)", "step (2)")
    assert label_programs(["step", "other"], [experts, experts]) == ("step", "other")


def test_a_difference_and_a_check_name_both(experts):
    other = on(experts, slice=replace(experts.slice, name="v6e:2x4"))
    name = experts.target
    found = hloscope.diff(experts, other)
    assert (found.old, found.new) == (f"{name} (v5e:2x4)", f"{name} (v6e:2x4)")
    assert " ".join(str(found).split()).startswith(f"{name} (v5e:2x4) -> {name} (v6e:2x4): ")
    report = hloscope.check(experts, experts, contract="none")
    assert [checked.name for checked in report.failed] == [f"{name} (1)", f"{name} (2)"]
    assert hloscope.check(experts, contract="none").failed[0].name == name
    assert "two specs" in hloscope.diff.__doc__


# ---- which collective is asked for


def test_a_selector_explains_all_that_it_speaks_of(gradients):
    for selector, count in (("all-gather@axis_0", 2), ("all-*", 3), ("*", 4), ("all-* over ici", 3)):
        explained = hloscope.explain(gradients, collective=selector)
        assert {one.collective.name for one in explained} <= {one.name for one in gradients[selector]}
        assert (sum(one.copies for one in explained), len(gradients[selector])) == (count, count)
        assert explained.everything
    with pytest.raises(NotationError, match="the mesh has no axis fspd"):
        hloscope.explain(gradients, collective="all-gather@fspd")
    with pytest.raises(TargetError, match="no collective 'ragged-all-to-all'"):
        hloscope.explain(gradients, collective="ragged-all-to-all")


def test_a_name_that_is_none_is_refused_in_pythons_words(says, experts):
    with pytest.raises(TargetError) as caught:
        hloscope.explain(experts, collective="all-gathr.8")
    assert 'collective="all-gather@X"' in caught.value.fix
    assert "hloscope" not in caught.value.fix
    says(caught.value)


def test_a_number_means_the_row_of_the_report_and_the_place_in_collectives(gradients):
    assert len(gradients.collectives) == 4
    for number, one in enumerate(gradients.collectives, start=1):
        assert hloscope.explain(gradients, collective=number)[0].collective == one
        rows = [line.split() for line in str(gradients).splitlines() if line.split()[:1] == [str(number)]]
        assert rows[0][1] == one.kind
    assert "found.collectives[0]" in hloscope.explain.__doc__


# ---- what is asked for wrongly


MESH = {"X": 4, "Y": 2}
ARGS = ("bf16[8@X,2048@Y]", "bf16[2048@Y,256]")


def mlp(x, w):
    return x @ w


def refusal(call, *given, **options) -> HloscopeError:
    with pytest.raises(HloscopeError) as caught:
        call(*given, **options)
    return caught.value


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ((b"bf16[8]", ARGS[1]), "args[0]"),
        ((ARGS[0], P("X")), "args[1]"),
        (({"w": bytearray(2)}, ARGS[1]), "args[0]['w']"),
        ((ARGS[0], Mesh(np.array(jax.devices()[:1]), ("X",))), "args[1]"),
    ],
    ids=["bytes", "spec", "nested", "mesh"],
)
def test_an_argument_that_is_no_array_is_named(says, given, named):
    error = refusal(hloscope.analyze, mlp, given, mesh=MESH)
    assert error.what.startswith(f"{named} must be an array or its type, not ")
    says(re.sub(r"Mesh\(.*", "Mesh(…", error.what))


def test_an_argument_by_name_that_is_no_array_is_named_too():
    error = refusal(hloscope.analyze, mlp, ARGS[:1], kwargs={"w": b""}, mesh=MESH)
    assert error.what.startswith("kwargs['w'] must be an array")


@pytest.mark.tpu_compiler
def test_none_is_named_where_the_function_cannot_do_with_it(says):
    error = refusal(hloscope.analyze, mlp, (None, ARGS[1]), mesh=MESH)
    assert "args[0] is None" in says(error.fix)
    assert hloscope.analyze(lambda x, extra: x.sum(), (ARGS[0], None), mesh=MESH).collectives


def test_positions_of_donated_arguments_are_counted_before_jax_does(says):
    error = refusal(hloscope.analyze, mlp, ARGS, mesh=MESH, donate=(0, 7))
    assert re.findall(r"\d", f"{error.what} {error.fix}") == ["7", "2", "0", "1"]
    says(error)
    model = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    assert re.findall(r"\d", refusal(hloscope.analyze, model, ("f32[8,4]",), mesh=MESH, donate=3).what) == ["3", "1"]


@pytest.mark.parametrize(
    ("slice_name", "meant"),
    [("tpu v7", "v7x:2x2x2"), ("TPU v7:2x2x1", "v7x:2x2x1"), ("tpu v5e", "v5e:2x4"), ("TPU v6", "v6e:2x4")],
)
def test_slices_are_meant_by_other_spellings(slice_name, meant):
    assert meant in refusal(hloscope.analyze, mlp, ARGS, mesh=MESH, slice=slice_name).fix


@pytest.mark.parametrize("mesh", [{"X": 0}, {"X": "4"}, {1: 4}, {"X": 4.5}], ids=str)
def test_the_wrong_entry_of_a_mesh_is_named(says, mesh):
    error = refusal(hloscope.analyze, mlp, ARGS, mesh=mesh | {"Y": 2})
    ((key, size),) = mesh.items()
    assert (repr(size) if key == "X" else repr(key)) in error.what
    assert "whole number" in error.why
    says(error)


def test_a_missing_mesh_is_suggested_with_the_axes_that_are_named():
    error = refusal(hloscope.analyze, mlp, ("bf16[8@(data,pipe),2048@model]", "bf16[2048,256]"))
    assert error.fix == 'add a mesh, for example mesh={"data": 4, "pipe": 2, "model": 2}'


def test_slices_of_other_sizes_than_the_mesh_are_no_reason_to_give_a_slice(says):
    error = refusal(hloscope.price, mlp, ("v5e:2x4", "v5e:4x4"), ARGS, mesh=MESH)
    assert "slice=" not in error.fix
    says(error)


def test_a_name_that_is_no_module_could_be_the_function_itself():
    assert refusal(hloscope.analyze, "mlp").fix.startswith("pass the function itself")


@pytest.mark.parametrize(
    ("holder", "name", "meant"),
    [
        (lambda _: hloscope, "analyse", "analyze"),
        (lambda found: found, "collectivs", "collectives"),
        (lambda found: found.collectives, "were", "where"),
        (lambda found: found.collectives[0], "wire", "wire_bytes"),
        (lambda found: found.totals, "wirebytes", "wire_bytes"),
        (lambda found: hloscope.check(found, contract="none"), "passes", "passed"),
    ],
)
def test_an_attribute_that_is_not_there_was_meant_to_be_another(experts, holder, name, meant):
    with pytest.raises(AttributeError, match=f"no attribute '{name}': did you mean {meant}\\?$"):
        getattr(holder(experts), name)


def test_what_python_and_notebooks_ask_for_is_refused_plainly(experts):
    with pytest.raises(AttributeError, match=r"'Analysis' object has no attribute '_repr_latex_'$"):
        _ = experts._repr_latex_
    assert not hasattr(experts, "shape")
    assert copy.deepcopy(experts) == experts


@pytest.mark.tpu_compiler
def test_arrays_without_a_sharding_are_said_to_be_the_compilers_to_choose(says):
    def notes(first, second=ARGS[1]):
        return hloscope.analyze(mlp, (first, second), mesh=MESH).notes

    array = np.ones((8, 2048), np.float32)
    (note,) = notes(array)
    assert re.findall("x|compiler", says(note)) == ["x", "compiler"]
    assert "x, w have" in notes(array, jax.ShapeDtypeStruct((2048, 256), jnp.float32))[0]
    assert notes("f32[8,2048]") == ()
    assert hloscope.analyze(mlp, (array, np.ones((2048, 8), np.float32))).notes == ()


# ---- what help says


def docstrings(value: object, name: str) -> Iterator[tuple[str, str]]:
    yield name, inspect.getdoc(value) or ""
    if inspect.isclass(value) and not issubclass(value, Exception):
        for member, held in vars(value).items():
            if not member.startswith("_") and (inspect.isfunction(held) or isinstance(held, property | classmethod)):
                yield f"{name}.{member}", inspect.getdoc(held) or ""


def test_help_speaks_python():
    held = [(getattr(hloscope, name), name) for name in hloscope.__all__ if name != "__version__"]
    held += [(getattr(hloscope.rules, name), name) for name in ("page", "pages", "failed_cases")]
    texts = [text for value, name in held for text in docstrings(value, name)]
    assert len(texts) > 100
    assert {name: found for name, text in texts if (found := re.findall(r"(?<![\w-])--[a-z][\w-]*", text))} == {
        "record": ["--steps"]  # the script's own
    }


def test_the_help_of_the_package_shows_examples_and_functions_first():
    text = inspect.getdoc(hloscope)
    assert text.count(">>>") in (3, 4)
    named = set(re.findall(r"^ {4}([\w, ]+):", text, re.MULTILINE))
    told = {name for names in named for name in names.split(", ")}
    functions = {name for name in hloscope.__all__ if inspect.isfunction(getattr(hloscope, name))}
    assert told == functions - {"accept"}
    assert inspect.getdoc(hloscope.Collectives.where).count('assert not (bad := found.collectives.where("all-gather"')


# ---- recordings


@pytest.mark.tpu_compiler
def test_a_recorder_prints_as_what_it_recorded():
    recorder = hloscope.recording("v5e:2x4")
    assert repr(recorder) == str(recorder) == "<Recorder for v5e:2x4: not started>"
    with recorder:
        assert "in progress" in repr(recorder)
        jax.jit(lambda x: x @ x)(jnp.ones((64, 64)))
    assert str(recorder) == str(recorder.result)
    assert repr(recorder) == repr(recorder.result)
    assert "\n" not in repr(recorder)
    assert recorder._repr_markdown_() == recorder.result._repr_markdown_()
