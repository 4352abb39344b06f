"""As a notebook is written: many small programs, on meshes of two, four and eight devices, with what they print."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

print(jax.devices())
x = jnp.arange(64.0).reshape(8, 8)

pair = Mesh(np.array(jax.devices()[:2]), ("x",))
print(jax.jit(lambda a: a @ a.T)(jax.device_put(x, NamedSharding(pair, P("x")))).sharding)

square = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))


@jax.jit
def matmul(a, b):
    return a @ b


print(matmul(jax.device_put(x, NamedSharding(square, P("x", "y"))), jax.device_put(x, NamedSharding(square, P("y")))))

line = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))


@jax.jit
@jax.shard_map(mesh=line, in_specs=P("i"), out_specs=P())
def total(block):
    return jax.lax.psum(block.sum(0, keepdims=True), "i")


print(total(jax.device_put(x, NamedSharding(line, P("i")))))


@jax.jit
@jax.shard_map(mesh=line, in_specs=P("i"), out_specs=P("i"))
def shifted(block):
    return jax.lax.ppermute(block, "i", [(n, (n + 1) % 8) for n in range(8)])


np.testing.assert_array_equal(shifted(x), np.roll(np.asarray(x), 1, axis=0))
for size in (8, 16, 24):
    print(size, float(matmul(jnp.ones((size, 8)), x).sum()))
print(jax.grad(lambda w: jnp.mean((x @ w) ** 2))(x).shape)
