"""A lost decision is tried with the line that its user would write, and the line gives what is printed."""

from __future__ import annotations

import runpy
from dataclasses import replace
from functools import partial

import pytest

import hloscope
from hloscope.compile import client, compiling
from hloscope.compile.sharding_change import ConstraintEdit
from hloscope.model.vocabulary import CompileStage
from hloscope.search import cures, suggesting, trials
from hloscope.search.source_changes import add_axis

pytestmark = pytest.mark.tpu_compiler
PROGRAM = """\
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

WEIGHTS = {{"emb": "bf16[256,512@data]", "layers": "bf16[2,512@data,512]"}}


@hloscope.target(mesh={{"data": 4}}, slice="v5e:2x2", args=(WEIGHTS, "s32[64@data,256]"), donate=0)
def step(weights, tokens):
    def loss(weights):
        {line}
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights["layers"])
        return (x.astype(jnp.float32) ** 2).mean()
    return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))
"""
LOST = 'x = weights["emb"][tokens]'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the programs: what is compiled at the same path may be taken from the cache."""
    return tmp_path_factory.mktemp("cures")


@pytest.fixture
def program(folder, cached):
    """Writes the program with a line, and returns it as a target."""

    def write(line, name):
        file = folder / f"{name}.py"
        file.write_text(PROGRAM.format(line=line))
        return f"{file}:step"

    return write


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize(("chosen", "why"), [("v5e:2x2", "no decision is lost"), ("cpu:4", "no predicted times")])
def test_that_nothing_was_tried_is_said_where_trying_was_asked_for(chosen, why):
    call = {"args": ("bf16[8@X,16]",), "mesh": {"X": 4}, "slice": chosen}
    assert [why in note for note in hloscope.analyze(lambda x: x * 2, **call, try_s=60).notes][-1]
    assert not any("nothing tried" in note for note in hloscope.analyze(lambda x: x * 2, **call).notes)


def test_the_printed_line_gives_the_printed_figures(program, folder):
    found = hloscope.analyze(program(LOST, "lost"), try_s=200)
    (decision,) = [each for each in found.decisions if each.is_lost]
    assert decision.name == "data: 512, not 64"
    assert decision.summary == "data shards features 512, not the batch 64"
    best = decision.trials.helping[0]
    write, place, needs = best.change
    line = write.removeprefix("write ")
    assert place == "at lost.py:13 in loss"
    assert line == 'x = jax.lax.with_sharding_constraint(weights["emb"][tokens], P("data", None, None))'
    assert needs == "needs a current mesh, as under jax.set_mesh"
    cured = hloscope.analyze(program(line, "cured"), trials=False)
    assert not any(each.is_lost for each in cured.decisions)
    assert best.after.step_us == pytest.approx(cured.time.step_us, rel=1e-6)
    assert (best.after.wire_bytes, best.after.hbm_bytes) == (cured.totals.wire_bytes, cured.memory.peak_bytes)
    assert best.after.step_us < 0.5 * found.time.step_us
    assert (folder / "lost.py").read_text() == PROGRAM.format(line=LOST)
    assert f"write: {line}\n" in str(found)
    (finding,) = [each for each in found.findings if each.rule == "lost-batch"]
    assert finding.fix == "; ".join(best.change)


def test_nothing_is_tried_unless_it_is_wanted(program, monkeypatch):
    target = program(LOST, "lost")
    assert hloscope.analyze(target, trials=False).decisions[0].trials is None
    monkeypatch.setenv("CI", "true")
    found = hloscope.analyze(target)
    assert found.decisions[0].trials is None
    assert "constrained to P('data', None, None); by shapes alone" in " ".join(str(found).split())


def test_an_explanation_names_the_decision_and_its_cure(program):
    first = hloscope.explain(program(LOST, "lost"), try_s=200)[0]
    assert first.decision.startswith("data shards features 512, not the batch 64: ")
    assert first.trials.helping[0].change[0].startswith("write x = jax.lax.with_sharding_constraint(")


def test_a_program_that_is_another_one_when_traced_again_is_not_tried(program):
    calls = 'calls.append(1); x = weights["emb"][tokens] * len(calls)'
    target = program(calls, "counting")
    file = target.partition(":step")[0]
    with open(file, encoding="utf-8") as stream:
        text = stream.read()
    with open(file, "w", encoding="utf-8") as stream:
        stream.write(text.replace("WEIGHTS =", "calls = []\nWEIGHTS ="))
    found = hloscope.analyze(target, stage="scheduled", try_s=200)
    (decision,) = [each for each in found.decisions if each.is_lost]
    assert decision.trials.not_tried == "the program is another one when it is traced again"


def test_a_cure_that_code_generation_refuses_is_withdrawn(program, monkeypatch):
    monkeypatch.setenv("HLOSCOPE_CACHE", "0")

    def refuse(subject, programs, until):
        figures = [trials.read_figures(subject.analysis, subject.captured), "it overflows VMEM"]
        return figures[-len(programs) :]

    monkeypatch.setattr(client.Question, "is_answered", False)
    monkeypatch.setattr(compiling, "SOON_COMPILED_CHARS", 0)
    monkeypatch.setattr(trials, "_price_in_full", refuse)
    (decision,) = [each for each in hloscope.analyze(program(LOST, "lost"), try_s=200).decisions if each.is_lost]
    assert decision.trials.helping == ()
    assert "it overflows VMEM" in (decision.trials.not_tried, decision.trials.verdict)


def test_ctrl_c_during_a_trial_prints_what_is_known(program, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cures, "confirm_best", interrupt)
    monkeypatch.setattr(trials, "choose_stage", lambda _: CompileStage.SCHEDULED)
    found = hloscope.analyze(program(LOST, "lost"), try_s=200)
    (decision,) = [each for each in found.decisions if each.is_lost]
    assert decision.trials.helping  # compared when it was scheduled
    assert decision.trials.not_tried == "the remaining changes, because of Ctrl-C"

    monkeypatch.setattr(cures._CureSearch, "_rank", interrupt)
    found = hloscope.analyze(program(LOST, "lost"), try_s=200)
    (decision,) = [each for each in found.decisions if each.is_lost]
    assert decision.trials.helping == ()
    assert "not tried: interrupted by Ctrl-C" in str(found)
    with pytest.raises(KeyboardInterrupt):  # which has other changes to try
        hloscope.explain(program(LOST, "lost"), try_s=200)


def test_a_search_begins_with_what_is_lost_and_its_lines_give_what_it_says(program):
    found = hloscope.suggest(program(LOST, "lost"), keep="*", fix_mesh=True, candidates=3)
    best = found.best
    write, place, _ = best.constraints
    assert (write, place) == (
        'write x = jax.lax.with_sharding_constraint(weights["emb"][tokens], P("data", None, None))',
        "at lost.py:13 in loss",
    )
    assert {f"# {write}", f"# {place}"} <= {*best.code}
    assert not any(spec.is_changed for spec in best.specs)
    cured = hloscope.analyze(program(write.removeprefix("write "), "cured"), trials=False)
    assert best.figures.step_us <= (1 + 1e-6) * cured.time.step_us  # another order of the devices may be faster still


def test_a_scheme_is_compiled_with_the_constraints_that_it_takes(program, tmp_path, monkeypatch):
    whole = PROGRAM.format(line=LOST).replace("512@data", "512").replace("64@data", "64")
    (tmp_path / "whole.py").write_text(whole)
    searches = []
    run = suggesting.Search.run
    monkeypatch.setattr(suggesting.Search, "run", lambda search: searches.append(search) or run(search))
    hloscope.suggest(f"{tmp_path / 'whole.py'}:step", fix_mesh=True, candidates=4)
    compiled = {each.point: each for each in searches[0].found.compiled}
    written = [each for each in compiled.values() if each.point.lines]
    plain = [compiled[replace(each.point, lines=(), written=())] for each in written]
    assert written
    assert min(a.figures.step_us / b.figures.step_us for a, b in zip(written, plain, strict=True)) < 0.5


def test_a_call_of_several_lines_is_printed_as_it_is_written_and_is_that_of_vmap(program):
    several = (
        'x = jax.vmap(lambda row, t: row[t], (None, 0))(\n            weights["emb"],  # the table\n            tokens)'
    )
    found = hloscope.analyze(program(several, "several"), stage="scheduled", try_s=200)
    (decision,) = [each for each in found.decisions if each.is_lost]
    code = decision.trials.helping[0].change[0].removeprefix("write ")
    cured = hloscope.analyze(
        program(code.replace("\n", "\n        "), "several_cured"), trials=False, stage="scheduled"
    )
    assert not any(each.is_lost for each in cured.decisions)
    lines = str(found).splitlines()
    begin = next(at for at, line in enumerate(lines) if line.strip().startswith("write: x = "))
    shown = [line.removeprefix(" " * 5) for line in lines[begin : begin + 3]]
    assert [shown[0].removeprefix("write: "), *shown[1:]] == code.splitlines()
    fix = next(at for at, line in enumerate(lines) if "= fix: write x = " in line)
    assert [line.strip().partition(";")[0] for line in lines[fix + 1 : fix + 3]] == [
        line.strip() for line in code.splitlines()[1:]
    ]


OTHERS = """\
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P, reshard

