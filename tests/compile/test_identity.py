"""Numbers on operations change nothing that the compiler makes, and nobody sees them."""

from __future__ import annotations

import ast
import base64
import itertools
import re
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from compiled_twice import DUMPS, compiled_twice, files_with_numbers, lowered

from hloscope.app.analyzing import analyze_capture
from hloscope.base.canvas import Canvas
from hloscope.base.errors import DeviceCountError, TraceError
from hloscope.base.store import Store
from hloscope.compile import client, jax_private, operation_numbers
from hloscope.compile.compiling import start_compile
from hloscope.compile.lowering import lower
from hloscope.compile.pool import WorkerDied
from hloscope.compile.step import CapturedStderr
from hloscope.compile.target import make_facts
from hloscope.report.formats import list_formats, render

ROOT = Path(__file__).parent.parent.parent
SMALL = Path(__file__).parent / "programs" / "numbered.py"
KINDS = ("mapped", "scanned", "remembered", "own_gradient", "explicit", "kernels", "two_slices", "on_cpus", "nested")
ARRAY = "bf16[64@X,64@Y]"
FACTS = make_facts(mesh={"X": 4, "Y": 2}, slice="v5e:2x4", args=(ARRAY, "bf16[64,64@Y]"), out="P('X', None)")
NUMBER = re.compile(r"#\d+/")
FILES = itertools.count()


def product_in(scope):
    """A program whose names hold that scope, with a gather that sharding inserts."""

    def step(x, w):
        with jax.named_scope(scope):
            return jnp.sin(x) @ w

    return lower(step, FACTS, name="step")


def is_numbered(program):
    module = jax_private.read_module_bytecode(jax_private.write_bytecode(program.module))
    return operation_numbers.number_operations(module)


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("name", KINDS)
def test_the_compiler_makes_the_same_of_a_program_with_numbers(tmp_path, name):
    twice = compiled_twice(lowered(f"{SMALL}:{name}"), tmp_path)
    assert twice.plain.compiled.identities is None
    assert twice.numbered.compiled.identities or twice.numbered.compiled.partitioned_identities
    assert twice.partitioned is not None
    assert twice.differences == []


def _targets():
    """Every function with a target of its own of the seeds, the spellings and the programs whose reasons are told."""
    folders = (
        ROOT / "fixtures" / "programs",
        ROOT / "fixtures" / "spellings" / "programs",
        ROOT / "tests/why/programs",
    )
    for path in sorted(path for folder in folders for path in folder.glob("*.py")):
        functions = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef))
        for node in functions:
            if any("target(" in ast.unparse(decorator) for decorator in node.decorator_list):
                yield f"{path.relative_to(ROOT)}:{node.name}"


def lowered_here(target):
    """The program, if there is one: some are there to be refused, and one is for more devices than tests have."""
    try:
        return lowered(f"{ROOT / target}")
    except (TraceError, DeviceCountError) as error:
        pytest.skip(error.what)


TARGETS = tuple(_targets())
OTHER_SLICES = ("v5p:2x2x2", "tpu7x:2x2x1", "v6e:2x4", "2*v5e:2x2")


@pytest.mark.long
@pytest.mark.tpu_compiler
@pytest.mark.parametrize("target", TARGETS)
def test_the_compiler_makes_the_same_of_every_program_with_numbers(tmp_path, target):
    assert compiled_twice(lowered_here(target), tmp_path).differences == []


@pytest.mark.long
@pytest.mark.tpu_compiler
@pytest.mark.parametrize("target", TARGETS)
def test_the_compiler_makes_the_same_on_another_slice(tmp_path, target):
    """Each program in turn on one of them."""
    program = lowered_here(target)
    other = OTHER_SLICES[TARGETS.index(target) % len(OTHER_SLICES)]
    if program.slice.device_count != 8 or program.slice.chip is None or program.slice.slice_count > 1:
        pytest.skip("it is for a slice of another size")
    program = lowered(f"{ROOT / target}", slice=other)
    assert compiled_twice(program, tmp_path).differences == []


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("name", ["remembered", "two_slices"])
def test_nobody_sees_a_number(tmp_path, name):
    store, program = Store(tmp_path / "kept"), lowered(f"{SMALL}:{name}")
    fresh = start_compile(program, store=store).capture()
    kept = start_compile(program, store=store)
    assert kept.question is None
    for captured in (fresh, kept.capture()):
        assert captured.compiled.partitioned_identities
        assert NUMBER.findall(repr(captured)) == []
        analysis = analyze_capture(captured, name)
        assert NUMBER.findall(repr(analysis)) == []
        for format_name in list_formats("analysis"):
            assert NUMBER.findall(render("analysis", format_name, analysis, Canvas())) == []


