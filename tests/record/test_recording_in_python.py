"""`with hloscope.recording(...)`: what it sees, what it makes up, and that JAX is afterwards as before."""

from __future__ import annotations

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import dispatch, pjit, xla_bridge
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import hloscope
from hloscope.compile.jaxprs import count_matmul_flops

pytestmark = [pytest.mark.tpu_compiler, pytest.mark.usefixtures("cached")]


@jax.jit
def double(x):
    return x * 2


@jax.jit
def large(x, w):
    return jnp.tanh(x @ w)


def line():
    return jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))


def weights(mesh):
    return jnp.zeros((4096, 8192), jnp.bfloat16, device=NamedSharding(mesh, P(None, "x")))


def test_programs_are_counted_and_jax_is_as_before():
    watched = (pjit._resolve_and_lower, dispatch._device_put_impl, xla_bridge.devices, type(jax.devices()[0]).platform)
    before = float(double(jnp.float32(3)))
    with hloscope.recording("v5e:2x4") as rec:
        assert (jax.devices()[0].platform, jax.device_count()) == ("tpu", 8)
        assert [float(double(jnp.float32(3))) for _ in range(5)] == [before] * 5
    (program,) = rec.programs
    assert (program.name, program.calls, program.faked, program.slice_name) == ("double", 5, None, "v5e:1x1")
    assert program.analysis.collectives == ()
    assert (jax.devices()[0].platform, float(double(jnp.float32(3)))) == ("cpu", before)
    assert watched == (
        pjit._resolve_and_lower,
        dispatch._device_put_impl,
        xla_bridge.devices,
        type(jax.devices()[0]).platform,
    )


def test_large_programs_give_zeros_with_the_compilers_sharding():
    with hloscope.recording("v5e:2x4") as rec:
        mesh = line()
        w = weights(mesh)
        x = jax.device_put(np.ones((64, 4096), jnp.bfloat16), NamedSharding(mesh, P()))
        y = large(x, w)
        assert (y.sharding.spec, y.shape) == (P(None, "x"), (64, 8192))
        assert float(jnp.abs(y).sum()) == 0.0
        y = jax.device_put(w, NamedSharding(mesh, P("x")))
        assert y.sharding.spec == P("x")
    found = {program.name: program for program in rec.programs}
    assert found["large"].faked == "large"
    assert found["large"].analysis.slice.name == "v5e:2x4"
    assert rec.to_dict()["programs"][0]["name"] == rec.programs[0].name


def test_results_may_be_larger_than_this_machine():
    with hloscope.recording("v5e:2x4", only="row"):
        mesh = line()
        table = jnp.zeros((500_000, 1_000_000), jnp.bfloat16, device=NamedSharding(mesh, P("x")))  # a terabyte
        assert (table.nbytes, table.addressable_shards[0].data.shape) == (10**12, (62_500, 1_000_000))
        jax.jit(lambda table: table[0], out_shardings=NamedSharding(mesh, P()))(table)

        @jax.jit
        def row(x):
            return x + 1

        row(jnp.ones(8))


def test_what_is_donated_to_a_program_that_is_not_executed_is_gone():
    @functools.partial(jax.jit, donate_argnums=(0, 1, 3))
    def step(state, cache, batch, counts):
        return jax.tree.map(lambda leaf: leaf + batch.sum(), state), cache.sum()

    with hloscope.recording("v5e:2x4"):
        home = NamedSharding(line(), P(None, "x"))
        state = {"w": jnp.zeros((4096, 8192), jnp.bfloat16, device=home)}
        cache, batch = jnp.zeros((4096, 4096), jnp.float32, device=home), jnp.ones(8, jnp.bfloat16)
        after, _ = step(state, cache, batch, batch)
        assert [each.is_deleted() for each in (state["w"], after["w"], cache, batch)] == [True, False, False, False]
        with pytest.raises(RuntimeError, match="deleted"):
            step(state, cache, batch, batch)
        assert step(after, cache, batch, batch)[0]["w"].shape == (4096, 8192)


def test_a_block_ends_when_its_dearest_program_is_known():
    calls = 0
    with hloscope.recording("v5e:2x4") as rec:
        mesh = line()
        w, x = weights(mesh), jnp.zeros((64, 4096), jnp.bfloat16, device=NamedSharding(mesh, P()))
        while True:
            large(x, w)
            calls += 1
    assert calls == 4
    assert rec.result.ended == "stopped"


def test_what_a_block_raises_is_raised_and_what_it_compiled_is_there():
    rec = hloscope.recording("v5e:2x4")
    with pytest.raises(ZeroDivisionError), rec:
        print(double(jnp.float32(3)) / (1 // 0))
    assert [program.name for program in rec.programs] == ["double"]
    assert "ZeroDivisionError" in rec.result.said
    assert jax.default_backend() == "cpu"


def test_what_was_other_when_a_function_is_compiled_again():
    class Model:
        @functools.partial(jax.jit, static_argnums=0)
        def call(self, x):
            return x * 3

    @jax.jit
    def scaled(x, s):
        return x * s

    @jax.jit
    def product(x):
        return x @ x

    with hloscope.recording("v5e:2x4", top=1) as rec:
        x = jnp.ones((8, 8))
        scaled(x, 2.0), scaled(x, jnp.float32(2)), product(x), Model().call(x), Model().call(x)
        with jax.default_matmul_precision("highest"):
            product(x)
    found = {each.name: each.changes for each in rec.result.recompiled}
    assert found["scaled"] == ("s was weakly typed f32[] and became f32[]",)
    assert "a static argument (such as self)" in found["call"][0]
    assert "a JAX setting" in found["product"][0]


def test_a_mesh_of_some_devices_keeps_their_order():
    with hloscope.recording("v5e:2x4") as rec:
        devices = jax.devices()
        mesh = jax.sharding.Mesh(np.array([devices[6], devices[4], devices[5], devices[7]]), ("x",))
        jax.jit(lambda x: x.sum(0))(jax.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P("x"))))
    (program,) = rec.programs
    assert program.slice_name == "v5e:2x2"
    assert program.analysis.slice.used_devices == 4


