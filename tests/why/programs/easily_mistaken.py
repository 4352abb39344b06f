"""Programs whose collectives are easily put down to the wrong array or the wrong operation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

MESH = {"X": 2, "Y": 4}
LAYERS = {"up": "bf16[L,D@Y,F]", "down": "bf16[L,F,D@Y]"}


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[64@X,4096@Y]",), out="P('X')")
def largest(scores):
    """Reduces values and positions together, and uses the positions alone."""
    return jnp.argmax(scores, axis=-1)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[64,512@Y]",), out="P(None, 'Y')")
def turned_around(rows):
    """Reverses a sharded dimension: no edges move, but everything."""
    return rows[:, ::-1]


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[8@Y,64,32]", "f32[8,32,64]"), out="P(None, 'Y', None)")
def batched(a, b):
    """Is handed out sharded along another dimension than it comes in."""
    return jax.vmap(jnp.matmul)(a, b)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[64,512@(X,Y)]", "f32[512@(Y,X),256]"), out="P('X', None)")
def axes_in_another_order(x, w):
    """Contracts a dimension that both operands shard over both axes, in two orders."""
    return x @ w


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[64@X,512@Y]", "f32[512,256@Y]"), out="P('X', None)")
def after_a_shard_map(x, w):
    """Gathers what a shard_map hands out, at the operation inside it."""

    @jax.shard_map(in_specs=(P("X", "Y"), P(None, "Y")), out_specs=P("X", "Y"))
    def product(x, w):
        return jax.lax.all_gather(x, "Y", axis=1, tiled=True) @ w

    return jnp.exp(product(jnp.tanh(x), w))


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[64@X,512@Y]",), axis_types="explicit")
def resharded(x):
    """Gives up an axis in explicit mode."""
    return jax.sharding.reshard(jnp.tanh(x), P(None, "Y"))


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[512@Y,512]", "f32[4,64@X,512]"), out="P('Y', None)")
def accumulated_gradients(w, batches):
    """Adds up gradients in a loop; the compiler adds them up over devices once, after it."""

    def step(total, batch):
        return total + jax.grad(lambda w: jnp.mean(jnp.tanh(batch @ w) ** 2))(w), None

    total, _ = jax.lax.scan(step, jnp.zeros_like(w), batches)
    return w - 0.1 * total


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=(LAYERS, "bf16[32@(X,Y),128,D]"), dims={"L": 4, "D": 512, "F": 2048})
def recomputed_layers(params, x):
    """Gathers each layer's weights forward, and again in the backward pass."""

    def layer(h, p):
        return h + jax.nn.relu(h @ p["up"]) @ p["down"], None

    def loss(params):
        h, _ = jax.lax.scan(jax.checkpoint(layer), x, params)
        return (h.astype(jnp.float32) ** 2).mean()

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[512@X,1024]", "f32[1024,1024@Y]"))
def gradient_of_a_shard_map(x, w):
    """Differentiates a gather that the user wrote."""

    def product(x, w):
        return jnp.tanh(x @ jax.lax.all_gather(w, "Y", axis=1, tiled=True))

    sharded = jax.shard_map(product, in_specs=(P("X"), P(None, "Y")), out_specs=P("X"), check_vma=False)
    return jax.grad(lambda w: sharded(x, w).sum())(w)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[256,256]", "bf16[128@X,256]"))
def means_by_name(w, x):
    """Takes the means of a gradient and of a loss by name, which the compiler combines."""

    def on_device(w, x):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2).astype(jnp.float32))(w)
        return jax.lax.pmean(grad.astype(jnp.float32), "X"), jax.lax.pmean(loss, "X")

    return jax.shard_map(on_device, in_specs=(P(), P("X")), out_specs=(P(), P()), check_vma=False)(w, x)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[64@X,256@Y]", "f32[256@Y,128]", "f32[128,64@Y]"), out="P('X')")
def reused_name(x, w, v):
    """Holds what is computed under the name of an argument, and weights in a dictionary."""
    layer = {"w": jnp.tanh(w), "v": jnp.tanh(v)}
    x = x @ layer["w"]
    return jnp.sin(x) @ layer["v"]


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[64@X,4096@Y]",), out="P('X', None)")
def best_of_all(scores):
    """Looks for the largest along the sharded dimension."""
    return jax.lax.top_k(scores, 8)[0]


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[64@X,256]", "f32[3,256@X,256@Y]"), out="P('X', None)")
def recomputed_by_hand(x, layers):
    """Recomputes layers whose weights the compiler gathers where Shardy would move the activations."""

    @jax.checkpoint
    def layer(x, w):
        return jnp.tanh(x @ w), None

    return jax.grad(lambda x: jax.lax.scan(layer, x, layers)[0].sum())(x)


@hloscope.target(
    mesh=MESH,
    slice="v5e:2x4",
    args=({"up": "bf16[1024@X,2048@Y]", "down": "bf16[2048@Y,1024@X]"}, "bf16[512@X,1024]"),
    out=("P('X', 'Y')", "P('Y', 'X')"),
)
def fully_sharded_gradients(params, x):
    """Hands out gradients in parts, for which Shardy would move the activations and the partitioner adds up."""

    def loss(params):
        h = jax.nn.relu(x @ params["up"])
        return ((h @ params["down"]).astype(jnp.float32) ** 2).mean()

    gradients = jax.grad(loss)(params)
    return gradients["up"], gradients["down"]