@pytest.mark.tpu_compiler
def test_dumps_that_users_ask_for_have_no_numbers(tmp_path):
    program = lowered(f"{SMALL}:scanned")
    options = {**DUMPS, "xla_dump_to": str(tmp_path)}
    start_compile(replace(program, facts=replace(program.facts, compiler_options=options))).capture()
    assert [*tmp_path.rglob("*after_optimizations.txt")]
    assert [*tmp_path.rglob("01.before_propagation.mlir")]
    assert files_with_numbers(tmp_path) == []


@pytest.mark.tpu_compiler
def test_dumps_that_the_environment_asks_for_have_no_numbers(tmp_path, monkeypatch):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", f"--xla_jf_dump_to={tmp_path}")
    captured = start_compile(lowered(f"{SMALL}:scanned")).capture()
    assert captured.compiled.identities is None


@pytest.mark.tpu_compiler
@pytest.mark.parametrize(
    "scope",
    ['a"b', 'say "#" twice', "é\\n\\\\ü", "layer #", "#x/#", '{}" metadata={op_name="', "/".join(["deep"] * 400)],
)
def test_odd_names_are_numbered_and_come_back_byte_for_byte(tmp_path, scope):
    twice = compiled_twice(product_in(scope), tmp_path)
    assert twice.numbered.compiled.identities
    assert twice.differences == []


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("scope", ["#3", "a/#3/b", "#3/#4", "a;b", "x;x"])
def test_names_that_look_like_numbers_switch_these_off(tmp_path, scope):
    program = product_in(scope)
    assert not is_numbered(program)
    twice = compiled_twice(program, tmp_path)
    assert twice.numbered.compiled.identities is None
    assert f"jit(step)/{scope}/dot_general" in twice.numbered.compiled.text
    assert twice.differences == []


@pytest.mark.parametrize("key", ["#3/", "#3"])
def test_an_argument_that_looks_like_a_number_switches_these_off(key):
    facts = replace(FACTS, args=({key: ARRAY}, "bf16[64,64@Y]"))
    assert is_numbered(lower(lambda x, w: x["w"] @ w, replace(facts, args=({"w": ARRAY}, facts.args[1])), name="step"))
    assert is_numbered(lower(lambda x, w: x[key] @ w, facts, name="step")) is ("/" not in key)


def test_an_attribute_that_looks_like_a_number_switches_these_off():
    from jax.experimental.xla_metadata import set_xla_metadata

    def noted(text):
        def step(x, w):
            with set_xla_metadata(op_name=text):
                return jnp.sin(x) @ w

        return lower(step, FACTS, name="step")

    assert is_numbered(noted("x"))
    assert not is_numbered(noted("#3/x"))


def test_a_file_in_a_folder_that_looks_like_a_number_switches_these_off(tmp_path):
    def written_in(folder):
        folder.mkdir()
        path = folder / f"numbered_model_{next(FILES)}.py"
        path.write_text("def step(x, w):\n    return x @ w\n")
        return lowered(f"{path}:step", **{name: getattr(FACTS, name) for name in ("mesh", "slice", "args", "out")})

    assert is_numbered(written_in(tmp_path / "a"))
    assert not is_numbered(written_in(tmp_path / "#3"))


def test_the_bytes_of_a_constant_are_no_name():
    numbers = jnp.asarray([list(b"#17/#18\0" * 8)] * 64, dtype=jnp.uint8)
    program = lower(lambda x, w: (x @ w) * numbers.astype(x.dtype), FACTS, name="step")
    assert b"#17/" in jax_private.write_bytecode(program.module)
    assert is_numbered(program)


def test_numbers_are_those_of_the_same_program_wherever_it_is_written(tmp_path):
    source = "import jax.numpy as jnp\n\n\ndef step(x, w):\n    return jnp.argmax(x @ w, axis=1)\n"
    facts = {**{name: getattr(FACTS, name) for name in ("mesh", "slice", "args")}, "out": "P('X')"}

    def names_in(text):
        path = tmp_path / "model.py"
        path.write_text(text)
        module = jax_private.read_module_bytecode(jax_private.write_bytecode(lowered(f"{path}:step", **facts).module))
        assert operation_numbers.number_operations(module)
        return re.findall(r'"([^"]*#\d+/[^"]*)"', module.operation.get_asm(enable_debug_info=True))

    first = names_in(source)
    assert len(first) > 2
    assert sorted(names_in("# moved\n" * 7 + source)) == sorted(first)


