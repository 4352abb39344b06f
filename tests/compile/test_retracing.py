"""A constraint that is tried as the user would write it: the same program as from a file in which it is written."""

from __future__ import annotations

import builtins
import linecache
import warnings
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import jax
import jax.numpy as jnp
import pytest
from jax._src import source_info_util

from hloscope.base.errors import HloscopeError
from hloscope.compile import retracing
from hloscope.compile.functions import Function, with_function
from hloscope.compile.importing import format_path
from hloscope.compile.lowering import lower
from hloscope.compile.retracing import RewrittenProgram, lower_with_constraints
from hloscope.compile.sharding_change import WrittenConstraint
from hloscope.compile.target import TargetFacts

X0 = (("X",), ())
X00 = (("X",), (), ())
ROWS = "f32[8@X,4]"
FACTS = TargetFacts(mesh={"X": 4}, slice="cpu:4", args=(ROWS,))
HEAD = """
import functools
import jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P
"""


@dataclass
class Tried:
    """A program before and with a constraint, and again without."""

    before: str
    again: str
    made: RewrittenProgram

    @property
    def text(self) -> str:
        return self.made.lowered.text


@pytest.fixture
def written(tmp_path):
    """Writes a module of the user's into a folder of its own."""

    def write(text: str, name: str = "model") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.py").write_text(text)
        return folder / "model.py"

    return write


def lower_file(file: Path, facts: TargetFacts) -> str:
    return with_function(Function(target=f"{file}:step", facts=facts), lambda f, known: lower(f, known, name="t").text)


def find_place(file: Path, expression: str) -> tuple[int, int]:
    text = file.read_text()
    assert text.count(expression) == 1, "the expression to constrain is there once"
    head = text[: text.index(expression)]
    return head.count("\n") + 1, len(head.rpartition("\n")[2].encode())


def try_constraint(file: Path, expression: str, sharding, args, *, slice="cpu:4", mesh=None, **more) -> Tried:
    """Lowers a file with a constraint on the value of an expression."""
    options = {name: more.pop(name) for name in ("axis_types", "static") if name in more}
    facts = TargetFacts(mesh=mesh or {"X": 4}, slice=slice, args=args, **options)
    line, column = find_place(file, expression)
    constraint = WrittenConstraint(file=str(file), line=line, column=column, sharding=sharding, **more)

    def work(function, known):
        original = lower(function, known, name="t")
        made = lower_with_constraints(function, original, [constraint])
        return Tried(original.text, lower(function, known, name="t").text, made)

    return with_function(Function(target=f"{file}:step", facts=facts), work)


@pytest.fixture
def as_written(written):
    """Tries a constraint, and compares the program with that of the file in which the line is written."""

    def check(text: str, expression: str, sharding, args, *, head=HEAD, **options) -> Tried:
        text = head + dedent(text)
        tried = try_constraint(written(text), expression, sharding, args, **options)
        made = tried.made
        indented = [made.lines[0].before.replace("\n", "\n" + " " * more) for more in range(0, 12, 4)]
        before = next(lines for lines in indented if lines in text)
        twin = text.replace(before, made.lines[0].after)
        imports = "".join(f"{line}\n" for line in made.lines[0].imports)
        options = {name: options[name] for name in ("axis_types", "static") if name in options} | {
            "mesh": options.get("mesh") or {"X": 4},
            "slice": options.get("slice", "cpu:4"),
        }
        assert tried.text == lower_file(written(imports + twin, "twin"), TargetFacts(args=args, **options))
        assert tried.text != tried.before
        assert tried.again == tried.before
        assert getattr(builtins, "_hloscope_wrap", retracing.KEEPERS) is retracing.KEEPERS
        return tried

    return check


# ---- whole training steps