import hloscope

TWO = {"mesh": {"data": 2, "fsdp": 2}, "slice": "v5e:2x2"}
WEIGHTS = {"emb": "bf16[256,512@(data,fsdp)]", "layers": "bf16[2,512@(data,fsdp),512]"}


@hloscope.target(**TWO, args=(WEIGHTS, "s32[64@(data,fsdp),256]"), donate=0)
def of_two_axes(weights, tokens):
    def loss(weights):
        x = weights["emb"][tokens]
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights["layers"])
        return (x.astype(jnp.float32) ** 2).mean()
    return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))


@hloscope.target(
    mesh={"data": 2, "model": 2}, slice="v5e:2x2", axis_types="explicit",
    args=("bf16[4096@data,1024]", "bf16[1024,1024@model]"),
)
def resharded(x, w):
    x = reshard(x, P(None, None))
    for _ in range(2):
        x = reshard(jax.nn.relu(x @ w), P(None, None))
    return x


@hloscope.target(mesh={"data": 4}, slice="v5e:2x2", args=("u32[2]", "bf16[4,1024,1024]"))
def idle(key, layers):
    x = jax.random.normal(jax.random.wrap_key_data(key), (64, 128, 1024), jnp.bfloat16)
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, layers)
    return (x.astype(jnp.float32) ** 2).mean()


