import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.base.errors import NotationError
from hloscope.base.units import count_element_bits
from hloscope.compile.notation import (
    LONG_NAMES,
    ArraySpec,
    find_canonical_dtype,
    find_nearest_dtypes,
    find_short_dtype,
    parse_array,
    parse_partition_spec,
)


def format_array(spec: ArraySpec) -> str:
    """The text that `jax.typeof` would print and `parse_array` reads back: `bfloat16[8@X,2048@(Y,Z)]{U:W}`."""
    sizes = zip(spec.dimensions, spec.spec, strict=True)
    dimensions = ",".join(f"{size}@{_grouped(axes)}" if axes else str(size) for size, axes in sizes)
    kind = "" if spec.unreduced_kind is None else f"_{spec.unreduced_kind}"
    states = [f"U{kind}:{_grouped(spec.unreduced)}"] if spec.unreduced else []
    states += [f"R:{_grouped(spec.reduced)}"] if spec.reduced else []
    return (
        f"{'~' if spec.weak_type else ''}{spec.dtype}{f'<{spec.memory_space}>' if spec.memory_space else ''}"
        f"[{dimensions}]{'{' + ', '.join(states) + '}' if states else ''}"
    )


def _grouped(axes: tuple[str, ...]) -> str:
    return axes[0] if len(axes) == 1 else f"({','.join(axes)})"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f32[]", ArraySpec(dtype="float32")),
        ("bf16[8@X,2048@Y]", ArraySpec(dtype="bfloat16", dimensions=(8, 2048), spec=(("X",), ("Y",)))),
        ("bfloat16[64@(x,y),32]", ArraySpec(dtype="bfloat16", dimensions=(64, 32), spec=(("x", "y"), None))),
        (" f8e4m3fn [ 8 @ X , 4 ] ", ArraySpec(dtype="float8_e4m3fn", dimensions=(8, 4), spec=(("X",), None))),
        ("pred[0]", ArraySpec(dtype="bool", dimensions=(0,), spec=(None,))),
        ("key<fry>[8@X]", ArraySpec(dtype="key<fry>", dimensions=(8,), spec=(("X",),))),
        ("~int32[]", ArraySpec(dtype="int32", weak_type=True)),
        ("f32<host>[8]", ArraySpec(dtype="float32", dimensions=(8,), spec=(None,), memory_space="host")),
        ("f32<device>[8]", ArraySpec(dtype="float32", dimensions=(8,), spec=(None,))),
        ("f32[8@X]{U:Y}", ArraySpec(dtype="float32", dimensions=(8,), spec=(("X",),), unreduced=("Y",))),
        (
            "f32[8]{U:(X,Y), R:Z}",
            ArraySpec(dtype="float32", dimensions=(8,), spec=(None,), unreduced=("X", "Y"), reduced=("Z",)),
        ),
        (
            "f32[8]{U_max:X}",
            ArraySpec(dtype="float32", dimensions=(8,), spec=(None,), unreduced=("X",), unreduced_kind="max"),
        ),
        ("f32[8]{U_sum:X}", ArraySpec(dtype="float32", dimensions=(8,), spec=(None,), unreduced=("X",))),
    ],
)
def test_arrays(text: str, expected: ArraySpec) -> None:
    assert parse_array(text) == expected


def test_named_dimensions_and_products() -> None:
    assert parse_array("f32[S@X,4*D, S * D]", {"S": 8, "D": 3}).dimensions == (8, 12, 24)


@pytest.mark.parametrize("name", LONG_NAMES)
def test_long_and_short_names_agree_with_the_sizes_of_hlo_types(name: str) -> None:
    assert find_canonical_dtype(name) == name
    assert find_canonical_dtype(find_short_dtype(name)) == name
    assert count_element_bits(find_short_dtype(name)) is not None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("s32", "int32"),
        ("i32", "int32"),
        ("u4", "uint4"),
        ("pred", "bool"),
        ("c64", "complex64"),
        ("F32", "float32"),
        ("f8_e4m3fn", "float8_e4m3fn"),
        ("f8E4M3FN", "float8_e4m3fn"),
        ("key<rbg>", "key<rbg>"),
        ("float0", None),
        ("f33", None),
    ],
)
def test_element_type_names(name: str, expected: str | None) -> None:
    assert find_canonical_dtype(name) == expected