MODEL = """
    L, D = 3, 8

    def layer(x, w):
        h = x * jax.lax.rsqrt(jnp.mean(x ** 2, -1, keepdims=True) + 1e-6)
        return x + jnp.einsum("bsf,fd->bsd", jax.nn.silu(jnp.einsum("bsd,df->bsf", h, w["u"])), w["d"])

    def update(p, g):
        return jax.tree.map(lambda p, g: p - 1e-3 * g, p, g)
"""
LAYERS = {"u": "f32[3,8@X,16]", "d": "f32[3,16,8@X]"}
TIED = {"emb": "f32[32,8@X]", "layers": LAYERS}
TOKENS = "s32[8@X,16]"
SCANNED = """
    def loss(p, t):
        x = p["emb"][t]
        x, _ = jax.lax.scan(jax.checkpoint(lambda x, w: (layer(x, w), None)), x, p["layers"])
        lp = jax.nn.log_softmax(jnp.einsum("bsd,vd->bsv", x, p["HEAD"]))
        return -jnp.take_along_axis(lp[:, :-1], t[:, 1:, None], -1).mean()
"""
STEP = """
    def step(p, t):
        l, g = jax.value_and_grad(loss)(p, t)
        return update(p, g), l
"""
WRITTEN_OUT = """
    def loss(p, t):
        x = p["emb"][t]
        for number in range(L):
            x = jax.checkpoint(layer)(x, {name: w[number] for name, w in p["layers"].items()})
        return jax.nn.logsumexp(jnp.einsum("bsd,vd->bsv", x, p["emb"])).mean()
"""
ACCUMULATING = """
    def step(p, t):
        def add(g, t):
            return jax.tree.map(jnp.add, g, jax.grad(loss)(p, t)), None
        g, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, p), t)
        return update(p, g)
"""


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("program", "args"),
    [
        pytest.param(SCANNED.replace("HEAD", "emb") + STEP, (TIED, TOKENS), id="tied"),
        pytest.param(SCANNED.replace("HEAD", "out") + STEP, (TIED | {"out": "f32[32,8@X]"}, TOKENS), id="untied"),
        pytest.param(WRITTEN_OUT + STEP, (TIED, TOKENS), id="written out"),
        pytest.param(SCANNED.replace("HEAD", "emb") + ACCUMULATING, (TIED, "s32[2,8@X,16]"), id="accumulating"),
    ],
)
def test_an_embedding_lookup_is_constrained_as_if_it_were_written(as_written, program, args):
    tried = as_written(MODEL + program, 'p["emb"][t]', X00, args)
    assert tried.made.lines[0].before == 'x = p["emb"][t]'
    assert tried.made.lines[0].after == 'x = jax.lax.with_sharding_constraint(p["emb"][t], P("X", None, None))'
    assert tried.made.lines[0].imports == ()
    assert tried.made.lines[0].needs_mesh
    assert tried.made.lines[0].shapes == ((8, 16, 8),)
    assert tried.text.count("sharding_constraint") >= 2, "the cotangent is constrained too"


def test_a_layer_in_a_checkpoint_is_constrained_again_where_it_is_repeated(as_written):
    program = MODEL + SCANNED.replace("HEAD", "emb") + STEP
    tried = as_written(program, 'jnp.einsum("bsd,df->bsf"', X00, (TIED, TOKENS), primitive="dot_general")
    assert tried.text.count("sharding_constraint") >= 3


def test_a_program_for_a_slice(as_written):
    as_written("def step(x): return jnp.sin(x) + 1", "jnp.sin(x)", X0, (ROWS,), slice="v5e:2x2", primitive="sin")


# ---- the ways in which a function may be called

