"""A module that makes its mesh, its arrays and its random keys when it is imported."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

print("importing own_mesh")

mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
scale = jnp.ones((1024,), device=NamedSharding(mesh, P("model")))
key = jax.random.key(7)


@jax.jit
def plain(x):
    return x * scale + jax.random.normal(key, x.shape)


def shardings(*specs):
    return tuple(NamedSharding(mesh, P(*spec)) for spec in specs)


def _step(params, x):
    hidden = x @ params["w"] * scale
    return {"params": params, "loss": jnp.sum(hidden**2)}


step = jax.jit(
    _step,
    in_shardings=({"w": NamedSharding(mesh, P(None, "model"))}, NamedSharding(mesh, P("data", None))),
    out_shardings={"params": {"w": NamedSharding(mesh, P(None, "model"))}, "loss": NamedSharding(mesh, P())},
    donate_argnums=0,
)


def factory():
    params = {"w": jax.ShapeDtypeStruct((512, 1024), jnp.float32)}
    return step, (params, jax.ShapeDtypeStruct((64, 512), jnp.float32))


total = jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())
