"""How long it takes to say why each collective of a training step is there whose layers are all written out.

    python tests/benchmarks/unrolled_step.py [--layers N ...] [--keep FOLDER]

The step is that of a decoder under FSDP and tensor parallelism: attention and a feed-forward layer, the loss, its
gradient, and the optimizer with its state, for each of N layers by itself, as a Python loop writes them. Printed are,
for each N (6, 12 and 47 unless said otherwise: the last has 1,853 collectives), the seconds of a processor that
explaining takes once the program is compiled and analyzed, and the size of the analysis as JSON. The bars: at 47 layers
at most 1.5 s and 4 MB, and a layer of 47 takes at most 1.5 times what one of 12 does.

The compile takes minutes; with `--keep` what it yields is kept in a folder, and taken from there the next time.
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hloscope.model import Analysis
    from hloscope.model.capture import Capture

DEVICES = 16
LAYERS = (6, 12, 47)
RUNS = 5
MOST_SECONDS = 1.5
MOST_MEGABYTES = 4.0
MOST_GROWTH = 1.5
"""How many times as long a layer may take in the program of most layers as in the one before it."""

MESH = {"data": 4, "model": 4}
SIZES = {"D": 1024, "F": 4096, "V": 8192, "B": 32, "S": 512}
HEADS = 16
LAYER = {
    "attention_norm": "f32[D]",
    "query": "bf16[D@data,D@model]",
    "key": "bf16[D@data,D@model]",
    "value": "bf16[D@data,D@model]",
    "projection": "bf16[D@model,D@data]",
    "feed_forward_norm": "f32[D]",
    "gate": "bf16[D@data,F@model]",
    "up": "bf16[D@data,F@model]",
    "down": "bf16[F@model,D@data]",
}


def step_of(layers: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The training step of a number of layers, and the notations of its arguments."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    def normalized(x: Any, scale: Any) -> Any:
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-5) * scale).astype(x.dtype)

    def attention(x: Any, layer: Any) -> Any:
        batch, length, _ = x.shape
        query, key, value = ((x @ layer[name]).reshape(batch, length, HEADS, -1) for name in ("query", "key", "value"))
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32)
        weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape) @ layer["projection"]

    def feed_forward(x: Any, layer: Any) -> Any:
        return (jax.nn.silu(x @ layer["gate"]) * (x @ layer["up"])) @ layer["down"]

    def loss_of(weights: Any, tokens: Any) -> Any:
        x = jax.lax.with_sharding_constraint(weights["embedding"][tokens], P("data"))
        for layer in weights["layers"]:
            x = x + attention(normalized(x, layer["attention_norm"]), layer)
            x = jax.lax.with_sharding_constraint(x, P("data"))
            x = x + feed_forward(normalized(x, layer["feed_forward_norm"]), layer)
            x = jax.lax.with_sharding_constraint(x, P("data"))
        logits = (x @ weights["unembedding"]).astype(jnp.float32)
        hits = jax.nn.one_hot(tokens, logits.shape[-1])
        return (jax.nn.logsumexp(logits, axis=-1) - (logits * hits).sum(-1)).mean()

    def step(weights: Any, momentum: Any, tokens: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(weights, tokens)
        norm = jnp.sqrt(sum(jnp.square(g.astype(jnp.float32)).sum() for g in jax.tree.leaves(gradients)))
        momentum = jax.tree.map(
            lambda m, g: 0.9 * m + (g / jnp.maximum(norm, 1.0)).astype(m.dtype), momentum, gradients
        )
        return jax.tree.map(lambda w, m: w - (0.01 * m).astype(w.dtype), weights, momentum), momentum, loss

    weights = {"embedding": "bf16[V@model,D@data]", "layers": [LAYER] * layers, "unembedding": "bf16[D@data,V@model]"}
    return step, (weights, weights, "s32[B@data,S]")


def captured(layers: int, keep: Path | None) -> Capture:
    """What one compile yields; from the folder, where it is kept there already."""
    kept = None if keep is None else keep / f"unrolled_{layers}.pickle"
    if kept is not None and kept.exists():
        found: Capture = pickle.loads(kept.read_bytes())
        return found
    from hloscope.compile.compiling import start_compile
    from hloscope.compile.functions import Function, with_function
    from hloscope.compile.lowering import lower
    from hloscope.compile.target import make_facts

    step, arguments = step_of(layers)
    facts = make_facts(args=arguments, mesh=MESH, slice="v5e:4x4", dims=SIZES, donate=(0, 1), timeout_s=3600)
    found = with_function(
        Function(target=step, facts=facts),
        lambda function, known: start_compile(lower(function, known, name=f"unrolled_{layers}")).capture(),
    )
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(pickle.dumps(found))
    return found


def explaining(capture: Capture) -> tuple[float, Analysis]:
    """Median seconds of a processor of explaining a compiled program, and what was explained."""
    from hloscope.cost import price_capture
    from hloscope.hlo.parser import parse_module
    from hloscope.why.stage import explain_analysis

    module = parse_module(capture.compiled.text)
    found = price_capture(capture, module, target="unrolled_step")
    seconds = []
    for _ in range(RUNS):
        gc.collect()
        start = time.process_time()
        reasoned = explain_analysis(found, module, capture)
        seconds.append(time.process_time() - start)
    return statistics.median(seconds), reasoned


def main() -> None:
    """Prints the figures; fails when a bar is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    os.environ["HLOSCOPE_CACHE"] = "0"
    from hloscope.compile.environment import prepare_environment

    prepare_environment(DEVICES, attached=False)
    from hloscope.base.canvas import Canvas
    from hloscope.report.formats import render

    missed, of_a_layer = [], 0.0
    for layers in options.layers:
        seconds, found = explaining(captured(layers, options.keep))
        megabytes = len(render("analysis", "json", found, Canvas()).encode()) / 1e6
        print(
            f"{layers:3} layers, {len(found.collectives):5} collectives: {seconds:5.2f} s, {megabytes:5.2f} MB of JSON"
        )
        if seconds > MOST_SECONDS or megabytes > MOST_MEGABYTES:
            missed.append(f"at most {MOST_SECONDS:g} s and {MOST_MEGABYTES:g} MB")
        if of_a_layer and seconds / layers > MOST_GROWTH * of_a_layer:
            missed.append(f"a layer of {layers} takes at most {MOST_GROWTH:g} times what one of fewer does")
        of_a_layer = seconds / layers
    if missed:
        sys.exit(f"missed: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