WAYS = {
    "jit": "@jax.jit\ndef inner(x): return jnp.sin(x) * 2\ndef step(x): return inner(x) + inner(x + 1)",
    "jitted itself": "@jax.jit\ndef step(x): return jnp.sin(x) * 2",
    "jit in jit": "def step(x): return jax.jit(lambda y: jax.jit(lambda z: jnp.sin(z) * 2)(y) + 1)(x)",
    "static": "@functools.partial(jax.jit, static_argnums=1)\ndef inner(x, n): return jnp.sin(x) * n\n"
    "def step(x): return inner(x, 2)",
    "partial": "def inner(n, x): return jnp.sin(x) * n\nstep = functools.partial(inner, 2)",
    "decorated": "def twice(f):\n    @functools.wraps(f)\n    def g(x): return f(f(x))\n    return g\n"
    "@twice\ndef step(x): return jnp.sin(x) * 2",
    "method": "class Model:\n    n = 2\n    def __call__(self, x): return jnp.sin(x) * self.n\nstep = Model()",
    "class method": "class Model:\n    @classmethod\n    def f(cls, x): return jnp.sin(x) * 2\nstep = Model.f",
    "lambda": "step = lambda x: jnp.sin(x) * 2",
    "closure": "def make(n):\n    def inner(x): return jnp.sin(x) * n\n    return inner\nstep = make(3)",
    "nested": "def step(x):\n    def inner(y): return jnp.sin(y) * x\n    return inner(x + 1)",
    "defaults": "def inner(x, n=2, *, m=3): return jnp.sin(x) * n * m\ndef step(x): return inner(x, m=4)",
    "comprehension": "def step(x): return sum([jnp.sin(x) * n for n in range(3)])",
    "grad": "def inner(x): return (jnp.sin(x) * 2).sum()\nstep = jax.grad(inner)",
    "jvp": "def inner(x): return jnp.sin(x) * 2\ndef step(x): return jax.jvp(inner, (x,), (x,))",
    "hessian": "def inner(x): return (jnp.sin(x) ** 3).sum()\n"
    "def step(x): return jax.grad(lambda x: jax.grad(inner)(x).sum())(x)",
    "checkpoint": "@jax.checkpoint\ndef inner(x): return jnp.sin(x) * 2\n"
    "def step(x): return jax.grad(lambda x: inner(x).sum())(x)",
    "scan": "def body(c, _): return jnp.sin(c) * 2, None\ndef step(x): return jax.lax.scan(body, x, None, length=3)[0]",
    "while": "def step(x): return jax.lax.fori_loop(0, 3, lambda _, c: jnp.sin(c) * 2, x)",
    "cond": "def step(x): return jax.lax.cond(x[0, 0] > 0, lambda x: jnp.sin(x) * 2, lambda x: x, x)",
    "custom_jvp": "@jax.custom_jvp\ndef inner(x): return x * 2\n"
    "@inner.defjvp\ndef inner_jvp(p, t): return p[0] * 2, jnp.sin(p[0]) * t[0]\n"
    "def step(x): return jax.grad(lambda x: inner(x).sum())(x)",
    "custom_vjp": "@jax.custom_vjp\ndef inner(x): return x * 2\ndef fwd(x): return jnp.sin(x) * 2, x\n"
    "def bwd(x, g): return (x * g,)\ninner.defvjp(fwd, bwd)\n"
    "def step(x): return jax.value_and_grad(lambda x: inner(x).sum())(x)",
    "cached factory": "@functools.cache\ndef make(n):\n"
    "    def inner(x): return jnp.sin(x) * n\n    return jax.jit(inner)\n"
    "def step(x): return make(2)(x) + make(3)(x)",
    "named": "def step(x):\n    with jax.named_scope('a'):\n        y = jnp.sin(x) * 2\n    return y",
}


@pytest.mark.parametrize("way", WAYS)
def test_functions_of_every_kind_are_traced_with_the_line(as_written, way):
    names = ("x", "y", "z", "c", "p[0]")
    expression = next(part for name in names if (part := f"jnp.sin({name})") in WAYS[way])
    tried = as_written(WAYS[way], expression, X0, (ROWS,), primitive="sin")
    assert f'jax.lax.with_sharding_constraint({expression}, P("X", None))' in tried.made.lines[0].after


def test_a_vmapped_line_is_constrained_without_the_batch(as_written):
    program = """
        def step(x, y):
            return jax.vmap(lambda a, b: jnp.sin(a) + b, in_axes=(1, None))(x, y)
    """
    tried = as_written(program, "jnp.sin(a)", X0, ("f32[8@X,6,4]", "f32[8@X,4]"), primitive="sin")
    assert tried.made.lines[0].shapes == ((8, 4),)
    assert '[{}, {"X"}, {}]' not in tried.before
    assert "{?}" in tried.text, "the batch dimension is left open"


def test_a_line_in_a_manual_program_may_name_the_other_axes(as_written):
    program = """
        @jax.shard_map(in_specs=P("X"), out_specs=P("X"), axis_names={"X"})
        def inner(x): return jnp.sin(x) + 1
        def step(x): return inner(x)
    """
    as_written(program, "jnp.sin(x)", (("Y",), ()), ("f32[8@X,4]",), mesh={"X": 2, "Y": 2}, primitive="sin")


def test_explicit_axes_are_resharded(as_written):
    program = "def step(x): return jnp.sin(x) * 2"
    options = {"axis_types": "explicit", "primitive": "sin"}
    tried = as_written(program, "jnp.sin(x)", ((), ("X",)), (ROWS,), **options)
    assert tried.made.lines[0].after == 'def step(x): return jax.sharding.reshard(jnp.sin(x), P(None, "X")) * 2'


