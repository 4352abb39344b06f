"""What a user finds who knows hloscope by `help()` alone: names that are there, programs that can be told apart."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import hloscope
from hloscope.analysis.namesakes import told_apart
from hloscope.errors import NotationError, TargetError

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
        "print(hloscope.contracts.building.none(), hloscope.contracts.no('all-gather', 'X'))\n"
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
        return told_apart(["step"] * len(programs), programs)

    assert apart(experts, other_slice) == ("step (v5e:2x4)", "step (v6e:2x4)")
    assert apart(experts, other_mesh)[1] == f"step ({','.join(f'{n}_={s}' for n, s in axes_of(experts))})"
    assert apart(experts, other_spec) == (f"step ({first.name}: {first.sharding})", f"step ({first.name}: P('Q'))")
    assert apart(experts, other_out)[1] == f"step ({experts.outputs[0].name}: P('Q'))"
    assert apart(experts, experts, other_slice) == ("step (1)", "step (2)", "step (3)")
    assert told_apart(["step", "step"], [experts, None]) == ("step (1)", "step (2)")
    assert told_apart(["step", "other"], [experts, experts]) == ("step", "other")


def test_a_difference_and_a_check_name_both(experts):
    other = on(experts, slice=replace(experts.slice, name="v6e:2x4"))
    name = experts.target
    found = hloscope.diff(experts, other)
    assert (found.old, found.new) == (f"{name} (v5e:2x4)", f"{name} (v6e:2x4)")
    assert str(found).startswith(f"{name} (v5e:2x4) -> {name} (v6e:2x4): ")
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
