"""Calls programs of the seeds as a script would: meshes over the devices at hand, arrays put there, `jax.jit`.

python seeds.py FOLDER [FILE:FUNCTION ...]
"""

import importlib
import re
import sys

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

TYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "s32": jnp.int32, "f16": jnp.float16, "pred": jnp.bool_}


def array(text, dims, mesh):
    """Zeros of a type such as `bf16[8@X,D@(Y,Z)]`."""
    kind, inside = re.fullmatch(r"(\w+)\[(.*)\]", text.replace(" ", "")).groups()
    parts = [part.partition("@") for part in re.findall(r"(?:\([^)]*\)|[^,(])+", inside)]
    shape = [int(size) if size.isdigit() else dims[size] for size, _, _ in parts]
    axes = [tuple(re.findall(r"\w+", named)) or None for _, _, named in parts]
    return jnp.zeros(shape, TYPES[kind], device=NamedSharding(mesh, P(*axes)))


def call(file, name):
    function = getattr(importlib.import_module(file), name)
    facts = function.__hloscope_target__
    kind = AxisType.Explicit if facts.axis_types == "explicit" else AxisType.Auto
    mesh = jax.make_mesh(tuple(facts.mesh.values()), tuple(facts.mesh), axis_types=(kind,) * len(facts.mesh))
    with jax.set_mesh(mesh):
        given = jax.tree.map(lambda text: array(text, facts.dims, mesh), facts.args)
        out = facts.out if isinstance(facts.out, tuple) else () if facts.out is None else (facts.out,)
        specs = tuple(NamedSharding(mesh, eval(spec, {"P": P})) if isinstance(spec, str) else None for spec in out)
        placed = {"out_shardings": specs[0] if len(specs) == 1 else specs} if specs else {}
        step = function if hasattr(function, "lower") else jax.jit(function, **placed)
        jax.block_until_ready(step(*given, **facts.static))


def main():
    folder, *names = sys.argv[1:]
    sys.path.insert(0, folder)
    for name in names:
        call(*name.split(":"))


main()