EXPLICIT = {"axis_types": "explicit", "mesh": {"X": 4}, "requested": ((), ("X",))}
REQUESTS = {
    "out_sharding": ('return jnp.dot(x, w, out_sharding=P(None, "X")) * 2', "jnp.dot(x, w", "dot_general"),
    "a name": ('ours = P(None, "X"); return jnp.dot(x, w, out_sharding=ours) * 2', "jnp.dot(x, w", "dot_general"),
    "shorter": ('return jnp.einsum("ij,jk->ik", x, w, out_sharding=P(None, "X"))', "jnp.einsum", "dot_general"),
    "of a mesh": (
        'return jnp.dot(x, w, out_sharding=jax.NamedSharding(jax.typeof(x).sharding.mesh, P(None, "X")))',
        "jnp.dot(x, w",
        "dot_general",
    ),
    "reshard": ('return jax.sharding.reshard(x @ w, P(None, "X"))', "jax.sharding.reshard", "reshard"),
}


@pytest.mark.parametrize("form", REQUESTS)
def test_requests_of_explicit_axes_are_turned(as_written, form):
    line, expression, primitive = REQUESTS[form]
    arguments = ("f32[8@X,4]", "f32[4,16]")
    tried = as_written(
        f"def step(x, w): {line}", expression, X0, arguments, primitive=primitive, shape=(8, 16), **EXPLICIT
    )
    assert 'P("X", None)' in tried.made.lines[0].after
    assert tried.made.lines[0].after.count("P(") == 1 + (form == "a name")
    assert not tried.made.lines[0].needs_mesh


def test_other_dimensions_may_be_left_open(as_written):
    tried = as_written("def step(x): return jnp.sin(x)", "jnp.sin(x)", X0, (ROWS,), leaves_open=True)
    assert tried.made.lines[0].after.endswith('jax.lax.with_sharding_constraint(jnp.sin(x), P("X", P.UNCONSTRAINED))')
    assert '[{"X"}, {?}]' in tried.text


def test_several_axes_of_a_dimension(as_written):
    sharding = ((), ("X", "Y"))
    tried = as_written("def step(x): return jnp.sin(x)", "jnp.sin(x)", sharding, (ROWS,), mesh={"X": 2, "Y": 2})
    assert 'P(None, ("X", "Y"))' in tried.made.lines[0].after


FORMS = {
    "x @ x.T": ("y = x @ x.T", 'y = jax.lax.with_sharding_constraint(x @ x.T, P("X", None))', "dot_general"),
    "x.T": ("y = x.T", 'y = jax.lax.with_sharding_constraint(x.T, P("X", None))', None),
    "-x": ("y = -x", 'y = jax.lax.with_sharding_constraint(-x, P("X", None))', None),
    "x > 1": ("y = x > 1", 'y = jax.lax.with_sharding_constraint(x > 1, P("X", None))', None),
    "x[::2]": ("y = x[::2]", 'y = jax.lax.with_sharding_constraint(x[::2], P("X", None))', None),
    "y += x": ("y = x; y += x", 'y = x; y = jax.lax.with_sharding_constraint(y + x, P("X", None))', None),
    "y *= x + 1": (
        "y = x; y *= x + 1",
        'y = x; y = jax.lax.with_sharding_constraint(y * (x + 1), P("X", None))',
        "mul",
    ),
    "é": ("é = 'é'; y = x + len(é)", "é = 'é'; y = jax.lax.with_sharding_constraint(x + len(é), P(\"X\", None))", None),
    "chain": (
        "y = (x\n         .astype(jnp.int32)\n         .sum(1,\n              keepdims=True))",
        "y = (jax.lax.with_sharding_constraint(x\n     .astype(jnp.int32)\n     .sum(1,\n"
        '          keepdims=True), P("X", None)))',
        "reduce_sum",
    ),
    "no end": (
        "y = x; return jnp.sin(y)",
        'y = x; return jax.lax.with_sharding_constraint(jnp.sin(y), P("X", None))',
        None,
    ),
}
BEGINS = {"chain": "sum(1", "é": "x + len", "no end": "jnp.sin(y)"}


@pytest.mark.smoke
@pytest.mark.parametrize("form", FORMS)
def test_the_whole_expression_is_wrapped(as_written, form):
    line, after, primitive = FORMS[form]
    text = f"def step(x):\n    {line}\n    return y" if form != "no end" else f"def step(x):\n    {line}"
    tried = as_written(text, BEGINS.get(form, form), X0, (ROWS,), primitive=primitive)
    assert tried.made.lines[0].after == after