LOGITS = {"mesh": {"data": 4, "model": 4}, "slice": "v5e:4x4"}


@hloscope.target(**LOGITS, args=("bf16[16384@data,2048]", "bf16[2048,65536@model]"), out="P('data')")
def logits_made_whole(h, unembed):
    logits = jax.lax.with_sharding_constraint(h @ unembed, P("data", None))
    return jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)


def shard_batch(x):
    return jax.lax.with_sharding_constraint(x, P("data", *[None] * (x.ndim - 1)))


@hloscope.target(
    **LOGITS, args=("bf16[4096@data,2048]", "bf16[2048,2048]", "bf16[2048,65536@model]", "s32[4096@data]"),
    out=(None, "P(None, 'model')"),
)
def in_a_helper(x, w, unembed, labels):
    def loss(unembed):
        hidden = shard_batch(jnp.tanh(x @ w))
        logits = shard_batch(hidden @ unembed).astype(jnp.float32)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()
    return jax.value_and_grad(loss)(unembed)


@hloscope.target(
    **LOGITS, args=("bf16[4096@data,4096]", *["bf16[4096,4096@(data,model)]"] * 2, "bf16[4096,4096]"),
    out=("P(None, ('data', 'model'))", "P()"), donate=(1, 3),
)
def state_left_whole(x, w, target, mu):
    grad = jax.grad(lambda w: ((x @ w).astype(jnp.float32) ** 2).mean())(w)
    mu = 0.9 * mu + grad
    return w - mu, mu


@hloscope.target(**LOGITS, args=("bf16[16@data,32@model,128,128]",) * 2, out="P('data', 'model')")
def carried_whole(k, v):
    def add(state, _):
        new = jnp.einsum("bnst,bnsu->bntu", k, v).astype(jnp.float32)
        return jax.lax.with_sharding_constraint(state + new, P(None, None, None, None)), None
    return jax.lax.scan(add, jnp.zeros((16, 32, 128, 128), jnp.float32), length=8)[0]


def empty(*shape):
    return jnp.zeros(shape, jnp.float32)


@hloscope.target(
    **LOGITS, axis_types="explicit", args=("bf16[8,64@data,16@model,256]",) * 2, out="P('data', 'model', None, None)"
)
def types_carried_whole(k, v):
    def add(sums, kv):
        products = jnp.einsum("bns,bnt->bnst", *kv, out_sharding=P(None, None, None, None))
        normal = reshard(kv[0], P(None, None, None))
        return {"products": sums["products"] + products, "normal": sums["normal"] + normal}, None
    sums, _ = jax.lax.scan(add, {"products": empty(64, 16, 256, 256), "normal": empty(64, 16, 256)}, (k, v))
    return sums["products"] / sums["normal"][..., None]


