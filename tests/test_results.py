"""What functions return: pickled, compared, hashed, one line as `repr`, read back from plain data."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hloscope
from hloscope.app.config import TargetConfig
from hloscope.app.jobs import Job
from hloscope.base.errors import HloscopeError
from hloscope.base.results import Fixed, FixedTable
from hloscope.compile.target import find_target_name

ROOT = Path(__file__).parent.parent
GATHER, SHARD_MAP = (ROOT / f"fixtures/captured/matmul.{name}.jax-0.10.hlo" for name in ("matmul", "matmul_shard_map"))
EXPERTS = ROOT / "fixtures/captured/mixture_of_experts.mixture_of_experts.jax-0.10.hlo"
MESH = {"X": 4, "Y": 2}
ARGS = ("bf16[8@X,2048@Y]", "bf16[2048@Y,256]")
MOST_LETTERS = 300


def matmul(x, w):
    return x @ w


SCRIPT = """
import jax, jax.numpy as jnp
step = jax.jit(lambda x: (x @ x).sum())
print(step(jnp.ones((64, 64))))
"""
HERE = {
    "Analysis": lambda: hloscope.analyze(EXPERTS, slice="v5e:2x4"),
    "CheckReport": lambda: hloscope.check(GATHER, SHARD_MAP, contract="none", fail_on="note"),
    "Checkups": hloscope.doctor,
    "DiffDocument": lambda: hloscope.diff(EXPERTS, SHARD_MAP, slice="v5e:2x4"),
    "Explanations": lambda: hloscope.explain(EXPERTS),
    "Prices": lambda: hloscope.price(EXPERTS, ["v5e:2x4", "v5p:2x2x2"]),
    "Timeline": lambda: hloscope.timeline(EXPERTS, slice="v5e:2x4"),
}
COMPILED = {
    "Analysis": lambda: hloscope.analyze(matmul, ARGS, mesh=MESH, out="P('X', None)"),
    "Explanations": lambda: hloscope.explain(matmul, ARGS, mesh=MESH, out="P('X', None)", try_s=3),
    "Prices": lambda: hloscope.price(matmul, ["v5e:2x4", "v5p:2x2x2"], ARGS, mesh=MESH, out="P('X', None)"),
    "ShardingTable": lambda: hloscope.shardings(matmul, ARGS, mesh=MESH),
    "Verification": lambda: hloscope.verify(matmul, lambda x, w: 2 * (x @ w), ARGS, mesh=MESH),
}


def parts_of(value: object) -> Iterator[object]:
    """A result and every part of it that is an object of hloscope's."""
    if isinstance(value, dict):
        value = tuple(value.values())
    ours = type(value).__module__.startswith("hloscope.")
    if ours:
        yield value
    if isinstance(value, tuple | list):
        for each in value:
            yield from parts_of(each)
    elif is_dataclass(value) and ours:
        for each in fields(value):
            yield from parts_of(getattr(value, each.name))


def check_parts(found: object) -> set[str]:
    """Holds each part to what every part must be; the types that were met."""
    met = set()
    for part in parts_of(found):
        again = pickle.loads(pickle.dumps(part))
        if not isinstance(part, HloscopeError):
            assert (again == part, type(again), hash(again)) == (True, type(part), hash(part)), repr(part)
        shown = repr(part)
        assert 0 < len(shown) < MOST_LETTERS, shown
        assert "\n" not in shown
        assert " at 0x" not in shown
        if isinstance(part, Fixed):
            check_that_it_stays_as_it_is(part)
        met.add(type(part).__name__)
    return met


def check_that_it_stays_as_it_is(part: object) -> None:
    for name in (fields(part)[0].name, "of_no_field") if is_dataclass(part) else ():
        with pytest.raises(FrozenInstanceError):
            setattr(part, name, 1)
        with pytest.raises(FrozenInstanceError):
            delattr(part, name)
    for each in fields(part) if is_dataclass(part) else ():
        assert type(getattr(part, each.name)) is not dict, each.name