@pytest.mark.parametrize(
    ("head", "called", "imports"),
    [
        (
            "import jax.numpy as jnp\n",
            "jax.lax.with_sharding_constraint(jnp.sin(x), jax.sharding.PartitionSpec",
            ("import jax",),
        ),
        (
            "import jax.numpy as jnp\nimport jax\n",
            "jax.lax.with_sharding_constraint(jnp.sin(x), jax.sharding.PartitionSpec",
            (),
        ),
        (
            "import jax as j\nimport jax.numpy as jnp\nfrom jax import lax\nimport jax.sharding as shd\n",
            "lax.with_sharding_constraint(jnp.sin(x), shd.PartitionSpec",
            (),
        ),
        (
            "import jax.numpy as jnp\nfrom jax.lax import with_sharding_constraint as wsc\n"
            "from jax.sharding import PartitionSpec\n",
            "wsc(jnp.sin(x), PartitionSpec",
            (),
        ),
    ],
)
def test_the_line_uses_the_names_of_its_file(as_written, head, called, imports):
    tried = as_written("def step(x): return jnp.sin(x)", "jnp.sin(x)", X0, (ROWS,), head=head)
    assert tried.made.lines[0].after == f'def step(x): return {called}("X", None))'
    assert tried.made.lines[0].imports == imports


def test_a_name_that_is_local_means_something_else(as_written):
    tried = as_written("def step(P): return jnp.sin(P)", "jnp.sin(P)", X0, (ROWS,))
    assert tried.made.lines[0].after.endswith('(jnp.sin(P), jax.sharding.PartitionSpec("X", None))')


@pytest.mark.parametrize(
    ("head", "own"),
    [(HEAD, "jax_"), ("import jax.numpy as jnp\njax = jax_ = None\n", "jax__")],
    ids=["local", "global"],
)
def test_jax_gets_another_name_where_its_own_is_taken(as_written, head, own):
    body = "def step(x):\n    jax = P = None\n    return jnp.sin(x)" if own == "jax_" else SIN
    tried = as_written(body, "jnp.sin(x)", X0, (ROWS,), head=head)
    assert f"{own}.lax.with_sharding_constraint(jnp.sin(x), {own}.sharding.PartitionSpec(" in tried.made.lines[0].after
    assert tried.made.lines[0].imports == (f"import jax as {own}",)


def test_the_constraint_has_the_users_line(written):
    file = written(HEAD + "def step(x): return jnp.sin(x)")
    tried = try_constraint(file, "jnp.sin(x)", X0, (ROWS,))
    jaxpr = tried.made.lowered.traced.jaxpr.jaxpr
    (eqn,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "sharding_constraint"]
    innermost = source_info_util.user_frame(eqn.source_info.traceback)
    assert (innermost.file_name, innermost.start_line, innermost.start_column) == (
        str(file),
        *find_place(file, "jnp.sin"),
    )


def test_a_file_that_python_warns_of(written):
    file = written(HEAD + "def step(x): return jnp.sin(x) if '\\d' else x")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lower_file(file, FACTS)
    assert "sharding_constraint" in try_constraint(file, "jnp.sin(x)", X0, (ROWS,)).text


def test_a_cell_of_a_notebook():
    cell, source = "/tmp/ipykernel_1/2.py", HEAD + SIN
    linecache.cache[cell] = (len(source), None, source.splitlines(keepends=True), cell)
    names: dict[str, object] = {}
    exec(compile(source, cell, "exec", dont_inherit=True), names)

    def work(function, known):
        constraint = WrittenConstraint(file=cell, line=5, column=20, sharding=X0)
        return lower_with_constraints(function, lower(function, known, name="t"), [constraint])

    made = with_function(Function(target=names["step"], facts=FACTS), work)
    assert made.lines[0].after == 'def step(x): return jax.lax.with_sharding_constraint(jnp.sin(x), P("X", None))'
    assert "sharding_constraint" in made.lowered.text


def test_the_shape_of_the_result_distinguishes_them_too(as_written):
    tried = as_written(
        "def step(x): return x.sum(1) + jnp.ones((8,))",
        "x.sum(1)",
        (("X",),),
        (ROWS,),
        primitive="reduce_sum",
        shape=(8,),
    )
    assert "(x.sum(1), P" in tried.made.lines[0].after


def test_the_end_of_the_expression_distinguishes_them_best(as_written):
    program = "def step(x): return x * x + x * 2 + x * 3"
    tried = as_written(program, "x * x", X0, (ROWS,), end=(5, len("def step(x): return x * x + x * 2")))
    assert "(x * x + x * 2, P" in tried.made.lines[0].after