@hloscope.target(
    mesh={"replica": 2, "X": 8},
    slice="2*v5e:2x4",
    args=("f32[512@(replica,X),2048]", "f32[2048,8192]", "f32[8192,2048]"),
    out=("P()", "P()"),
)
def gradients_over_two_slices(x, up, down):
    """Adds gradients up over two slices, the second in steps that the compiler lets computation hide."""

    def loss(up, down):
        return jnp.mean((jax.nn.gelu(x @ up) @ down) ** 2)

    return jax.grad(loss, argnums=(0, 1))(up, down)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[1024@X,2048]", "bf16[2048,4096@Y]"), out="P('X', 'Y')")
def constrained_otherwise(x, w):
    """Constrains a product to the two axes the wrong way round."""
    return jax.nn.relu(jax.lax.with_sharding_constraint(x @ w, P("Y", "X")))


@hloscope.target(
    mesh={"X": 2, "Y": 4},
    slice="v5e:2x4",
    args=("bf16[8@X,16,16]", "bf16[8@X,16,4@Y,32]", "bf16[Q@Y,D]"),
    dims={"Q": 128, "D": 256},
    out="P('X', None, None)",
)
def letters_that_meet(weights, value, projection):
    """The einsum's q is a position, and the argument's Q all heads together."""
    mixed = jnp.einsum("bqs,bsgh->bqgh", weights, value)
    return mixed.reshape(*mixed.shape[:2], -1) @ projection


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[64,4096@Y]",))
def every_row(x):
    """Makes one truth value of each row, in a vector to which the compiler adds dimensions."""
    return jnp.all(x > 0, axis=1)


@hloscope.target(mesh={"X": 8}, slice="v5e:2x4", args=("f32[512@X,1024]", "f32[4,1024,1024]"))
def layers_of_a_stack(x, weights):
    """The gradient of slices of a weight that nothing shards."""

    def loss(weights):
        hidden = x
        for number in range(4):
            hidden = jnp.tanh(hidden @ weights[number])
        return jnp.mean(hidden**2)

    return jax.grad(loss)(weights)


@hloscope.target(mesh={"X": 8}, slice="v5e:2x4", args=("f32[512@X,1024]", "f32[512@X,1024]"))
def sums_and_extremes(x, y):
    """The sums go in one transfer, and what makes the first makes the maximum too."""
    total = x.sum(0)
    most = x.max(0)
    other = y.sum(0)
    least = y.min(0)
    return total, most, other, least


@hloscope.target(mesh={"X": 8}, slice="v5e:2x4", args=("f32[512@X,1024]", "f32[1024,1024]"))
@jax.shard_map(in_specs=(P("X", None), P()), out_specs=P())
def loss_and_gradient(x, w):
    """The loss is summed by hand, four bytes; the gradient by differentiation, in the same transfer."""
    loss, gradient = jax.value_and_grad(lambda w: (jnp.tanh(x @ w) ** 2).sum())(w)
    return jax.lax.psum(loss, "X"), gradient


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("s32[64@(X,Y)]",), out="P(('X', 'Y'))")
def gathered_sizes(sizes):
    """Gathers a few numbers by hand, of which libtpu sums the parts, and keeps a column of them."""

    @jax.shard_map(in_specs=P(("X", "Y")), out_specs=P(("X", "Y")), check_vma=False)
    def column(sizes):
        return jax.lax.all_gather(sizes, ("X", "Y"))[:, jax.lax.axis_index(("X", "Y"))]

    return column(sizes)


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[64@Y,8]",))
def summed_parts(rows):
    """Sums by hand what is zero on all devices but one."""

    @jax.shard_map(in_specs=P("Y"), out_specs=P(), check_vma=False)
    def whole(rows):
        mine = jax.lax.dynamic_update_slice(jnp.zeros((64, 8)), rows, (16 * jax.lax.axis_index("Y"), 0))
        return jax.lax.psum(mine, "Y")

    return whole(rows)


def multiplied(rows, w):
    return rows @ w


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("bf16[64@X,512]", "bf16[2,512@Y,512]"), out="P('X', None)")
def handed_to_a_helper(x, layers):
    """Takes a weight from its stack in the statement that assigns to another name."""
    for number in range(2):
        x = x + multiplied(jnp.tanh(x), layers[number])
    return x


@hloscope.target(mesh=MESH, slice="v5e:2x4", args=("f32[512@Y,512]", "f32[256@Y,512]"), out="P('Y', None)")
def left_open(w, x):
    """Constrains a gradient, and leaves its sharding to the compiler."""
    gradient = jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
    gradient = jax.lax.with_sharding_constraint(gradient, P(P.UNCONSTRAINED, None))
    return w - jnp.sqrt(jnp.sum(gradient**2)) * gradient