TEXT = """\
  %a.1 = f32[8]{0} add(%x, %y), metadata={op_name="jit(f)/#3/call/#17/add" stack_frame_id=1}
  ROOT %b = f32[8] sub(%a.1, %y), frontend_attributes={op_name="kept # as it is"}, metadata={op_name="f/q\\"#/#4/sub"}
  %c = f32[8] all-reduce(%b), metadata={op_name="jit(f)/#5/psum;jit(f)/#6/psum;jit(f)/#7/add"}
  %d = f32[8] negate(%c), metadata={op_name="jit(f)/neg;jit(f)/neg"}
  %e = f32[8] custom-call(%d), custom_call_target="#9/x"
"""


def test_a_text_without_numbers():
    assert operation_numbers.strip_text_numbers(TEXT) == (
        TEXT.replace("#3/", "")
        .replace("#17/", "")
        .replace("#4/", "")
        .replace("jit(f)/#5/psum;jit(f)/#6/psum;jit(f)/#7/add", "jit(f)/psum;jit(f)/add")
    )


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("jit(f)/#3/jit(g)/#4/add;#5/add", "jit(f)/jit(g)/add"),
        ("jit(f)/#3/jit(g)/a/#4/add;#5/add", "jit(f)/jit(g)/a/add;add"),
        ("jit(f)/#1/jit(g)/jit(f)/#2/jit(g)/#3/jit(h)/#4/add", "jit(f)/jit(g)/jit(h)/add"),
        ("jit(f)/#3/add;jit(f)/#4/mul;jit(f)/#5/add", "jit(f)/add;jit(f)/mul"),
        ("jit(f)/call/#3/call", "jit(f)/call/call"),
        ("jit(f)/#3/scope/pallas_call", "jit(f)/scope/pallas_call"),
        ("x;x", "x;x"),
    ],
)
def test_a_name_without_numbers(name, plain):
    assert operation_numbers.strip_numbers(name) == plain


def test_what_instructions_were_made_from():
    assert operation_numbers.read_text_identities(TEXT) == {"a.1": ((3, 17),), "b": ((4,),), "c": ((5,), (6,), (7,))}


def test_a_warning_is_cut_where_it_would_be_without_numbers():
    said = f'W0101 x.cc:1] [SPMD] %a = f32[] add(), metadata={{op_name="{"z" * 1949}/#123456/add"}} and more'
    captured = CapturedStderr(text=f"{said}\n{said.replace('#123456', '#7')}\n")
    (plain,) = CapturedStderr(text=said.replace("#123456/", "")).diagnostics()
    assert captured.diagnostics(operation_numbers.strip_message_numbers) == (plain,)
    assert len(plain) == 2000


def test_the_last_words_of_a_compiler_have_no_numbers():
    def words(module):
        said = 'F0101 x.cc:1] Check failed: op_name="jit(f)/#3/add" in loc("jit(f)/#4/mul")'
        return client.make_compiler_died_error(
            WorkerDied(-6, operation_numbers.make_message_filter(module)(said)), "compiling step"
        ).why

    assert 'op_name="jit(f)/add" in loc("jit(f)/mul")' in words(b"jit(f)/add\0")
    assert 'op_name="jit(f)/#3/add"' in words(b"jit(f)/#3/add\0")


def _message(*fields):
    """A protobuf message of strings and messages, each shorter than 128 bytes, around a number that stays."""
    return b"\x98\x02\x07" + b"".join(bytes([number << 3 | 2, len(body)]) + body for number, body in fields)


def _packed(key, message):
    return f'backend_config={{"config":{{"original_{key}":"{base64.b64encode(message).decode()}","other":"QQ=="}}}}'


@pytest.mark.parametrize("key", ["instruction", "to_apply"])
def test_names_in_packed_instructions_have_no_numbers(key):
    def text(name):
        instruction = _message((1, b"and.7"), (7, _message((1, b"and"), (2, name))))
        return _packed(key, _message((1, b"region"), (2, instruction)) if key == "to_apply" else instruction)

    assert operation_numbers.strip_text_numbers(text(b"jit(f)/#17/and")) == text(b"jit(f)/and")
    assert operation_numbers.strip_text_numbers(text(b"jit(f)/and")) == text(b"jit(f)/and")


@pytest.mark.parametrize("message", [b"\x3a\x7f#3/", b"\x3a", b"#3/", b"\x3a\x04\x12\x02\xff\xff", b"\x3b"])
def test_what_is_packed_in_another_way_stays(message):
    assert operation_numbers.strip_text_numbers(_packed("instruction", message)) == _packed("instruction", message)