def test_a_function_that_was_traced_for_an_earlier_call(as_written):
    program = """
        def step(x):
            first = jax.nn.silu(x)
            return jax.nn.silu(first) * 2
    """
    tried = as_written(program, "jax.nn.silu(first)", X0, (ROWS,), primitive="logistic")
    assert "with_sharding_constraint(jax.nn.silu(first), P" in tried.made.lines[0].after


# ---- refusals

SIN = "def step(x): return jnp.sin(x)"
XY = {"X": 2, "Y": 2}
REFUSED = {
    "several begin there": ("def step(x): return jnp.sin(x) * 2 + x", "jnp.sin(x) * 2", {}, "jnp.sin(x) * 2 + x"),
    "no operation": (SIN, "sin(x)", {}, "model.py:5"),
    "several results": ("def f(x): return x, jnp.sin(x)\ndef step(y): return f(y)", "f(y)", {}, "tuple"),
    "another number of dimensions": ("step = jax.vmap(lambda y: jnp.sin(y))", "jnp.sin(y)", {}, "jax.vmap"),
    "a manual axis": (
        '@jax.shard_map(in_specs=P("X"), out_specs=P("X"))\ndef step(x): return jnp.sin(x)',
        "jnp.sin(x)",
        {},
        "jax.shard_map",
    ),
    "an axis that the mesh lacks": (SIN, "jnp.sin(x)", {"sharding": (("Z",), ())}, "no axis Z"),
    "a part of an axis": (SIN, "jnp.sin(x)", {"sharding": (("X:(1)2",), ())}, "no axis X:(1)2"),
    "left open by reshard": (SIN, "jnp.sin(x)", {"axis_types": "explicit", "leaves_open": True}, "reshard"),
    "no request": (SIN, "jnp.sin(x)", {"axis_types": "explicit", "requested": ((), ())}, "no such operation"),
    "a request of other dimensions": (
        'def step(x): return jnp.einsum("ij,kj->ki", x, jnp.ones((2, 4)), out_sharding=P(None, "X"))',
        "jnp.einsum",
        {"axis_types": "explicit", "primitive": "dot_general", "requested": (("X",), ())},
        "other dimensions",
    ),
    "axes of two kinds": (
        SIN,
        "jnp.sin(x)",
        {"sharding": (("X",), ("Y",)), "mesh": XY, "axis_types": "X=explicit,Y=auto"},
        "automatic and explicit",
    ),
    "caught by the program": (
        "def step(x):\n    try:\n        return jnp.sin(x)\n    except Exception:\n        return x",
        "jnp.sin(x)",
        {"sharding": (("Z",), ())},
        "no axis Z",
    ),
    "changed in place": (
        "def step(x):\n    held = {'y': x}\n    held['y'] += x\n    return held['y']",
        "held['y'] +=",
        {},
        "in place",
    ),
    "not reached again": (
        "seen = []\ndef step(x):\n    seen.append(x.shape)\n    return jnp.sin(x) if len(seen) != 3 else x",
        "jnp.sin(x)",
        {},
        "not reached",
    ),
}


@pytest.fixture
def refused(written):
    """The error of a constraint that is refused; afterwards, everything is as it was."""

    def refuse(text: str, expression: str, sharding=X0, **options) -> str:
        file = written(HEAD + text)
        axes = {"mesh": options.get("mesh") or {"X": 4}, "axis_types": options.get("axis_types")}
        facts = TargetFacts(slice="cpu:4", args=(ROWS,), **axes)
        before = lower_file(file, facts)
        with pytest.raises(HloscopeError) as caught:
            try_constraint(file, expression, sharding, (ROWS,), **options)
        assert before == lower_file(file, facts)
        assert getattr(builtins, "_hloscope_wrap", retracing.KEEPERS) is retracing.KEEPERS
        return str(caught.value).replace(f"{file.parent}/", "")

    return refuse


@pytest.mark.parametrize("case", REFUSED)
def test_a_constraint_that_no_line_can_express_is_refused(refused, says, case):
    program, expression, options, fact = REFUSED[case]
    assert fact in says(refused(program, expression, **options))


def test_jax_refuses_the_line_in_its_own_words(refused):
    said = refused(SIN, "jnp.sin(x)", (("X",), ("X",)))
    assert said.startswith("error: JAX cannot trace t")
    assert "'X'" in said


