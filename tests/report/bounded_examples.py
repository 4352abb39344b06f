"""Programs whose figures are bounds: a loop of unknown length, and a branch that may not be taken."""

from __future__ import annotations

from dataclasses import replace

import hloscope
from hloscope.model import Analysis
from hloscope.model.trial import Figures, Suggestion, Suggestions
from hloscope.model.vocabulary import Bound

_SUM = "sum {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT add = f32[] add(x, y)\n}\n"
_REDUCE = (
    "all-reduce(v), channel_id=1, replica_groups=[1,4]<=[4], use_global_device_ids=true, to_apply=sum, "
    'metadata={op_name="jit(step)/psum"}'
)

ONCE = f"""HloModule once, num_partitions=4

{_SUM}
ENTRY main {{
  v = f32[1024] parameter(0)
  ROOT r = f32[1024] {_REDUCE}
}}
"""
LOOP = f"""HloModule loop, num_partitions=4

{_SUM}
body {{
  s = (f32[1024], pred[]) parameter(0)
  v = f32[1024] get-tuple-element(s), index=0
  c = pred[] get-tuple-element(s), index=1
  r = f32[1024] {_REDUCE}
  ROOT t = (f32[1024], pred[]) tuple(r, c)
}}

cond {{
  s = (f32[1024], pred[]) parameter(0)
  ROOT c = pred[] get-tuple-element(s), index=1
}}

ENTRY main {{
  p = f32[1024] parameter(0)
  q = pred[] parameter(1)
  i = (f32[1024], pred[]) tuple(p, q)
  w = (f32[1024], pred[]) while(i), condition=cond, body=body
  ROOT o = f32[1024] get-tuple-element(w), index=0
}}
"""
BRANCH = f"""HloModule branch, num_partitions=4

{_SUM}
yes {{
  v = f32[1024] parameter(0)
  ROOT r = f32[1024] {_REDUCE}
}}

no {{
  ROOT v = f32[1024] parameter(0)
}}

ENTRY main {{
  p = f32[1024] parameter(0)
  q = pred[] parameter(1)
  ROOT o = f32[1024] conditional(q, p, p), true_computation=yes, false_computation=no
}}
"""
MULTIPLIES = """HloModule multiplies, num_partitions=4

yes {
  v = bf16[4096,4096] parameter(0)
  ROOT r = bf16[4096,4096] dot(v, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

no {
  w = bf16[4096,4096] parameter(0)
  ROOT z = bf16[4096,4096] add(w, w)
}

ENTRY main {
  p = bf16[4096,4096] parameter(0)
  q = pred[] parameter(1)
  ROOT o = bf16[4096,4096] conditional(q, p, p), true_computation=yes, false_computation=no
}
"""
KERNEL = """HloModule kernel, num_partitions=4

ENTRY main {
  p = f32[1024] parameter(0)
  k = f32[1024] custom-call(p), custom_call_target="tpu_custom_call"
  ROOT u = f32[1024] custom-call(k), custom_call_target="SomethingElse"
}
"""


def analysis_of(text: str) -> Analysis:
    """The program on a slice."""
    name = text.split()[1].rstrip(",")
    return hloscope.analyze_text(text, name=f"{name}.hlo", mesh={"X": 4}, slice="v5e:2x2")


def ways_of(before: Bound, after: Bound, step_us: float) -> Suggestions:
    """A program of 1 ms, and a way to shard it that takes some time; both may be bounds."""
    figures = Figures(
        step_us=1000.0,
        step_us_range=None,
        step_bound=before,
        wire_bytes=10**6,
        wire_bytes_by_axis={"X": 10**6},
        wire_bound=Bound.EXACT,
        hbm_bytes=10**9,
        collectives=1,
    )
    own = Suggestion(recipe=None, mesh={"X": 4}, is_own=True, figures=figures)
    cost = replace(figures, step_us=step_us, step_bound=after)
    gain = 1 - step_us / 1000.0
    way = Suggestion(recipe="way", mesh={"X": 4}, figures=cost, gain=gain, is_worth_it=gain > 0)
    return Suggestions(target="step", slice="v5e:2x2", own=own, front=(way,), space=2, ranked=2, compiled=2)
