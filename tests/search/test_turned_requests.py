"""Cures that change what a program requests of its caller: the shardings of its arguments and results."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import hloscope
from hloscope.app.analyzing import analyze_function
from hloscope.compile.functions import Function, with_function
from hloscope.compile.lowering import lower
from hloscope.compile.target import TargetFacts
from hloscope.model.vocabulary import CompileStage
from hloscope.search import cures
from hloscope.search.source_changes import find_mesh_need

pytestmark = [pytest.mark.tpu_compiler, pytest.mark.usefixtures("cached")]


def two_layers(weights, x):
    """A training step that gathers both weights, forward and backward."""

    def loss(weights):
        y = jnp.tanh(x @ weights["up"]) @ weights["down"]
        return (y.astype(jnp.float32) ** 2).mean()

    return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))


def test_weights_are_kept_within_slices_so_that_only_gradients_cross_them():
    call = {"mesh": {"dcn": 2, "fsdp": 4}, "slice": "2*v5e:2x2", "dcn": {"dcn": 2}, "donate": 0}
    over_both = {"up": "bf16[2048@(dcn,fsdp),2048]", "down": "bf16[2048@(dcn,fsdp),2048]"}
    out = dict.fromkeys(over_both, "P(('dcn', 'fsdp'), None)")
    x = "bf16[2048@(dcn,fsdp),2048]"
    found = hloscope.analyze(two_layers, (over_both, x), out=out, **call, try_s=200)
    (best, *_) = [each.trials.helping[0] for each in found.decisions if each.trials is not None]
    said = "argument weights['down']: P(('dcn', 'fsdp'), None) -> P('fsdp', None)"
    assert best.change[0] == said
    assert all("-> P('fsdp', None)" in change for change in best.change)
    within = dict.fromkeys(over_both, "bf16[2048@fsdp,2048]")
    out = dict.fromkeys(within, "P('fsdp', None)")
    cured = hloscope.analyze(two_layers, (within, x), out=out, **call, trials=False)
    assert best.after.step_us == pytest.approx(cured.time.step_us, rel=1e-6)
    assert best.after.step_us < 0.8 * found.time.step_us


def clipped(weights, x):
    """A training step that asks for whole gradients before it clips them."""

    def loss(weights):
        y = jnp.tanh(x @ weights["up"]) @ weights["down"]
        return (y.astype(jnp.float32) ** 2).mean()

    whole = jax.tree.map(lambda g: jax.lax.with_sharding_constraint(g, P()), jax.grad(loss)(weights))
    scale = 1 / (1 + jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in whole.values())))
    return jax.tree.map(lambda w, g: (w - scale * g).astype(w.dtype), weights, whole)


def test_a_constraint_that_requests_whole_gradients_is_named_and_dropped():
    weights = {"up": "f32[2048@X,4096]", "down": "f32[4096@X,2048]"}
    call = {"mesh": {"X": 8}, "slice": "v5e:2x4", "out": dict.fromkeys(weights, "P('X', None)")}
    found = hloscope.analyze(clipped, (weights, "f32[4096@X,2048]"), **call, try_s=200)
    assert any("the sharding constraint P(None, None) (" in each.why for each in found.collectives)
    (trials,) = [each.trials for each in found.decisions if each.trials is not None]
    assert trials.helping[0].change[-1].endswith(": dropped")
    assert trials.helping[0].after.step_us < 0.6 * found.time.step_us


def adapted(lora, velocity, w, x):
    """A training step of adapters, which are sharded over their rank, beside a frozen weight."""

    def loss(lora):
        y = jnp.tanh(x @ w + (x @ lora["a"]) @ lora["b"])
        return (y.astype(jnp.float32) ** 2).mean()

    velocity = jax.tree.map(lambda v, g: (0.9 * v + g).astype(v.dtype), velocity, jax.grad(loss)(lora))
    return jax.tree.map(lambda p, v: (p - 0.1 * v).astype(p.dtype), lora, velocity), velocity


def test_a_lost_axis_is_turned_in_weights_and_momenta_alike(monkeypatch):
    monkeypatch.setattr(cures._CureSearch, "_rank", lambda *_: [])  # as if no line of the function could be written
    lora = {"a": "bf16[1024,64@X]", "b": "bf16[64@X,8192]"}
    call = {"mesh": {"X": 4}, "slice": "v5e:2x2", "donate": (0, 1)}
    out = ("P(None, 'X')", "P('X', None)") * 2
    found = hloscope.analyze(adapted, (lora, lora, "bf16[1024,8192@X]", "bf16[4096,1024]"), out=out, **call, try_s=200)
    (best, *_) = [each.trials.helping[0] for each in found.decisions if each.trials is not None and each.trials.helping]
    said = " ".join(best.change)
    assert all(f"{name}['b']: P('X', None) -> P(None, 'X')" in said for name in ("lora", "velocity", "result[0]"))
    assert best.after.step_us < 0.6 * found.time.step_us


def tensor_parallel(weights, x):
    return jnp.tanh(x @ weights["up"]) @ weights["down"]


def test_an_axis_whose_sums_cross_slices_changes_places_with_another_one():
    call = {"mesh": {"data": 2, "model": 4}, "slice": "2*v5e:2x2"}
    arguments = ({"up": "bf16[2048,8192@model]", "down": "bf16[8192@model,2048]"}, "bf16[4096@data,2048]")
    found = hloscope.analyze(tensor_parallel, arguments, **call, dcn={"model": 2}, try_s=200)
    best = found.decisions[0].trials.helping[0]
    assert best.change == ("dcn: data=2",)
    cured = hloscope.analyze(tensor_parallel, arguments, **call, dcn={"data": 2}, trials=False)
    assert best.after.step_us == pytest.approx(cured.time.step_us, rel=1e-6)
    assert best.after.step_us < 0.5 * found.time.step_us


def make_attention(mesh):
    heads = P("data", None, None)
    return jax.shard_map(attend, mesh=mesh, in_specs=(heads, heads), out_specs=heads, check_vma=False)


def attend(q, k):
    scores = jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k), axis=-1)
    return jnp.einsum("hqk,hkd->hqd", scores, k)


@hloscope.target(slice="v5e:2x4")
def mapped_elsewhere():
    mesh = jax.make_mesh((1, 8), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    mapped = make_attention(mesh)
    x = jax.ShapeDtypeStruct((16, 1024, 256), jnp.bfloat16, sharding=NamedSharding(mesh, P("model", None, None)))
    return jax.jit(lambda q, k: jnp.sin(mapped(jnp.cos(q), jnp.sin(k)))), (x, x)


def test_the_specs_of_a_shard_map_that_is_made_elsewhere_are_turned():
    found = hloscope.analyze(mapped_elsewhere, try_s=200)
    (best,) = [each.trials.helping[0] for each in found.decisions if each.trials is not None and each.trials.helping]
    assert best.change[0] == (
        'write return jax.shard_map(attend, mesh=mesh, in_specs=(P("model", None, None), P("model", None, None)), '
        'out_specs=P("model", None, None), check_vma=False)'
    )
    assert best.after.step_us < 0.3 * found.time.step_us


def constrained(weights, x):
    """A training step whose activations are sharded over their features, unlike its weights."""

    def loss(weights):
        y = x
        for w in weights:
            y = jax.lax.with_sharding_constraint(jnp.tanh(y @ w), P("data", "model"))
        return (y.astype(jnp.float32) ** 2).mean()

    return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))


def test_an_axis_that_constraints_give_to_features_is_given_to_the_batch_in_all_of_them():
    weights = ["bf16[512,1024]", "bf16[1024,512]"]
    call = {"mesh": {"data": 2, "model": 4}, "slice": "v5e:2x4"}
    found = hloscope.analyze(constrained, (weights, "bf16[65536@data,512]"), **call, try_s=200)
    said = [change for each in found.decisions if each.trials is not None for change in each.trials.helping[0].change]
    assert "argument x: P('data', None) -> P(('data', 'model'), None)" in said
    assert any(change.endswith("P('data', 'model') -> P(('data', 'model'), None)") for change in said)


def sampled(x, w):
    logits = jnp.einsum("bd,dv->bv", x, w, out_sharding=P("data", "model"))
    return jax.lax.top_k(jax.sharding.reshard(logits, P("data", None)), 8)[0]


def test_what_needs_a_dimension_whole_has_its_values_exchanged_instead():
    call = {"mesh": {"data": 2, "model": 4}, "slice": "v5e:2x4", "axis_types": "explicit"}
    found = hloscope.analyze(sampled, ("bf16[1024@data,1024]", "bf16[1024,32768@model]"), **call, try_s=200)
    changes = [each.trials.helping[0].change for each in found.decisions if each.trials and each.trials.helping]
    assert any('reshard(logits, P(("data", "model"), None))' in change[0] for change in changes)


def recurrent(w, xs):
    h = jnp.zeros((xs.shape[1], 1024), xs.dtype)

    def tick(h, x):
        return jax.sharding.reshard(jnp.tanh(x + h @ w), P(None, None)), None

    return jax.lax.scan(tick, h, xs)[0]


def test_a_loop_that_begins_with_zeros_has_them_sharded_like_what_it_carries():
    call = {"mesh": {"data": 8}, "slice": "v5e:2x4", "axis_types": "explicit"}
    found = hloscope.analyze(recurrent, ("bf16[1024,1024]", "bf16[16,2048@data,1024]"), **call, try_s=200)
    (best,) = [each.trials.helping[0] for each in found.decisions if each.trials is not None]
    assert any('reshard(jnp.zeros((xs.shape[1], 1024), xs.dtype), P("data", None))' in line for line in best.change)
    assert best.after.step_us < 0.5 * found.time.step_us


BATCH = P("data", None)


def project(x, w, out=BATCH):
    return jnp.einsum("bd,df->bf", x, w, out_sharding=out)


def headed(w, head, x):
    for _ in range(2):
        x = project(jnp.tanh(project(x, w, P("data", "model"))), w.T)
    return project(x, head).astype(jnp.float32).max(-1)


@pytest.mark.skipif(jax.__version_info__ >= (0, 11), reason="there the gather is taken for one of the result")
def test_work_that_is_repeated_because_a_weight_is_gathered_counts_for_that_decision():
    call = {"mesh": {"data": 2, "model": 4}, "slice": "v5e:2x4", "axis_types": "explicit"}
    arguments = ("bf16[1024,4096@model]", "bf16[1024,32768@model]", "bf16[4096@data,1024]")
    found = hloscope.analyze(headed, arguments, **call, trials=False)
    assert found.repeated.ratio > 1.5
    (decision,) = [each for each in found.decisions if each.repeated_us]
    assert (decision.axis, decision.loser.size, decision.is_lost) == ("model", 32768, True)


@hloscope.target(slice="v5e:4x4")
def counted():
    mesh = jax.make_mesh((jax.device_count(),), ("X",), axis_types=(AxisType.Auto,))
    return jax.jit(jnp.sum), (jax.ShapeDtypeStruct((64, 64), "float32", sharding=NamedSharding(mesh, P("X"))),)


def test_a_factory_sees_as_many_devices_as_its_slice_has():
    found = hloscope.analyze(f"{__file__}:counted", stage="scheduled")
    assert found.mesh.device_count == 16


@hloscope.target(slice="v5e:2x2")
def heeding_the_current_mesh():
    mesh = jax.make_mesh((4,), ("X",), axis_types=(AxisType.Auto,))

    def step(x):
        current = jax.sharding.get_abstract_mesh()
        return jnp.sin(x) if current.empty else jax.lax.with_sharding_constraint(jnp.sin(x), P(None, "X"))

    return jax.jit(step), (jax.ShapeDtypeStruct((64, 64), "float32", sharding=NamedSharding(mesh, P("X", None))),)


@hloscope.target(slice="v5e:2x2")
def plain():
    mesh = jax.make_mesh((4,), ("X",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((64, 64), "float32", sharding=NamedSharding(mesh, P("X", None)))
    return jax.jit(jnp.sin), (x,)


@pytest.mark.parametrize(
    ("target", "needs"), [("heeding_the_current_mesh", "NamedSharding(mesh, P"), ("plain", "a current mesh, as")]
)
def test_a_line_needs_the_mesh_with_which_the_program_is_the_same(target, needs):
    def work(function, known):
        return find_mesh_need(function, lower(function, known, name=target), None)

    function = Function(target=f"{__file__}:{target}", facts=TargetFacts(slice="v5e:2x2"))
    assert needs in with_function(function, work)


def test_cures_are_compiled_to_the_end_where_the_program_is(monkeypatch):
    asked = []

    def note(subject, _seconds, *, confirms):
        asked.append(confirms)
        return subject.analysis

    monkeypatch.setattr("hloscope.search.trying.try_cures", note)
    call = {"mesh": {"data": 8}, "slice": "v5e:2x4", "axis_types": "explicit"}
    arguments = ("bf16[1024,1024]", "bf16[16,2048@data,1024]")
    hloscope.analyze(recurrent, arguments, **call, try_s=60)
    hloscope.analyze(recurrent, arguments, **call, try_s=60, stage="scheduled")  # its whole compile is known by now
    on_terminal = Function(
        target=recurrent,
        facts=TargetFacts(args=arguments, **call),
        wanted=CompileStage.SCHEDULED,
        is_enough=lambda _: False,
    )
    analyze_function(on_terminal, tries=True, try_s=60)
    assert asked == [True, False, True]
