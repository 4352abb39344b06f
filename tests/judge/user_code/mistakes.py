"""Small programs, each with a mistake that a rule is for."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

constrained = jax.lax.with_sharding_constraint


@hloscope.target(mesh={"X": 8}, args=("f32[8192,64]", "f32[8192@X,128]"))
def whole_on_purpose(rows, x):
    # hloscope: allow replicated-large-array: every device needs all distances
    distances = constrained(jnp.exp(rows @ rows.T), P(None, None))
    return distances @ x, jnp.argmax(distances, axis=1)


@hloscope.target(mesh={"X": 8}, args=("f32[256@X,131072]",))
def how_many(x):
    return jax.shard_map(lambda own: jax.lax.psum(own > 0, "X"), in_specs=P("X"), out_specs=P())(x)


@hloscope.target(mesh={"X": 8}, args=("f32[256@X,131072]",))
def how_many_of_each_part(x):
    def counts(own):
        return jax.lax.psum_scatter((own > 0).astype(jnp.int32), "X", tiled=True)

    return jax.shard_map(counts, in_specs=P("X"), out_specs=P("X"))(x)


@hloscope.target(
    mesh={"X": 8},
    args=({"w": "f32[8192@X,1024]", "b": "bf16[4,1024@X]", "n": "s32[]"}, "f32[8192@X,1024]"),
    out=({"w": "P('X', None)", "b": "P(None, 'X')", "n": "P()"}, "P('X', None)"),
    donate=0,
)
def donated_and_reused(state, x):
    return {"w": state["w"] * 0.9 + x, "b": state["b"] + 1, "n": state["n"] + 1}, x * 2


@hloscope.target(
    mesh={"X": 4, "Y": 2},
    slice="v5e:2x4",
    args=({"up": "bf16[4,1024@X,4096@Y]", "down": "bf16[4,4096@Y,1024@X]"}, "bf16[64@X,512,1024]"),
    out=("P(None, 'X', 'Y')", "P(None, 'Y', 'X')"),
)
def gradients_in_parts(params, x):
    def layer(h, p):
        return h + jax.nn.gelu(h @ p["up"]) @ p["down"], None

    def loss(params):
        h, _ = jax.lax.scan(jax.checkpoint(layer), x, params)
        return (h.astype(jnp.float32) ** 2).mean()

    gradients = jax.grad(loss)(params)
    return gradients["up"], gradients["down"]


@hloscope.target(mesh={"X": 8}, slice="v5e:2x4", args=("f32[4096@X,512]",), out="P('X', None)")
def rolled_by_one(x):
    return jnp.concatenate([x[1:], x[:1]], 0)