def test_a_file_that_was_edited_is_not_guessed_at(written, says):
    file = written(HEAD + SIN)

    def work(function, known):
        original = lower(function, known, name="t")
        line, column = find_place(file, "jnp.sin(x)")
        file.write_text(HEAD + SIN + " + 1")
        constraint = WrittenConstraint(file=str(file), line=line, column=column, sharding=X0)
        lower_with_constraints(function, original, [constraint])

    with pytest.raises(HloscopeError) as caught:
        with_function(Function(target=f"{file}:step", facts=FACTS), work)
    assert "edited" in says(str(caught.value).replace(f"{file.parent}/", ""))


def test_functions_that_gc_freeze_hides_are_not_called_edited(refused, says, monkeypatch):
    monkeypatch.setattr(retracing.gc, "get_referrers", lambda *_: [])
    monkeypatch.setattr(retracing.gc, "get_freeze_count", lambda: 1)
    assert "gc.freeze()" in says(refused(SIN, "jnp.sin(x)", X0))


def test_a_library_is_not_rewritten(says):
    def work(function, known):
        original = lower(function, known, name="t")
        lower_with_constraints(
            function, original, [WrittenConstraint(file=jnp.__file__, line=1, column=0, sharding=X0)]
        )

    with pytest.raises(HloscopeError) as caught:
        with_function(Function(target=jnp.sin, facts=FACTS), work)
    assert "library" in says(str(caught.value).replace(format_path(jnp.__file__), "jax/numpy/__init__.py"))


def test_a_program_that_was_traced_before_is_not_run_again(says):
    def work(function, known):
        original = lower(function, known, name="t")
        lower_with_constraints(function, original, [WrittenConstraint(file=__file__, line=1, column=0, sharding=X0)])

    traced = jax.jit(jnp.sin).trace(jax.ShapeDtypeStruct((8, 4), jnp.float32))
    with pytest.raises(HloscopeError) as caught:
        with_function(Function(target=traced, facts=TargetFacts(slice="cpu:1")), work)
    assert "traced" in says(caught)


def test_functions_that_a_cache_holds_from_the_trace_are_as_before(written):
    program = """
        @functools.cache
        def make(number):
            def inner(x): return jnp.sin(x) * 2
            return inner
        seen = []
        def step(x):
            seen.append(x)
            return make(len(seen))(x)
    """
    file = written(HEAD + dedent(program))
    tried = try_constraint(file, "jnp.sin(x)", X0, (ROWS,), primitive="sin")
    assert "sharding_constraint" in tried.text

    def find_codes(function, _):
        codes = (function.__globals__["make"](number).__code__ for number in range(1, 4))
        return [code.co_names for code in codes]

    assert with_function(Function(target=f"{file}:step", facts=FACTS), find_codes) == [("jnp", "sin")] * 3


def test_another_thread_that_runs_the_line_sees_nothing(written):
    program = """
        from concurrent.futures import ThreadPoolExecutor
        import numpy as np
        def inner(x): return jnp.sin(x) * 2
        def step(x):
            with ThreadPoolExecutor(1) as pool:
                beside = pool.submit(inner, np.ones((3,))).result()
            return inner(x) + np.asarray(beside).sum()
    """
    tried = try_constraint(written(HEAD + dedent(program)), "jnp.sin(x)", X0, (ROWS,), primitive="sin")
    assert tried.made.lines[0].shapes == ((8, 4),)


def test_a_program_with_its_own_mesh_needs_one_for_the_line(written):
    program = """
        import numpy as np
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("X",))
        rows = jax.sharding.NamedSharding(mesh, P("X"))
        @functools.partial(jax.jit, in_shardings=rows)
        def step(x): return jnp.sin(x) * 2
    """
    file = written(HEAD + dedent(program))
    line, column = find_place(file, "jnp.sin(x)")
    constraint = WrittenConstraint(file=str(file), line=line, column=column, sharding=X0, primitive="sin")

    def work(function, known):
        return lower_with_constraints(function, lower(function, known, name="t"), [constraint])

    facts = TargetFacts(slice="cpu:4", args=("f32[8,4]",))
    made = with_function(Function(target=f"{file}:step", facts=facts), work)
    assert made.lines[0].needs_mesh
    assert 'sharding_constraint %0 <@mesh, [{"X"}, {}]>' in made.lowered.text
    file.write_text(HEAD + dedent(program) + "jax.set_mesh(mesh)\n")
    try:
        assert not with_function(Function(target=f"{file}:step", facts=facts), work).lines[0].needs_mesh
    finally:
        jax.set_mesh(None)  # which the module sets for whatever comes after it


