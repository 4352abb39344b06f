"""Whole scripts, written as people write them, recorded unmodified by the command line."""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from pathlib import Path

import jax
import pytest
from command_line import hloscope_process as run

import hloscope

SCRIPTS = Path(__file__).parent / "scripts"
FOLDER = Path(__file__).parent.parent.parent / "fixtures" / "programs"
pytestmark = [pytest.mark.tpu_compiler, pytest.mark.usefixtures("cached")]
FACTS = ("kind", "axes", "group_size", "payload_bytes", "wire_bytes", "executions", "operand_shapes", "result_shapes")


def recorded(*words, script, arguments=(), **how):
    """The document of a recording, and what came out on stderr."""
    done = run("record", "--format", "json", *words, "--", str(SCRIPTS / script), *arguments, **how)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def by_name(document):
    """The programs of a recording by their functions' names, the dearest of each."""
    found = {}
    for program in document["programs"]:
        found.setdefault(program["name"], program)
    return found


def moves(analysis):
    """What moves in a program, in plain facts."""
    return sorted(json.dumps([one[name] for name in FACTS]) for one in analysis["collectives"])


def same_facts(one, other):
    """Whether two analyses say the same of what moves, of memory and of time."""
    assert moves(one) == moves(other)
    assert one["totals"] == other["totals"]
    assert one["memory"] == other["memory"]
    assert one["time"] == other["time"]


@pytest.mark.long
def test_a_training_loop_of_flax():
    document, said = recorded(script="train_nnx.py")
    programs = by_name(document)
    assert (programs["train_step"]["calls"], programs["train_step"]["faked"]) == (4, "large")
    assert (programs["create"]["calls"], programs["create"]["slice_name"]) == (1, "v5e:2x4")
    assert (document["ended"], document["exit_status"]) == ("stopped", None)
    kinds = {one["kind"] for one in programs["train_step"]["analysis"]["collectives"]}
    assert {"all-gather", "reduce-scatter"} & kinds
    names = {argument["name"] for argument in programs["train_step"]["analysis"]["arguments"]}
    assert {"model.blocks[0].up.kernel", "optimizer.opt_state[0].mu.blocks[1].norm.scale", "batch"} <= names
    assert "script| step 0: loss 0.000" in said


def contents(folder):
    """Every file below a folder, with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_existing_checkpoint_folder_stays_byte_equal(tmp_path):
    old = tmp_path / "checkpoints" / "2" / "default"
    old.mkdir(parents=True)
    (old / "array").write_bytes(b"trained for a week")
    (old.parent / "_CHECKPOINT_METADATA").write_text("{}")
    before = contents(tmp_path)
    words = ["--steps", "7", "--checkpoints", str(tmp_path / "checkpoints")]
    document, _ = recorded("--only", "train_step", "--stop-after", "0", script="train_nnx.py", arguments=words)
    assert (document["ended"], document["exit_status"]) == ("ended", 0)
    assert by_name(document)["train_step"]["calls"] == 7
    assert contents(tmp_path) == before
    assert any("save" in write["what"] for write in document["kept_writes"])


def test_serving_takes_the_kernel_of_a_tpu_and_an_endless_decode_ends():
    document, _ = recorded(script="serve.py")
    programs = by_name(document)
    assert {"prefill", "decode", "init"} <= set(programs)
    assert programs["prefill"]["calls"] == 1
    assert programs["decode"]["calls"] > 3
    assert any("jax.distributed.initialize" in note for note in document["notes"])
    assert {name: programs[name]["faked"] for name in ("prefill", "decode")} == {"prefill": "large", "decode": "large"}


def test_a_notebook_of_small_programs_runs_for_real():
    document, said = recorded(script="notebook.py")
    programs = document["programs"]
    assert {(each["name"], each["slice_name"]) for each in programs} == {
        ("<lambda>", "v5e:1x2"),
        ("matmul", "v5e:2x2"),
        ("matmul", "v5e:1x1"),
        ("total", "v5e:2x4"),
        ("shifted", "v5e:2x4"),
    }
    assert all(each["faked"] is None for each in programs)
    assert (document["ended"], document["exit_status"]) == ("ended", 0)
    assert "script| 24 48384.0" in said  # what it computed is right
    (again,) = document["recompiled"]
    assert (again["name"], again["versions"]) == ("matmul", 4)
    assert "a was f32[8,8] and became f32[16,8]" in again["changes"]


@pytest.mark.long
def test_a_main_with_flags_that_compiles_ahead_of_time(tmp_path):
    document, said = recorded(script="train_main.py", arguments=["--layers", "2", "--workdir", str(tmp_path)])
    step = by_name(document)["train_step"]
    assert (step["calls"], step["faked"]) == (4, "large")
    temporaries = step["analysis"]["memory"]["temp_bytes"]
    assert f"script| temporaries: {temporaries / 1e9:.2f} GB" in said
    assert os.listdir(tmp_path) == []


@pytest.mark.long
def test_the_step_of_a_main_has_the_facts_that_analyze_finds():
    document, _ = recorded("--only", "train_step", script="train_main.py", arguments=["--layers", "2"])
    sys.path.insert(0, str(SCRIPTS))
    own = importlib.import_module("train_main")
    config = own.Config(layers=2)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    abstract = jax.eval_shape(functools.partial(own.init, config), jax.random.key(0))
    placed = jax.tree_util.tree_map_with_path(lambda path, _: own.sharding_of(mesh, path), abstract)
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    step = jax.jit(
        functools.partial(own.train_step, config),
        in_shardings=(placed, rows),
        out_shardings=(placed, None),
        donate_argnums=0,
    )
    tokens = jax.ShapeDtypeStruct((config.batch, config.length + 1), "int32", sharding=rows)
    given = jax.tree.map(lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at), abstract, placed)
    found = hloscope.analyze(step, (given, tokens), slice="v5e:2x4")
    same_facts(document["programs"][0]["analysis"], found.to_dict())


def equivalents():
    """As many of the seeds' programs as have one mesh of eight devices and arguments in one tuple of notations."""
    sys.path.insert(0, str(FOLDER))
    names = importlib.import_module("seed_programs").SEED_PROGRAMS
    for file in names:
        if file == "nnx_linear":
            continue
        module = importlib.import_module(file)
        for program in module.PROGRAMS:
            facts = getattr(module, program.function).__hloscope_target__
            simple = isinstance(facts.args, tuple) and all(isinstance(arg, str) for arg in facts.args)
            simple = simple and program.refused is None and not facts.kwargs and not facts.static
            if simple and facts.mesh and facts.dims:
                yield f"{file}:{program.function}", facts.slice


QUICK = ("matmul:matmul", "two_matmuls:two_matmuls", "meshes:data_parallel", "elementwise:elementwise")


@pytest.mark.parametrize("which", ["quick", pytest.param("all", marks=pytest.mark.long)])
def test_the_facts_are_those_of_analyze(which):
    by_slice = {}
    for name, chosen in equivalents():
        if which == "all" or name in QUICK:
            by_slice.setdefault(chosen, []).append(name)
    compared = 0
    for chosen, names in by_slice.items():
        document, _ = recorded("--slice", chosen, "--top", "200", script="seeds.py", arguments=[str(FOLDER), *names])
        found = {f"{Path(one['place']).stem}:{one['name']}": one for one in document["programs"]}
        for name in names:
            file, function = name.split(":")
            own = hloscope.analyze(f"{FOLDER / file}.py:{function}")
            same_facts(found[name]["analysis"], own.to_dict())
            compared += 1
    assert compared == sum(map(len, by_slice.values())) >= (3 if which == "quick" else 25)