def test_near_element_types() -> None:
    assert find_nearest_dtypes("bfloat61")[0] == "bfloat16"
    assert find_nearest_dtypes("qqqq") == ()


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,4}", fullmatch=True)


@st.composite
def array_specs(draw: st.DrawFn) -> ArraySpec:
    axes = draw(st.lists(NAMES, unique=True, max_size=8))
    rank = draw(st.integers(0, 4))
    groups: list[list[str]] = [[] for _ in range(rank + 2)]
    for axis in axes:
        groups[draw(st.integers(0, rank + 1))].append(axis)
    *spec, unreduced, reduced = (tuple(group) for group in groups)
    return ArraySpec(
        dtype=draw(st.sampled_from([*LONG_NAMES, "key<fry>", "key<urbg>"])),
        dimensions=tuple(draw(st.lists(st.integers(0, 2**40), min_size=rank, max_size=rank))),
        spec=tuple(group or None for group in spec),
        unreduced=unreduced,
        unreduced_kind=draw(st.sampled_from([None, "max", "min"])) if unreduced else None,
        reduced=reduced,
        memory_space=draw(st.sampled_from([None, "host"])),
        weak_type=draw(st.booleans()),
    )


@given(array_specs())
def test_array_round_trip(spec: ArraySpec) -> None:
    assert parse_array(format_array(spec)) == spec


@given(st.text(alphabet="bf16[]@X,Y(){}U:R~<>'*- 8key", max_size=24))
def test_any_text_is_an_array_or_refused(text: str) -> None:
    try:
        spec = parse_array(text)
    except NotationError:
        return
    assert parse_array(format_array(spec)) == spec


def test_spec_and_dimensions_must_agree(says) -> None:
    with pytest.raises(NotationError) as caught:
        ArraySpec(dtype="float32", dimensions=(8,))
    assert re.findall(r"\b\d\b", says(caught)) == ["1", "0"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("P()", ()),
        ("P('X', None)", ("X", None)),
        ('P("X", None)', ("X", None)),
        ("P(('X','Y'),)", (("X", "Y"),)),
        ("P(('X',), ())", ("X", None)),
        ("P(None,)", (None,)),
        ("PartitionSpec('X')", ("X",)),
        ("jax.P('X')", ("X",)),
        ("jax.sharding.PartitionSpec ( 'X' )", ("X",)),
        ("P(X, None)", ("X", None)),
        ("X,None", ("X", None)),
        ("(X,Y),Z", (("X", "Y"), "Z")),
        ("None", (None,)),
        ("P", ("P",)),
        ("P('data-parallel', '(')", ("data-parallel", "(")),
        ("P('None')", ("None",)),
    ],
)
def test_partition_specs(text: str, expected: tuple) -> None:
    assert parse_partition_spec(text) == expected