CHANGES = {
    "set": lambda table: table.__setitem__("jax", "9"),
    "delete": lambda table: table.__delitem__("jax"),
    "join": lambda table: table.__ior__({"jax": "9"}),
    "update": lambda table: table.update(jax="9"),
    "pop": lambda table: table.pop("jax"),
    "clear": lambda table: table.clear(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_tables_of_results_stay_as_they_are(change):
    table = FixedTable(jax="0.10")
    with pytest.raises(TypeError, match="results stay as they are"):
        CHANGES[change](table)
    assert table == {"jax": "0.10"} == pickle.loads(pickle.dumps(table)) == copy.deepcopy(table)
    assert type(table | {"libtpu": "1"}) is dict


def check_result(kind: str, found: object) -> None:
    assert kind in check_parts(found)
    assert found.report().splitlines() == found.report(width=100, format="text").splitlines()
    assert str(found) == found.report().rstrip("\n")
    assert found._repr_markdown_()
    assert found.to_dict()["schema"] == 2


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dump")
    for number, source in enumerate((GATHER, EXPERTS)):
        name = f"module_{number:04}.jit_{source.name.partition('.')[0]}.after_optimizations.txt"
        folder.joinpath(name).write_text(source.read_text())
    folder.joinpath("module_0009.jit_broken.after_optimizations.txt").write_text("HloModule broken\nENTRY {{{")
    return folder


@pytest.mark.parametrize("kind", HERE)
def test_every_result_is_pickled_compared_hashed_and_shown_in_a_line(kind):
    check_result(kind, HERE[kind]())


def test_a_folder_of_modules(dump):
    found = hloscope.analyze_all(dump, jobs=1)
    check_result("DumpedModules", found)
    assert {type(part).__name__ for part in parts_of(found)} >= {"DumpedResult", "Analysis", "Collective"}
    assert [(one.module.name, one.analysis is None) for one in found] == [
        ("jit_mixture_of_experts", False),
        ("jit_matmul", False),
        ("jit_broken", True),
    ]
    assert [one.module.name for one in found.failed] == ["jit_broken"]
    assert "2 of 3 modules analyzed" in str(found)
    assert "not analyzed" in str(found)
    assert found[1].to_dict()["name"] == "jit_matmul"
    assert [one["name"] for one in found.to_dict()["modules"]] == [one.module.name for one in found]
    assert "error" in str(found[2])
    assert hloscope.analyze(dump).module == found[0].analysis.module
    assert hloscope.analyze(dump, only="matmul").module == found[1].analysis.module


@pytest.mark.parametrize("kind", COMPILED)
@pytest.mark.tpu_compiler
def test_every_result_of_a_function_too(kind, cached):
    check_result(kind, COMPILED[kind]())


@pytest.mark.tpu_compiler
def test_a_recording_too(tmp_path, cached):
    tmp_path.joinpath("script.py").write_text(SCRIPT)
    found = hloscope.record(tmp_path / "script.py", select="collective-in-loop")
    check_result("Recording", found)
    assert (found.fails("error"), [one.calls for one in found.programs]) == (False, [1])
    unknown = replace(found, programs=(*found.programs, replace(found.programs[0], name="eval", analysis=None)))
    with pytest.raises(HloscopeError, match=r"^no verdict: eval not analyzed\n   = fix: top=2 analyses"):
        unknown.fails("error")


def test_a_result_unpickled_in_a_fresh_process_has_its_methods(tmp_path):
    found = hloscope.analyze(GATHER, mesh=MESH, slice="v5e:4x2")
    tmp_path.joinpath("found.pickle").write_bytes(pickle.dumps(found))
    uses = (
        "import pickle, pathlib; found = pickle.loads(pathlib.Path('found.pickle').read_bytes());"
        "print(found); print(len(found['all-gather']), len(found.collectives.where('all-gather', axis='X')));"
        "print(*found.collectives.by('kind')); found.save('found.html'); assert found._repr_html_();"
        "assert found.mesh_picture()._repr_svg_(); assert found.to_dict()['schema'] == 2"
    )
    ran = subprocess.run([sys.executable, "-c", uses], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[:-2] == str(found).splitlines()
    assert ran.stdout.splitlines()[-2:] == [
        f"{len(found['all-gather'])} {len(found.collectives.where('all-gather', axis='X'))}",
        " ".join(found.collectives.by("kind")),
    ]


def test_plain_data_is_read_back():
    found = HERE["Analysis"]()
    again = hloscope.Analysis.from_dict(found.to_dict())
    as_written = replace(found, findings=again.findings, notes=again.notes)  # JSON has the words of the command line
    assert again == as_written
    assert (hash(again), again.collectives.mesh_axes, type(again.collectives)) == (
        hash(as_written),
        found.collectives.mesh_axes,
        hloscope.Collectives,
    )
    assert again.to_dict() == found.to_dict()


def test_every_exported_error_is_one_of_hloscopes():
    errors = [getattr(hloscope, name) for name in hloscope.__all__ if name.endswith("Error")]
    assert len(errors) > 15
    assert [kind for kind in errors if not issubclass(kind, HloscopeError)] == []
    assert issubclass(hloscope.UnknownKeywordError, TypeError)
    never_raised_at_users = {"DoesNotApplyError"}
    known = [HloscopeError]
    for kind in known:
        known += [each for each in kind.__subclasses__() if each.__module__.startswith("hloscope.")]
    assert {kind.__name__ for kind in known} - {kind.__name__ for kind in errors} <= never_raised_at_users


class Model:
    def step(self, x, w):
        return x @ w

    def __call__(self, x, w):
        return x @ w


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (matmul, "matmul"),
        (jax.jit(matmul), "matmul"),
        (partial(matmul, w=1), "matmul"),
        (partial(jax.jit(matmul), 1), "matmul"),
        (Model().step, "Model.step"),
        (Model(), "Model"),
        (partial(Model().step, 1), "Model.step"),
        (jax.jit(Model().step), "Model.step"),
        ("model.py:step", "model.py:step"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_names_hold_no_address(target, name):
    assert find_target_name(target) == name


def test_a_job_of_other_processes_names_its_target():
    made = Job(name="step", target=TargetConfig(name="step"), slice=None, root=ROOT, baseline=None)
    assert " at 0x" not in repr(made)


# ---- what JAX hands out, and whatever else can be called, moves the same


def on_topology():
    devices = topologies.get_topology_desc("v5e:2x4", "tpu").devices
    return Mesh(grid(devices), ("X", "Y"), axis_types=AUTO)


def grid(devices):
    return np.array(devices).reshape(4, 2)


AUTO = (AxisType.Auto, AxisType.Auto)


def shaped(mesh):
    specs = ((8, 2048), P("X", "Y")), ((2048, 256), P("Y", None))
    return [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec)) for shape, spec in specs]


def jitted(mesh):
    return jax.jit(matmul, out_shardings=NamedSharding(mesh, P("X", None)))


def moves(found):
    return [(c.kind.value, c.axes, c.wire_bytes, c.executions) for c in found.collectives]


@pytest.fixture(scope="module")
def mesh():
    return Mesh(grid(jax.devices()[:8]), ("X", "Y"), axis_types=AUTO)


@pytest.fixture(scope="module")
def plain():
    return moves(hloscope.analyze(matmul, ARGS, mesh=MESH, out="P('X', None)", slice="v5e:2x4"))


def as_module():
    from flax import nnx

    class Layer(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jax.ShapeDtypeStruct((2048, 256), jnp.bfloat16))

        def __call__(self, x):
            return x @ self.w[...]

    return Layer


@pytest.mark.tpu_compiler
class TestTheSameIsMovedBy:
    @pytest.mark.parametrize("stage", ["jitted", "traced", "lowered", "exported", "exported, without its mesh"])
    def test_stages_of_jax(self, plain, mesh, stage, cached):
        function, args = jitted(mesh), shaped(mesh)
        options = {}
        if stage == "jitted":
            options = {"args": tuple(args)}
        elif stage == "traced":
            function = function.trace(*args)
        elif stage == "lowered":
            function = function.lower(*args)
        else:
            function = jax.export.export(function, platforms=["tpu"])(*args)
            if stage == "exported, without its mesh":  # as older versions of JAX have written them
                named = {"in": function._in_named_shardings, "out": function._out_named_shardings}
                changed = {"_has_named_shardings": False}
                for side, shardings in named.items():
                    changed[f"_{side}_named_shardings"] = (None,) * len(shardings)
                    changed[f"{side}_shardings_hlo"] = tuple(one._to_xla_hlo_sharding(2) for one in shardings)
                function, options = replace(function, **changed), {"mesh": MESH}
        found = hloscope.analyze(function, slice="v5e:2x4", **options)
        assert moves(found) == plain
        assert found.target == "matmul"

    def test_compiled_of_a_topology(self, plain, cached):
        mesh = on_topology()
        compiled = jitted(mesh).lower(*shaped(mesh)).compile()
        found = hloscope.analyze(compiled)
        assert moves(found) == plain
        assert (found.slice.name, found.target) == ("v5e:2x4", "matmul")

    def test_compiled_for_the_devices_at_hand(self, mesh):
        compiled = jitted(mesh).lower(*shaped(mesh)).compile()
        found = hloscope.analyze(compiled)
        assert [(c.kind.value, c.axes) for c in found.collectives] == [("all-reduce", ("Y",))]
        assert (found.slice.name, found.time) == ("cpu:8", None)
        fresh = hloscope.analyze(matmul, ARGS, mesh=MESH, out="P('X', None)", slice="cpu:8")
        assert moves(fresh) == moves(found)

    @pytest.mark.parametrize(
        "target",
        [
            Model().step,
            Model(),
            partial(Model.step, None),
            partial(matmul),
            jax.jit(Model().step),
            lambda: (matmul, ARGS),
        ],
        ids=["method", "instance", "partial of a method", "partial", "jitted method", "factory"],
    )
    def test_other_callables(self, plain, target, cached):
        args = {} if getattr(target, "__name__", "") == "<lambda>" else {"args": ARGS}
        found = hloscope.analyze(target, mesh=MESH, out="P('X', None)", slice="v5e:2x4", **args)
        assert moves(found) == plain
        assert "0x" not in found.target

    def test_modules_of_flax(self, plain, cached):
        nnx = pytest.importorskip("flax.nnx")
        layer = nnx.eval_shape(as_module())
        mesh = AbstractMesh((4, 2), ("X", "Y"), axis_types=AUTO)
        sharded = jax.ShapeDtypeStruct((2048, 256), jnp.bfloat16, sharding=NamedSharding(mesh, P("Y", None)))
        layer.w.set_value(sharded)
        step = nnx.jit(lambda layer, x: layer(x))
        ask = {"mesh": MESH, "out": "P('X', None)", "slice": "v5e:2x4"}
        of_module = hloscope.analyze(layer, (ARGS[0],), **ask)
        of_step = hloscope.analyze(step, (layer, ARGS[0]), **ask)
        assert moves(of_module) == moves(of_step) == plain
        assert any(".w" in one.name or "['w']" in one.name for one in of_module.arguments), of_module.arguments


def test_an_analysis_remembers_its_program_where_it_was_made():
    found = hloscope.analyze(GATHER, mesh=MESH, slice="v5e:4x2")
    assert found.timeline() == hloscope.timeline(GATHER, mesh=MESH, slice="v5e:4x2")
    for elsewhere in (pickle.loads(pickle.dumps(found)), hloscope.Analysis.from_dict(found.to_dict())):
        assert elsewhere == found
        with pytest.raises(HloscopeError, match="not available here"):
            elsewhere.timeline()


def test_the_ending_of_a_file_says_the_format(tmp_path):
    found = hloscope.analyze(GATHER, mesh=MESH, slice="v5e:4x2")
    for name, begins in (("a.html", "<!doctype html>"), ("a.txt", str(found)[:40]), ("a", "{"), ("a.json", "{")):
        found.save(tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8").lower().startswith(begins.lower())
    found.timeline().save(tmp_path / "a.json.gz")
    assert (tmp_path / "a.json.gz").read_bytes().startswith(b"\x1f\x8b")
    with pytest.raises(HloscopeError, match="Analysis has no format 'svg'"):
        found.save(tmp_path / "a.svg")


def test_a_pickle_of_0_2_says_what_to_do():
    for module in ("hloscope.analysis.model.analysis", "hloscope.contracts.judged", "hloscope.errors"):
        with pytest.raises(ModuleNotFoundError, match=r"is a module of hloscope 0\.2, .* save it as JSON"):
            pickle.loads(f"c{module}\nAnalysis\n.".encode())