def test_a_slice_that_is_no_tpu_is_refused():
    with pytest.raises(hloscope.HloscopeError, match="recorded for a TPU slice"):
        hloscope.recording("cpu:8")


@pytest.mark.parametrize("option", [{"top": 0}, {"run_below_bytes": -1}, {"stop_after": -1}])
def test_numbers_that_say_nothing_are_refused(option):
    with pytest.raises(hloscope.HloscopeError, match="is too small"):
        hloscope.recording(**option)


def test_a_recording_in_a_recording_is_refused_and_ends_nothing():
    with hloscope.recording("v5e:2x4") as rec:
        refused = hloscope.recording("v5p:2x2x1")
        with pytest.raises(hloscope.HloscopeError, match="another recording is in progress"), refused:
            pass
        assert (jax.device_count(), jax.devices()[0].device_kind) == (8, "TPU v5 lite")
        double(jnp.float32(3))
    assert [program.calls for program in rec.programs] == [1]
    assert jax.default_backend() == "cpu"
    with refused:  # it has not been used
        double(jnp.float32(3))
    assert refused.programs[0].slice_name == "v5p:1x1x1"


def test_what_a_block_raises_is_not_hidden_by_a_name_that_was_not_compiled():
    with pytest.raises(ZeroDivisionError), hloscope.recording(only="dubble"):
        print(double(jnp.float32(3)) / (1 // 0))


def test_names_that_were_not_compiled_are_refused():
    with pytest.raises(hloscope.HloscopeError, match="no program named dubble"), hloscope.recording(only="dubble"):
        double(jnp.float32(3))


def test_a_kernel_that_only_a_tpu_runs_is_faked_and_named():
    from jax.experimental import pallas as pl

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    @jax.jit
    def doubled(x):
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    with hloscope.recording("v5e:2x4", run=True) as rec:
        assert float(doubled(jnp.ones((8, 128), jnp.float32)).sum()) == 0.0
    program = next(each for each in rec.programs if each.name == "doubled")
    assert program.faked == "kernel"


def test_a_branch_for_cpus_that_was_taken_is_told():
    @jax.jit
    def chosen(x):
        return jax.lax.platform_dependent(x, tpu=lambda x: x * 2, default=lambda x: x + 5)

    with hloscope.recording("v5e:2x4") as rec:
        assert float(chosen(jnp.float32(1))) == 6.0
    assert rec.programs[0].took_cpu_branch


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_other_threads_see_the_slice_and_end_the_block_too():
    seen = []

    def work():
        seen.append((jax.devices()[0].platform, jax.default_backend()))
        mesh = line()
        w, x = weights(mesh), jnp.zeros((64, 4096), jnp.bfloat16, device=NamedSharding(mesh, P()))
        while True:
            large(x, w)

    thread = threading.Thread(target=work, daemon=True)
    with hloscope.recording("v5e:2x4") as rec:
        thread.start()
        threading.Event().wait(60)
    thread.join(60)
    assert seen == [("tpu", "tpu")]
    assert (rec.result.ended, {each.name: each.calls for each in rec.programs}["large"]) == ("stopped", 4)
    assert jax.devices()[0].platform == "cpu"


def test_compiler_options_of_a_program_are_the_tpu_compilers():
    @functools.partial(jax.jit, compiler_options={"xla_tpu_scoped_vmem_limit_kib": "16384"})
    def known(x):
        return x + 1

    @functools.partial(jax.jit, compiler_options={"xla_tpu_no_such_option": "true"})
    def unknown(x):
        return x + 2

    with hloscope.recording("v5e:2x4") as rec:
        assert (float(known(jnp.float32(1))), float(unknown(jnp.float32(1)))) == (2.0, 3.0)
    found = {program.name: program for program in rec.programs}
    assert (found["known"].faked, found["known"].error) == (None, None)
    assert "xla_tpu_no_such_option" in found["unknown"].error


def test_work_is_counted_on_the_devices_that_share_it():
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)

    def square(x):
        return x @ x

    for axes, devices in (({"a"}, 4), ({"a", "b"}, 8)):
        shared = jax.shard_map(square, mesh=mesh, in_specs=P(), out_specs=P(), axis_names=axes, check_vma=False)
        traced = jax.make_jaxpr(jax.jit(shared))(jnp.ones((8, 8)))
        assert count_matmul_flops(traced.jaxpr) == devices * 2 * 8**3


def test_the_process_of_a_script_hands_back_errors_with_their_parts(tmp_path):
    with pytest.raises(hloscope.TargetError) as missing:
        hloscope.record(tmp_path / "missing.py")
    assert (missing.value.what, missing.value.why) == (f"there is no file {tmp_path}/missing.py", None)
    with pytest.raises(hloscope.SliceError) as unknown:
        hloscope.record(tmp_path / "missing.py", chip_overrides="speed=1")
    assert (unknown.value.what, unknown.value.where) == ("speed is not a figure of a chip", "speed=1")
    (tmp_path / "killed.py").write_text("import os; os.write(2, b'last words'); os.abort()")
    with pytest.raises(hloscope.HloscopeError) as died:
        hloscope.record(tmp_path / "killed.py")
    assert "exited with -6" in died.value.what
    assert "last words" in died.value.why
