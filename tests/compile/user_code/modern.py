"""Targets that use what today's JAX code uses: NNX, set_mesh, keys as arguments, callbacks, pytrees."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope


@hloscope.target(mesh={"data": 4, "model": 2})
def nnx_linear():
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs):
            kernel = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "model"))
            self.up = nnx.Linear(256, 512, kernel_init=kernel, rngs=rngs)
            self.noise = nnx.Dropout(0.1, rngs=rngs)

        def __call__(self, x):
            return self.noise(self.up(x))

    block = Block(nnx.Rngs(0))
    graph, state = nnx.split(block)

    def forward(state, x):
        return nnx.merge(graph, state)(x).sum()

    mesh = jax.sharding.get_mesh()
    x = jax.ShapeDtypeStruct((64, 256), jnp.float32, sharding=jax.NamedSharding(mesh, P("data", None)))
    return forward, (state, x)


@hloscope.target(
    mesh={"X": 8},
    args=({"w": "f32[256,512@X]", "layers": ["f32[512@X,256]", "f32[256]"]}, "f32[64,256]", "key<fry>[]"),
    donate=0,
)
def pytree(params, x, key):
    x = x @ params["w"] @ params["layers"][0] + params["layers"][1]
    return params, x + jax.random.normal(key, x.shape)


@hloscope.target(mesh={"X": 8}, args=lambda: (jax.ShapeDtypeStruct((64, 64), jnp.float32),), slice="v5e:2x4")
def from_callable(x):
    return jax.lax.with_sharding_constraint(x * 2, P("X", None))


@hloscope.target(mesh={"X": 8}, args=("f32[64@X,64]",))
def with_callback(x):
    jax.debug.print("sum {}", x.sum())
    return x * 2


@hloscope.target(mesh={"X": 8}, args=("f32[64@X,64]",), static={"shift": 5})
def with_static(x, shift):
    return jnp.roll(x, shift, axis=0)


@hloscope.target(mesh={"X": 8}, args=("f32[64@X,64]", "f32[64]"))
def with_unused(x, ignored):
    del ignored
    return x * 2


@hloscope.target(mesh={"X": 3}, args=("f32[6@X,8]",))
def three_chips(x):
    return x.sum()


@hloscope.target(mesh={"D": 4, "Y": 4}, slice="2*v5e:2x4", args=("f32[64@D,256]", "f32[256,512@Y]"))
def two_slices(x, w):
    return (x @ w).sum(0)


def big_mesh():
    mesh = jax.make_mesh((8, 4), ("X", "Y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    sharding = jax.NamedSharding(mesh, P("X", "Y"))
    return jax.jit(lambda x: x.sum(), in_shardings=sharding), (jax.ShapeDtypeStruct((64, 64), jnp.float32),)


@hloscope.target(mesh={"X": 8}, args=("f32[524288@X,65536]",))
def too_large(x):
    return jax.lax.with_sharding_constraint(x * 2, P())


@hloscope.target(mesh={"X": 8}, args=("f32[4,2048,2048]", "f32[65536@X,2048]"))
def saves_for_the_backward_pass(w, x):
    return jax.grad(lambda w: jax.lax.scan(lambda h, one: (jnp.tanh(h @ one), None), x, w)[0].sum())(w)


@hloscope.target(mesh={"X": 8}, args=("f32[65536@X,65536]", "f32[65536,65536]"))
def larger_than_a_chip(a, w):
    return a @ w


@hloscope.target(mesh={"X": 8}, args=("f32[64@X]",))
def asks_for_the_backend(x):
    return x * 2 if jax.default_backend() == "tpu" else x * 3


def needs_a_mesh(x):
    return jax.lax.with_sharding_constraint(x, P("X", None))


def sharded_sum(x):
    return x.sum()


def product(x, w):
    return x @ w