def normalize(x):
    return jnp.tanh(x) * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + x.shape[1])


@hloscope.target(**LOGITS, args=("bf16[16@data,1024,32@model,128]",), out="P('data', None, 'model', None)")
def whole_in_shard_map(x):
    alone = jax.shard_map(normalize, in_specs=(P("data", None, None, None),), out_specs=P("data", None, None, None))
    return alone(x) * 2


@hloscope.target(**LOGITS, args=("bf16[16@data,1024,32@model,128]", "bf16[128,128]"), out="P()")
def whole_in_decorated(x, w):
    def loss(w):
        @partial(jax.shard_map, in_specs=(P("data"), P()), out_specs=P("data"), check_vma=False)
        def alone(x, w):
            return normalize(x @ w)
        return (alone(x, w).astype(jnp.float32) ** 2).mean()
    return jax.grad(loss)(w)


@hloscope.target(
    mesh={"model": 4}, slice="v5e:2x2",
    args=("bf16[2,1024,768]", *["bf16[768,6,128@model]"] * 3, "bf16[6,128@model,768]"), out="P()",
)
def made_in_one_line(x, wq, wk, wv, wo):
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, w) for w in (wq, wk, wv))
    scores = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", q, k).astype(jnp.float32), -1).astype(x.dtype)
    return jnp.einsum("bshk,hkd->bsd", jnp.einsum("bhst,bthk->bshk", scores, v), wo)


def shared(x):
    return x - x.mean(2, keepdims=True)


def scaled(x):
    return x * x.shape[2]


def numbered(x):
    return x + jnp.arange(x.shape[2], dtype=x.dtype)[:, None]


def asked_where(x):
    return x * jax.lax.axis_index("model").astype(x.dtype)


@hloscope.target(**LOGITS, args=("bf16[16@data,1024,32@model,128]",), out="P('data', None, 'model', None)")
def not_alone(x, alone=shared):
    return jax.shard_map(alone, in_specs=P("data"), out_specs=P("data"), check_vma=False)(x)
