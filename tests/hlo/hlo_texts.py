"""HLO texts that several tests read, and the corpus where there is one."""

# ruff: noqa: E501 - HLO is printed in long lines
from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

import pytest

from hloscope.base.errors import HloParseError
from hloscope.hlo import HloModule, parse_module

MODULE = """\
HloModule jit_step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }, entry_computation_layout={(bf16[8,128]{1,0:T(8,128)(2,1)})->bf16[8,512]{1,0}}, num_partitions=8, replica_count=2, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["data"=4, "model"=2]>}}

FileNames
1 "model.py"
2 "layers \\"inner\\".py"

FunctionNames
1 "step"
2 "Layer.__call__"

FileLocations
1 {file_name_id=1 function_name_id=1 line=155 end_line=155 column=13 end_column=20}
2 {file_name_id=2 function_name_id=2 line=24 end_line=26 column=4 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}


%region_0.1 (a.1: f32[], b.1: f32[]) -> f32[] {
  %a.1 = f32[]{:T(128)} parameter(0)
  %b.1 = f32[]{:T(128)} parameter(1)
  ROOT %add.1 = f32[]{:T(128)} add(%a.1, %b.1)
}

%async_computation (p.2: bf16[8,128]) -> bf16[8,512] {
  %p.2 = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %all-gather.1 = bf16[8,512]{1,0:T(8,128)(2,1)S(1)} all-gather(%p.2), channel_id=3, replica_groups=[2,4]<=[4,2]T(1,0), dimensions={1}, use_global_device_ids=true, metadata={op_name="jit(step)/dot_general" stack_frame_id=2}
}, execution_thread="sparsecore"

ENTRY %main.9 (x.1: bf16[8,128]) -> (bf16[8,512], f32[]) {
  %x.1 = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0), sharding={devices=[4,1,2]<=[8] last_tile_dim_replicate}, metadata={op_name="x"}
  %constant.1 = f32[]{:T(128)} constant(-1.5e-03)
  %start = ((bf16[8,128]{1,0:T(8,128)(2,1)}), bf16[8,512]{1,0:T(8,128)(2,1)S(1)}, s32[]{:S(2)}) call-start(%x.1), async_execution_thread="sparsecore", to_apply=%async_computation
  %done = bf16[8,512]{1,0:T(8,128)(2,1)S(1)} call-done(%start)
  %custom = f32[4]{0} custom-call(%done, %x.1), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
  "rank": 0
},chain_id="0"}, backend_config={"flag_configs":[],"debug":"colors:{2}"}
  %reduce.1 = f32[] reduce(%custom, %constant.1), dimensions={0}, to_apply=%region_0.1
  ROOT %tuple.1 = (bf16[8,512]{1,0:T(8,128)(2,1)S(1)}, f32[]) tuple(%done, %reduce.1)
}
"""

BARE = """\
HloModule bare

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}

ENTRY main {
  p0 = f32[4]{0} parameter(0)
  zero = f32[] constant(0)
  ROOT reduce = f32[] reduce(p0, zero), dimensions={0}, to_apply=add
}
"""


def module_of(body: str, *, signature: str = "(p: f32[2,4]) -> f32[2,4]") -> HloModule:
    """A module whose ENTRY holds a parameter `%p` and the given lines."""
    lines = "".join(f"  {line}\n" for line in dedent(body).strip().splitlines())
    return parse_module(f"HloModule m\n\nENTRY %e {signature} {{\n  %p = f32[2,4]{{1,0}} parameter(0)\n{lines}}}\n")


def message_of(text: str, *, name: str | None = "f.hlo") -> str:
    """The whole text of the error that a text causes."""
    with pytest.raises(HloParseError) as caught:
        parse_module(text, name=name)
    return str(caught.value)


def mentions(message: str, words: str) -> bool:
    """Whether the first line of a message, which says what is wrong, has all of these words."""
    first = message.splitlines()[0]
    return all(word in first for word in words.split())


def corpus_files() -> list[Path]:
    """Every `.hlo` file below the folder that `HLOSCOPE_CORPUS` names."""
    folder = os.environ.get("HLOSCOPE_CORPUS")
    return sorted(Path(folder).rglob("*.hlo")) if folder else []


needs_corpus = pytest.mark.skipif("HLOSCOPE_CORPUS" not in os.environ, reason="HLOSCOPE_CORPUS is not set")
