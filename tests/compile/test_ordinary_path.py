"""Where JAX's ordinary ahead-of-time path works too, retargeting gives the same program."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import mesh_utils, topologies
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hloscope
from hloscope.base.errors import NotationError
from hloscope.compile.arguments import build_out_shardings

pytestmark = [pytest.mark.tpu_compiler, pytest.mark.smoke]


def matmul(a, b):
    return jnp.einsum("bd,df->bf", jnp.square(a), b)


def update(weights, x):
    gradient = jax.grad(lambda w: jnp.sum((x @ w) ** 2))(weights)
    return weights - 0.1 * gradient


def scan(layers, x):
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, layers)[0]


CASES = {
    "matmul": (matmul, [((64, 2048), ("X", "Y")), ((2048, 512), ("Y", None))], P("X", None), ()),
    "donated": (update, [((1024, 512), ("Y", None)), ((64, 1024), ("X", None))], P("Y", None), (0,)),
    "scan": (scan, [((6, 512, 512), (None, "Y", None)), ((64, 512), ("X", None))], None, ()),
}


def ordinary_text(function, inputs, out, donate):
    topology = topologies.get_topology_desc("v5e:2x4", platform="tpu")
    devices = mesh_utils.create_device_mesh((4, 2), devices=topology.devices)
    mesh = Mesh(devices, ("X", "Y"), axis_types=(AxisType.Auto,) * 2)
    arguments = [jax.ShapeDtypeStruct(s, jnp.float32, sharding=NamedSharding(mesh, P(*spec))) for s, spec in inputs]
    shardings = {} if out is None else {"out_shardings": NamedSharding(mesh, out)}
    return jax.jit(function, donate_argnums=donate, **shardings).lower(*arguments).compile().as_text()


def notation(shape, spec):
    return (
        "f32[" + ",".join(f"{size}@{axis}" if axis else str(size) for size, axis in zip(shape, spec, strict=True)) + "]"
    )


def facts(found):
    moves = [
        (c.kind, c.axes, c.groups, c.operand_shapes, c.result_shapes, c.executions, c.payload_bytes, c.wire_bytes)
        for c in found.collectives
    ]
    return sorted(map(repr, moves)), [(a.local_shape, a.donated) for a in (*found.arguments, *found.outputs)]


@pytest.mark.parametrize("name", CASES)
def test_both_paths_give_the_same_program(name):
    function, inputs, out, donate = CASES[name]
    ordinary = hloscope.analyze_text(ordinary_text(*CASES[name]), mesh={"X": 4, "Y": 2})
    retargeted = hloscope.analyze(
        function,
        tuple(notation(*one) for one in inputs),
        mesh={"X": 4, "Y": 2},
        slice="v5e:2x4",
        out=None if out is None else [out],
        donate=donate or None,
    )
    assert facts(ordinary) == facts(retargeted)
    assert retargeted.collectives
    assert any(array.donated for array in retargeted.outputs) is bool(donate)


def test_the_outputs_are_named_where_there_are_too_few_shardings(says):
    result = ({"b": jax.ShapeDtypeStruct((8, 4), "float32"), "a": jax.ShapeDtypeStruct((8,), "int32")}, None)
    with pytest.raises(NotationError) as refused:
        build_out_shardings(["P('X', None)"], result, None)
    says(refused)