"""


@pytest.fixture
def other(folder, cached):
    """The path of the other programs."""
    file = folder / "others.py"
    file.write_text(OTHERS)
    return file


def test_axes_that_are_lost_alike_are_turned_together(other):
    found = hloscope.analyze(f"{other}:of_two_axes", stage="scheduled", try_s=200)
    first = next(each for each in found.decisions if each.is_lost)
    assert 'P(("data", "fsdp"), None, None))' in first.trials.helping[0].change[0]
    steps = [trial.after.step_us for trial in first.trials.helping]
    assert steps[0] == min(steps) < 0.6 * first.trials.before.step_us


def test_a_reshard_of_explicit_axes_is_turned_and_what_it_changes_is_said(other):
    found = hloscope.analyze(f"{other}:resharded", stage="scheduled", try_s=200)
    trials = [each.trials for each in found.decisions if each.is_lost and each.trials is not None]
    best = next(iter(trials[0].helping))
    assert best.change[0] == 'write x = reshard(x, P("data", None))'
    assert best.after.step_us < 0.8 * trials[0].before.step_us
    assert best.conditions == ("outputs that are left open change: result becomes P('data', None)",)
    assert best.conditions[0] in " ".join(str(found).split())


def test_what_an_idle_axis_lets_devices_repeat_is_sharded_where_it_is_made(other):
    found = hloscope.analyze(f"{other}:idle", stage="scheduled", try_s=200)
    (decision,) = [each for each in found.decisions if each.is_lost]
    assert decision.kind == "idle"
    best = decision.trials.helping[0]
    assert best.change[0].startswith("write x = jax.lax.with_sharding_constraint(jax.random.normal(")
    assert best.after.step_us < 0.5 * decision.trials.before.step_us


FIRST = [("64, 16, 256, 256", "None, None"), ("64, 16, 256", "None")]
HELPER = "constraint at others.py:50, as called at others.py:60 in loss"


@pytest.mark.parametrize(("name", "change", "most"), [
    ("logits_made_whole", "constraint at others.py:45: P('data', None) -> P('data', 'model')", 0.3),
    ("in_a_helper", f"{HELPER}: P('data', None) -> P('data', 'model')", 0.8),
    ("state_left_whole", "argument mu: P(None, None) -> P(None, ('data', 'model'))", 0.5),
    ("carried_whole", "constraint at others.py:79: P(None, None, None, None) -> P('data', None, None, None)", 0.5),
])  # fmt: skip
def test_what_is_made_whole_at_a_cost_is_tried(other, name, change, most):
    found = hloscope.analyze(f"{other}:{name}", stage="scheduled", try_s=200)
    tried = next(each.trials for each in found.decisions if each.trials is not None)
    best = tried.helping[0]
    assert change in best.change
    assert best.after.step_us < most * (best.before or tried.before).step_us
    assert not any("left open" in condition for condition in best.conditions)
    assert change.replace("argument ", "argument: ").replace("constraint ", "constraint: ") in " ".join(
        str(found).split()
    )


def test_the_types_of_what_a_loop_carries_are_turned_with_the_types_that_its_body_returns(other):
    found = hloscope.analyze(f"{other}:types_carried_whole", stage="scheduled", try_s=200)
    tried = next(each.trials for each in found.decisions if each.trials is not None)
    best = tried.helping[0]
    first = [f'reshard(empty({shape}), P("data", "model", {rest}))' for shape, rest in FIRST]
    assert all(each in best.change[0] for each in first)
    assert best.change[1] == "at others.py:95 in types_carried_whole"
    assert best.after.wire_bytes == 0
    assert best.after.step_us < 0.5 * (best.before or tried.before).step_us


@pytest.mark.parametrize(("name", "change"), [
    (
        "whole_in_shard_map",
        'write alone = jax.shard_map(normalize, in_specs=(P("data", None, "model", None),), '
        'out_specs=P("data", None, "model", None))',
    ),
    (
        "whole_in_decorated",
        'write @partial(jax.shard_map, in_specs=(P("data", None, "model", None), P()), '
        'out_specs=P("data", None, "model", None), check_vma=False)',
    ),
])  # fmt: skip
def test_specs_of_a_shard_map_that_make_a_dimension_whole_are_turned(other, name, change):
    found = hloscope.analyze(f"{other}:{name}", stage="scheduled", try_s=200)
    first = next(each for each in found.decisions if each.trials is not None)
    assert [asker.by for asker in first.held_by] == ["shard_map"]
    best = first.trials.helping[0]
    assert best.change[0] == change
    assert not any("hloscope cannot see" in each for each in best.change)
    assert best.after.step_us < 0.6 * first.trials.before.step_us


def test_a_variable_is_constrained_where_it_is_used_if_its_line_makes_others(other):
    found = hloscope.analyze(f"{other}:made_in_one_line", stage="scheduled", try_s=200)
    tried = next(each.trials for each in found.decisions if each.trials is not None)
    best = tried.helping[0]
    used = 'jnp.einsum("bshk,bthk->bhst", jax.lax.with_sharding_constraint(q, P(None, "model", None, None)), k)'
    assert used in best.change[0]
    assert best.after.step_us < 0.5 * (best.before or tried.before).step_us


@pytest.mark.parametrize(("name", "why"), [
    ("shared", "other operations or numbers"),
    ("scaled", "other operations or numbers"),
    ("numbered", "iota at others.py:138 in numbered numbers the places of the dimension"),
    ("asked_where", "it names the axis"),
])  # fmt: skip
def test_specs_are_not_turned_under_which_a_function_computes_something_else(other, name, why):
    space = runpy.run_path(str(other))
    call = {"args": ("bf16[16@data,1024,32@model,128]",), "out": "P('data', None, 'model', None)"}
    program = partial(space["not_alone"], alone=space[name])
    found = hloscope.analyze(program, **call, **space["LOGITS"], stage="scheduled", try_s=200)
    first = next(each for each in found.decisions if each.trials is not None)
    assert not any("shard_map" in each for trial in first.trials.trials for each in trial.change)
    assert why in first.trials.not_tried
    assert f"not tried: {first.trials.not_tried}" in " ".join(str(found).split())
    assert "requested by in_specs of the shard_map at others.py:" in " ".join(str(found).split())


def test_a_second_axis_goes_where_another_change_of_the_constraint_has_it():
    first = ConstraintEdit(operation=3, sharding=(("data",), (), ()))
    added = add_axis(first, ((), ("model",), ()), "model")
    assert added.sharding == (("data",), ("model",), ())
    assert add_axis(added, ((), ("model",), ()), "model") == added
    assert add_axis(ConstraintEdit(operation=3), ((), ("model",), ()), "model").sharding is None
