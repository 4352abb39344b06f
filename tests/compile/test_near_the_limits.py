"""Programs near a limit that only machine code is held against: HBM, VMEM and SMEM.

The verdict of the compiler comes from JAX itself, which compiles ahead of time for the same devices.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import topologies

import hloscope
from hloscope.tpu.slices import parse_slice

P = jax.P
SLICES = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "7x": "7x:2x2x1"}
SHARES = (0.86, 0.94, 0.98, 1.0, 1.03)
"""Of HBM, as far as a size that is a multiple of 1024 can meet them."""
pytestmark = [pytest.mark.tpu_compiler, pytest.mark.long]


def arguments(n):
    """Arguments alone."""
    return (lambda x, y: x[0, 0] + y[0, 0], [((n, 4096), P("X")), ((n, 4096), P("X"))])


def results(n):
    """Results as large as the arguments."""
    return (lambda x: (x * 2, x + 1), [((n, 4096), P("X"))])


def donated(n):
    """An update in place of what is donated."""
    return (lambda x, y: (x - 0.1 * y).astype(x.dtype), [((n, 4096), P("X")), ((n, 4096), P("X"))])


def gathered(n):
    """A weight that is gathered before its use."""
    return (lambda x, w: x @ w, [((1024, n), P("X")), ((n, 4096), P(None, "X"))])


def attention(n):
    """Scores that are larger than what they are made of."""
    return (lambda q, k: jax.nn.softmax(q @ k.T, axis=-1) @ k, [((n, 128), P("X")), ((16384, 128), P())])


def scanned(n):
    """Values that a loop stacks for the backward pass."""

    def loss(w, x):
        return jax.lax.scan(lambda y, each: (jnp.tanh(y @ each), None), x, w)[0].astype(jnp.float32).sum()

    return (jax.grad(loss), [((8, 1024, 1024), P()), ((n, 1024), P("X"))])


def ordered(n):
    """A sort, which has buffers of its own."""
    return (lambda x: jnp.sort(x, axis=1), [((n, 4096), P("X"))])


def exchanged(n):
    """A dimension for another, by an exchange."""
    return (
        lambda x: jax.lax.with_sharding_constraint(x * 2, P(None, "X")) + 1,
        [((n, 4096), P("X", None))],
    )


PROGRAMS = (arguments, results, donated, gathered, attention, scanned, ordered, exchanged)


def find_compilers_verdict(make, n, generation) -> bool:
    """Whether the compiler takes it, asked through JAX alone."""
    function, shapes = make(n)
    parsed = parse_slice(SLICES[generation])
    name, options = parsed.libtpu_topology_name, parsed.topology_kwargs
    devices = topologies.get_topology_desc(name, platform="tpu", **options).devices
    mesh = jax.make_mesh((len(devices),), ("X",), devices=devices, axis_types=(jax.sharding.AxisType.Auto,))
    shardings = tuple(jax.NamedSharding(mesh, spec) for _, spec in shapes)
    donated_ones = (0,) if make is donated else ()
    with jax.set_mesh(mesh):
        jitted = jax.jit(function, in_shardings=shardings, donate_argnums=donated_ones)
        lowered = jitted.lower(*(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape, _ in shapes))
    try:
        lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "HBM" not in str(error) and "hbm" not in str(error):
            raise
        return False
    return True


def analyzed(make, n, generation):
    """The program at the scheduled stage, or compiled where its memory is near the limit."""
    function, shapes = make(n)
    args = []
    for shape, spec in shapes:
        axes = [*spec, *[None] * (len(shape) - len(spec))]
        sizes = (f"{size}@{axis}" if axis else str(size) for size, axis in zip(shape, axes, strict=True))
        args.append(f"bf16[{','.join(sizes)}]")
    return hloscope.analyze(
        function,
        tuple(args),
        mesh={"X": parse_slice(SLICES[generation]).device_count},
        slice=SLICES[generation],
        donate=0 if make is donated else None,
        stage="scheduled",
    )


def find_sizes(make, generation: str) -> list[int]:
    """The sizes at which about these shares of HBM are used: use grows with the size, evenly where it is large."""
    hbm = parse_slice(SLICES[generation]).chip.hbm_bytes_per_device
    sizes = [32768, 65536]
    for _ in range(3):
        small, large = (analyzed(make, n, generation).memory.data_bytes for n in sizes)
        each = (large - small) / (sizes[1] - sizes[0])
        found = [round((sizes[1] + (share * hbm - large) / each) / 1024) * 1024 for share in SHARES]
        sizes = [found[0] // 2048 * 1024, found[0]]
    return found


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("generation", SLICES)
def test_what_is_said_of_hbm_is_the_compilers_verdict(make: Callable[..., object], generation: str) -> None:
    said = [(n, analyzed(make, n, generation).memory.fits) for n in find_sizes(make, generation)]
    verdicts = [find_compilers_verdict(make, n, generation) for n, _ in said]
    assert {True, False} == {*verdicts}, "the sizes are on both sides of the limit"
    assert all(
        is_said in ((None, True) if fits else (False,)) for (_, is_said), fits in zip(said, verdicts, strict=True)
    ), said
