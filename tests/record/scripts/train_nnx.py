"""An FSDP training loop in Flax NNX: optax, batches from an iterator, and checkpoints by orbax.

python train_nnx.py [--steps N] [--checkpoints FOLDER]
"""

import argparse
import sys

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

DIMENSION, HIDDEN, VOCABULARY, LENGTH, BATCH = 512, 2048, 4096, 64, 32


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        split = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("fsdp", None))
        self.norm = nnx.RMSNorm(DIMENSION, rngs=rngs)
        self.up = nnx.Linear(DIMENSION, HIDDEN, use_bias=False, kernel_init=split, rngs=rngs)
        self.down = nnx.Linear(HIDDEN, DIMENSION, use_bias=False, kernel_init=split, rngs=rngs)

    def __call__(self, x):
        return x + self.down(nnx.gelu(self.up(self.norm(x))))


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        table = nnx.with_partitioning(nnx.initializers.normal(0.02), ("fsdp", None))
        self.embed = nnx.Embed(VOCABULARY, DIMENSION, embedding_init=table, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])

    def __call__(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.embed.attend(x)


def batches(seed=0):
    rng = np.random.default_rng(seed)
    while True:
        yield rng.integers(0, VOCABULARY, (BATCH, LENGTH + 1), dtype=np.int32)


@nnx.jit
def create():
    model = Model(nnx.Rngs(0))
    state = nnx.state(model)
    nnx.update(model, jax.lax.with_sharding_constraint(state, nnx.get_partition_spec(state)))
    optimizer = nnx.Optimizer(model, optax.adamw(3e-4), wrt=nnx.Param)
    return model, optimizer


@nnx.jit
def train_step(model, optimizer, batch):
    def loss_of(model):
        logits = model(batch[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--checkpoints")
    options = parser.parse_args()
    mesh = jax.make_mesh((jax.device_count(),), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))
    manager = None
    if options.checkpoints:
        import orbax.checkpoint as ocp

        manager = ocp.CheckpointManager(options.checkpoints, options=ocp.CheckpointManagerOptions(max_to_keep=2))
    with jax.set_mesh(mesh):
        model, optimizer = create()
        data = batches()
        for step in range(options.steps):
            batch = jax.device_put(next(data), NamedSharding(mesh, P("fsdp")))
            loss = train_step(model, optimizer, batch)
            if step % 10 == 0:
                print(f"step {step}: loss {float(loss):.3f}", flush=True)
            if manager is not None and step and step % 2 == 0:
                import orbax.checkpoint as ocp

                manager.save(step, args=ocp.args.StandardSave(nnx.to_pure_dict(nnx.state(model))))
    if manager is not None:
        manager.wait_until_finished()
    return 0


if __name__ == "__main__":
    sys.exit(main())