def test_a_module_of_flax(as_written):
    pytest.importorskip("flax")
    program = """
        import hloscope
        from flax import nnx
        class Model(nnx.Module):
            def __init__(self, rngs):
                self.up = nnx.Linear(4, 8, rngs=rngs)
            def __call__(self, x):
                return jnp.sin(self.up(x)) * 2
        def arguments():
            return nnx.eval_shape(lambda: Model(nnx.Rngs(0))), jax.ShapeDtypeStruct((8, 4), jnp.float32)
        @hloscope.target(args=arguments)
        @nnx.jit
        def step(model, x):
            return nnx.grad(lambda model: model(x).sum())(model)
    """
    tried = as_written(program, "self.up(x)", X0, None, primitive="dot_general")
    assert 'jax.lax.with_sharding_constraint(self.up(x), P("X", None))' in tried.made.lines[0].after


# ---- several constraints, and arguments


def lower_with_several(file: Path, constraints, args) -> RewrittenProgram:
    """Lowers a file with constraints: each an expression or the name of an argument, with a sharding."""

    def work(function, known):
        made = []
        for name, sharding in constraints:
            if name.isidentifier():
                made.append(WrittenConstraint(file="", line=0, column=None, sharding=sharding, argument=name))
            else:
                line, column = find_place(file, name)
                end = (line, column + len(name))
                made.append(WrittenConstraint(file=str(file), line=line, column=column, end=end, sharding=sharding))
        return lower_with_constraints(function, lower(function, known, name="t"), made)

    return with_function(
        Function(target=f"{file}:step", facts=TargetFacts(mesh={"X": 4}, slice="cpu:4", args=args)), work
    )


TWO = """
def step(x, y):
    \"\"\"Adds.\"\"\"
    a, b = jnp.sin(x), jnp.cos(y)
    return jnp.tan(a) + b
"""
COLUMNS = ((), ("X",))


def test_two_constraints_in_one_line_and_one_in_another(written):
    file = written(HEAD + TWO)
    wanted = [("jnp.sin(x)", X0), ("jnp.tan(a)", COLUMNS), ("jnp.cos(y)", COLUMNS)]
    made = lower_with_several(file, wanted, ("f32[8,4]", "f32[8,4]"))
    first, second, third = (line.after for line in made.lines)
    assert first == third
    assert first.count("with_sharding_constraint(") == 2
    twin = (HEAD + TWO).replace("a, b = jnp.sin(x), jnp.cos(y)", first).replace("return jnp.tan(a) + b", second)
    facts = TargetFacts(mesh={"X": 4}, slice="cpu:4", args=("f32[8,4]", "f32[8,4]"))
    assert made.lowered.text == lower_file(written(twin, "twin"), facts)


def test_an_argument_is_constrained_in_the_first_line_of_the_function(written):
    file = written(HEAD + TWO)
    made = lower_with_several(file, [("x", X0), ("jnp.tan(a)", COLUMNS)], ("f32[8,4]", "f32[8,4]"))
    entered, other = made.lines
    assert (entered.entered, entered.before) == ("step", "")
    assert entered.after == 'x = jax.lax.with_sharding_constraint(x, P("X", None))'
    twin = (
        (HEAD + TWO).replace("    a, b", f"    {entered.after}\n    a, b").replace("return jnp.tan(a) + b", other.after)
    )
    facts = TargetFacts(mesh={"X": 4}, slice="cpu:4", args=("f32[8,4]", "f32[8,4]"))
    assert made.lowered.text == lower_file(written(twin, "twin"), facts)


def test_constraints_within_each_other_are_refused(written):
    file = written(HEAD + TWO.replace("jnp.tan(a) + b", "jnp.tan(jnp.exp(a)) + b"))
    with pytest.raises(HloscopeError) as caught:
        lower_with_several(file, [("jnp.tan(jnp.exp(a))", X0), ("jnp.exp(a)", X0)], ("f32[8,4]", "f32[8,4]"))
    assert "within another one" in str(caught.value)


def test_an_argument_that_the_function_does_not_have_is_refused(written):
    file = written(HEAD + TWO)
    with pytest.raises(HloscopeError) as caught:
        lower_with_several(file, [("z", X0)], ("f32[8,4]", "f32[8,4]"))
    assert "step has no argument z" in str(caught.value)
