"""Where in the user's model collectives are, on small HLO: by what they move, update and multiply, and by passes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hloscope.analysis.model_parts import skip_helpers
from hloscope.model import Phase, Role, SourceFrame

HEADER = "num_partitions=8, input_output_alias={ {0}: (0, {}, may-alias) }"
WEIGHT = """
%w = bf16[8,64] parameter(0), metadata={op_name="params[\\'layers\\'][3][\\'gate\\'][\\'kernel\\']"}
%x = bf16[4,64] parameter(1), metadata={op_name="tokens"}
"""
GATHER = """
%gathered = bf16[64,64] all-gather(%w), replica_groups={}, dimensions={0}, FORWARD
%y = bf16[4,64] dot(%x, %gathered), lhs_contracting_dims={1}, rhs_contracting_dims={0}, FORWARD
"""


NAMES = {
    "FORWARD": "jit(step)/jvp()/dot_general",
    "BACKWARD": "jit(step)/transpose(jvp())/dot_general",
    "SCOPED": "jit(step)/jvp(Model)/layers_3/mlp/gate/dot_general",
    "AFTER": "jit(step)/reduce_sum",
}
"""Name stacks by the words that stand for them below."""


def part_of(analyze, entry, kind, **options):
    for word, name in NAMES.items():
        entry = entry.replace(word, f'metadata={{op_name="{name}"}}')
    (found,) = (one for one in analyze(entry, **{"header": HEADER, **options}).collectives if one.kind == kind)
    return found.part


def test_a_gathered_weight_has_the_module_of_its_argument(analyze):
    part = part_of(analyze, WEIGHT + GATHER + "ROOT %out = (bf16[8,64]) tuple(%w)", "all-gather")
    assert (part.module, part.layers, part.role, part.phase) == ("layers.*.gate", (3,), Role.WEIGHTS, Phase.FORWARD)
    assert part.arguments == ("params['layers'][3]['gate']['kernel']",)


def test_what_comes_out_of_a_multiplication_with_a_weight_belongs_to_it(analyze):
    entry = (
        WEIGHT
        + GATHER
        + """
%sum.1 = bf16[4,64] all-reduce(%y), replica_groups={}, to_apply=%sum, FORWARD
ROOT %out = (bf16[8,64]) tuple(%w)
"""
    )
    part = part_of(analyze, entry, "all-reduce")
    assert (part.module, part.layers, part.role) == ("layers.*.gate", (3,), Role.ACTIVATIONS)


@pytest.mark.parametrize(
    "update",
    [
        "%new = bf16[8,64] subtract(%w, %grad)\nROOT %out = (bf16[8,64]) tuple(%new)",
        "%new = bf16[8,64] negate(%grad)\nROOT %out = (bf16[8,64]) tuple(%new)",
    ],
    ids=["beside-the-argument", "in-its-memory"],
)
def test_a_gradient_belongs_to_what_it_updates(analyze, update):
    entry = (
        WEIGHT
        + """
%made = bf16[64,64] broadcast(%x), dimensions={}
%grad = bf16[8,64] reduce-scatter(%made), replica_groups={}, dimensions={0}, to_apply=%sum, BACKWARD
"""
        + update
    )
    part = part_of(analyze, entry, "reduce-scatter")
    assert (part.module, part.role, part.phase) == ("layers.*.gate", Role.GRADIENT, Phase.BACKWARD)


NORMED = """
%update (g: bf16[8,64], m: bf16[8,64]) -> (bf16[], bf16[8,64]) {
  %g = bf16[8,64] parameter(0)
  %m = bf16[8,64] parameter(1)
  %moved = bf16[8,64] add(%g, %m)
  %square = bf16[8,64] multiply(%moved, %moved)
  %zero = bf16[] constant(0)
  %norm = bf16[] reduce(%square, %zero), dimensions={0,1}, to_apply=%sum
  ROOT %both = (bf16[], bf16[8,64]) tuple(%norm, %moved)
}
"""


@pytest.mark.parametrize(("beside", "role"), [("%w", Role.GRADIENT), ("%other", None)])
def test_a_norm_that_is_taken_in_the_update_does_not_hide_what_is_updated(analyze, beside, role):
    entry = (
        WEIGHT
        + f"""
%made = bf16[64,64] broadcast(%x), dimensions={{}}
%other = bf16[8,64] broadcast(%x), dimensions={{}}
%grad = bf16[8,64] reduce-scatter(%made), replica_groups={{}}, dimensions={{0}}, to_apply=%sum, BACKWARD
%new = (bf16[], bf16[8,64]) fusion(%grad, {beside}), kind=kLoop, calls=%update
ROOT %out = bf16[] get-tuple-element(%new), index=0
"""
    )
    part = part_of(analyze, entry, "reduce-scatter", computations=NORMED, header="num_partitions=8")
    assert part.role is role
    assert part.module == ("layers.*.gate" if role else None)


def test_what_comes_after_the_gradient_is_the_optimizers(analyze):
    entry = (
        WEIGHT
        + """
%grad = bf16[8,64] negate(%w), BACKWARD
%square = bf16[8,64] multiply(%grad, %grad), AFTER
%norm = bf16[8,64] all-reduce(%square), replica_groups={}, to_apply=%sum, AFTER
ROOT %out = (bf16[8,64]) tuple(%norm)
"""
    )
    assert part_of(analyze, entry, "all-reduce").phase is Phase.OPTIMIZER


def test_without_a_gradient_no_pass_is_known(analyze):
    entry = WEIGHT + GATHER.replace("FORWARD", "AFTER") + "ROOT %out = (bf16[8,64]) tuple(%w)"
    assert part_of(analyze, entry, "all-gather").phase is None


def test_scopes_name_the_module_where_they_say_as_much_as_the_argument(analyze):
    named = GATHER.replace("FORWARD", "SCOPED")
    part = part_of(analyze, WEIGHT + named + "ROOT %out = (bf16[8,64]) tuple(%w)", "all-gather")
    assert part.arguments == ("params['layers'][3]['gate']['kernel']",)
    assert str(part.module).endswith("gate")


def test_helpers_of_the_project_move_the_line_alone(analyze):
    found = analyze(
        WEIGHT + GATHER.replace("FORWARD", "metadata={}") + "ROOT %out = (bf16[8,64]) tuple(%w)", header=HEADER
    )
    stack = (
        SourceFrame(file="nn.py", line=3, function="dense"),
        SourceFrame(file="model.py", line=9, function="block"),
    )
    (gather,) = found.collectives
    here = replace(found, collectives=(replace(gather, source=stack, part=replace(gather.part, line=stack[0])),))
    (moved,) = skip_helpers(here, ["nn.py"]).collectives
    assert moved.part == replace(gather.part, line=stack[1])
    assert skip_helpers(here, []) is here


def test_nothing_names_a_module_where_neither_names_nor_data_flow_do(analyze):
    entry = """
%x = bf16[4,64] parameter(0), metadata={op_name="tokens"}
%sum.1 = bf16[4,64] all-reduce(%x), replica_groups={}, to_apply=%sum
ROOT %out = (bf16[4,64]) tuple(%sum.1)
"""
    part = part_of(analyze, entry, "all-reduce", header="num_partitions=8")
    assert (part.module, part.layers, part.phase, part.role, part.arguments) == (None, (), None, None, ())
