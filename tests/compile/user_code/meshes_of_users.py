"""Programs that bring their own mesh in ways that a mesh given from outside may clash with."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

mesh = Mesh(mesh_utils.create_device_mesh((2, 4), jax.devices()[:8]), ("data", "model"))


@partial(jax.jit, in_shardings=(NamedSharding(mesh, P(None, "model")), NamedSharding(mesh, P("data", None))))
def jitted(w, x):
    return x @ w


def explicit_factory():
    own = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    x = jax.device_put(jnp.ones((64, 256)), NamedSharding(own, P("data", None)))
    return (lambda x: x.sum()), (x,)


def indivisible_factory():
    x = jax.ShapeDtypeStruct((64, 255), jnp.float32, sharding=NamedSharding(mesh, P("data", "model")))
    return jax.jit(lambda x: x.sum()), (x,)


def constrained_factory():
    x = jax.ShapeDtypeStruct((64, 256), jnp.float32, sharding=NamedSharding(mesh, P("data", None)))
    return (lambda x: jax.lax.with_sharding_constraint(x * 2, P("data", "model"))), (x,)


def nnx_jitted():
    from flax import nnx

    @nnx.jit
    def forward(model, x):
        return model(x)

    kernel = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "model"))
    return forward, (nnx.Linear(256, 512, kernel_init=kernel, rngs=nnx.Rngs(0)), jnp.ones((64, 256)))


def gradient(mesh):
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    w = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(mesh, P()))
    return jax.grad(lambda w, x: ((x @ w) ** 2).sum()), (w, x)


def hybrid():
    return gradient(Mesh(mesh_utils.create_hybrid_device_mesh((4, 2), (2, 1), jax.devices()[:16]), ("data", "model")))


def model_over_dcn():
    return gradient(Mesh(mesh_utils.create_hybrid_device_mesh((8, 1), (1, 2), jax.devices()[:16]), ("data", "model")))


def inside_alone(make, **shape):
    """A factory's answer: a function that names a mesh, and arguments that do not."""
    own = jax.make_mesh(tuple(shape.values()), tuple(shape), axis_types=(jax.sharding.AxisType.Auto,) * len(shape))
    return jax.jit(make(own)), (jax.ShapeDtypeStruct((64, 128), jnp.float32),)


def shard_mapped_inside():
    def make(mesh):
        return jax.shard_map(lambda x: jax.lax.psum(x, "X"), mesh=mesh, in_specs=P("X"), out_specs=P())

    return inside_alone(make, X=8)


def constrained_inside():
    return inside_alone(lambda mesh: lambda x: constrain(x * 2, mesh, "X", "Y").sum(), X=4, Y=2)


def called_inside():
    def make(mesh):
        inner = jax.jit(jnp.tanh, in_shardings=NamedSharding(mesh, P("X")))
        return lambda x: inner(x * 2).sum()

    return inside_alone(make, X=8)


def on_two_meshes():
    other = jax.make_mesh((8,), ("Z",), axis_types=(jax.sharding.AxisType.Auto,))
    return inside_alone(lambda mesh: lambda x: constrain(constrain(x, mesh, "X", "Y"), other, "Z"), X=4, Y=2)


def constrain(x, mesh, *spec):
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))
