"""Programs with a mistake of their own, which JAX comes to only in the surroundings that they need."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import hloscope


def mistaken(x):
    return x @ jnp.ones((3, 3))


def made(kind, function):
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind,) * 2)
    return function, (jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(mesh, P("data"))),)


def explicit_mesh_and_a_mistake():
    return made(AxisType.Explicit, lambda x: mistaken(jnp.sin(x)))


def named_constraint_and_a_mistake():
    return made(AxisType.Auto, lambda x: mistaken(jax.lax.with_sharding_constraint(x, P("data", "model"))))


def unknown_axis(x):
    return jax.lax.with_sharding_constraint(x, P("nowhere"))


@hloscope.target(mesh={"X": 8}, slice="v5e:2x4", args=("f32[64@X]",))
def missing_kernel(x):
    return jax.ffi.ffi_call("missing_kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