ARRAY = "   = fix: write, for example, bf16[8@X,2048]"


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("bfloat61[8@X]", 1, ['"bfloat61"', "bfloat16", " float64"]),
        ("qqqq[8]", 1, ['"qqqq"', "bf16"]),
        ("bf16[8@X,", 5, ['"["', "closed"]),
        ("bf16[8]]", 8, ['"]"', "unmatched"]),
        ("f32[8@(X,Y]", 11, ['"]"', '"("', "close", '")"']),
        ("bf16[8@X,4@X]", 12, ['"X"', "twice"]),
        ("f32[S@X,D]", 5, ['"S"', "--dim S=SIZE"]),
        ("f32[-8]", 5, ["-8", "negative"]),
        ("  ", None, ["empty"]),
        ("bf16", 5, ["it ends", '"["', '"<"']),
        ("bf16[8 4]", 8, ['"4"', '"]"', '","', '"@"', '"*"']),
        ("f32[?]", 5, ['"?"', "name", '"]"']),
        ("f32[8]{V:X}", 8, ["varying"]),
        ("f32[8]{Q:X}", 8, ['"Q"']),
        ("f32[8]{U:X,U:Y}", 12, ['"U"', "twice", "{U:(X,Y)}"]),
        ("f32<vmem>[8]", 5, ['"vmem"', "<host>"]),
        ("{'w': f32[8@X]}", 1, ["pytree", "itself"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused_arrays(says, text: str, column: int | None, words: list[str]) -> None:
    with pytest.raises(NotationError) as caught:
        parse_array(text)
    said = f"{caught.value.what}; {caught.value.why}; {caught.value.fix}"
    assert [word for word in words if word not in said] == []
    says(caught)
    if column is None:
        assert caught.value.where is None
    else:
        assert caught.value.where.endswith(f", column {column}")
        assert caught.value.excerpt.splitlines() == [text, f"{'^':>{column}}"]


def test_a_missing_size_names_the_ones_given(says) -> None:
    with pytest.raises(NotationError) as caught:
        parse_array("f32[S,4*E]", {"S": 8, "D": 3})
    assert "S=8, D=3" in caught.value.why
    assert '"E"' in says(caught)
    assert caught.value.where == "array type, column 9"


SPEC = "   = fix: write, for example, P('X', None)"


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("", None, ["empty"]),
        ("P('X','X')", 7, ['"X"', "twice"]),
        ("P('X'", 2, ['"("', "closed"]),
        ("P(P.UNCONSTRAINED)", 3, ["unconstrained"]),
        ("P(('X', None))", 9, ["None"]),
        ("P('X', unreduced={'Y'})", 8, ["unreduced", "f32[8@X]{U:Y}"]),
        ("P(8)", 3, ['"8"', "name", "name", '"("', '")"']),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused_partition_specs(says, text: str, column: int | None, words: list[str]) -> None:
    with pytest.raises(NotationError) as caught:
        parse_partition_spec(text)
    said = f"{caught.value.what}; {caught.value.why}; {caught.value.fix}"
    assert [word for word in words if word not in said] == []
    says(caught)
    if column is None:
        assert caught.value.where is None
    else:
        assert caught.value.where.endswith(f", column {column}")
        assert caught.value.excerpt.splitlines() == [text, f"{'^':>{column}}"]


CHILD = """
import json
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4, 2), ("X", "Y"), axis_types=(AxisType.Explicit,) * 2)
jax.set_mesh(mesh)
put = lambda value, *spec, **more: jax.device_put(value, P(*spec, **more))
arrays = [
    put(jnp.ones((8, 16), jnp.bfloat16), "X", "Y"),
    put(jnp.ones((8, 16), jnp.float8_e4m3fn), ("X", "Y"), None),
    put(jnp.ones((8, 16), jnp.int4), None, "Y"),
    put(jnp.ones((8,), bool), "X"),
    put(jnp.ones((8,), jnp.complex64)),
    jnp.float32(1),
    jax.random.key(0),
    put(jax.random.split(jax.random.key(0, impl="rbg"), 8), "X"),
    3.0,
    jax.device_put(jnp.ones((8,)), NamedSharding(mesh, P("X"), memory_kind="pinned_host")),
    jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(mesh, P("X", unreduced={"Y"}))),
    jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(mesh, P(unreduced={"X"}, reduced={"Y"}))),
]
def facts(value):
    aval = jax.typeof(value)
    spec = aval.sharding.spec
    return {
        "text": str(aval),
        "dtype": str(aval.dtype),
        "dimensions": aval.shape,
        "spec": [[entry] if isinstance(entry, str) else entry for entry in spec.partitions],
        "unreduced": sorted(spec.unreduced),
        "reduced": sorted(spec.reduced),
        "weak": bool(getattr(aval, "weak_type", False)),
    }
print("FACTS" + json.dumps([facts(value) for value in arrays]))
print("SPECS" + json.dumps([repr(P("X", None)), repr(P(("X", "Y"))), repr(P()), repr(P(None, "Y"))]))
"""


@pytest.mark.skipif(find_spec("jax") is None, reason="there is no JAX here")
def test_what_jax_prints_is_read_as_jax_means_it() -> None:
    simulated = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=os.environ | simulated, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    facts = json.loads(next(line for line in lines if line.startswith("FACTS"))[5:])
    assert len(facts) == 12
    for fact in facts:
        spec = parse_array(fact["text"])
        assert format_array(spec) == fact["text"]
        assert (spec.dtype, list(spec.dimensions)) == (fact["dtype"], fact["dimensions"])
        assert [list(axes) if axes else None for axes in spec.spec] == fact["spec"]
        assert (sorted(spec.unreduced), sorted(spec.reduced)) == (fact["unreduced"], fact["reduced"])
        assert spec.weak_type == fact["weak"]
    specs = json.loads(next(line for line in lines if line.startswith("SPECS"))[5:])
    assert [parse_partition_spec(text) for text in specs] == [("X", None), (("X", "Y"),), (), (None, "Y")]
