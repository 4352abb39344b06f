"""The programs of the cases in the files of rules, and other programs for tests of rules."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hloscope
from hloscope.hlo import parse_module
from hloscope.judge.rule import Facts, Rule
from hloscope.judge.rules import unmodelled_text
from hloscope.judge.selection import apply_rules, make_selection
from hloscope.model import Analysis, ArrayFact, Memory, SliceFact
from hloscope.model.vocabulary import Kind, Link
from hloscope.tpu.slices import parse_slice

LOOP = unmodelled_text.CASES.replace("n = s32[] parameter(1)", "n = s32[] BOUND")

_ADD = "add {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT sum = f32[] add(x, y)\n}\n"


def judged_with(known: Analysis | Facts, **options: object) -> Analysis:
    """An analysis, judged with what a user says on the command line."""
    facts = known if isinstance(known, Facts) else Facts(known)
    return apply_rules(facts, make_selection(where="--allow", **options))


def chain_text(count: int, elements: int) -> str:
    """HLO of `count` all-reduces of `f32[elements]` over eight devices, each of the result of the one before."""
    lines = [
        f"  r{at + 1} = f32[{elements}] all-reduce(r{at}), channel_id={at + 1}, replica_groups=[1,8]<=[8], "
        "use_global_device_ids=true, to_apply=add"
        for at in range(count)
    ]
    body = "\n".join(lines)
    return (
        f"HloModule chain, num_partitions=8\n\n{_ADD}\nENTRY main {{\n  r0 = f32[{elements}] parameter(0)\n{body}\n"
        f"  ROOT out = f32[{elements}] negate(r{count})\n}}\n"
    )


def chain_of_all_reduces(count: int, elements: int) -> Analysis:
    """The analysis of `chain_text`."""
    return hloscope.analyze_text(chain_text(count, elements), mesh={"X": 8})


def across_slices(kind: str, shape: str, result: str) -> Analysis:
    """One collective between two slices of four devices."""
    extra = ", to_apply=add" if kind == "all-reduce" else ", dimensions={0}"
    text = (
        f"HloModule dcn, num_partitions=8\n\n{_ADD}\nENTRY main {{\n  p = {shape} parameter(0)\n"
        f"  ROOT r = {result} {kind}(p), channel_id=1, replica_groups={{{{0,4}},{{1,5}},{{2,6}},{{3,7}}}}, "
        f"use_global_device_ids=true{extra}\n}}\n"
    )
    found = hloscope.analyze_text(text, mesh={"outer": 2, "model": 4})
    return replace(found, collectives=tuple(replace(one, link=Link.DCN) for one in found.collectives))


@cache
def compiled(name: str) -> Analysis:
    """One of the programs in `user_code/mistakes.py`, compiled for v5e."""
    return hloscope.analyze(f"{Path(__file__).parent / 'user_code' / 'mistakes.py'}:{name}")


HEAD = """import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import hloscope

constrained = jax.lax.with_sharding_constraint

"""
_KNOWN = {"memory": lambda facts: Memory(**facts), "slice": lambda facts: SliceFact(**facts)}
_KNOWN["arguments"] = _KNOWN["outputs"] = lambda arrays: tuple(ArrayFact(**array) for array in arrays)
_EACH = {"kind": Kind, "link": Link}


@cache
def compiled_text(program: str) -> Analysis:
    """A program that a case has as Python, compiled for v5e."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "case.py")
        path.write_text(HEAD + program)
        (function,) = (node.name for node in ast.parse(program).body if isinstance(node, ast.FunctionDef))
        return hloscope.analyze(f"{path}:{function}", trials=False)


def program_of(case: Mapping[str, Any]) -> Facts:
    """The program of a case in a rule's file.

    A case has at most one of `hlo`, HLO text, with its options (`mesh`, `slice`); `captured`, the name of a text in
    `fixtures/captured`, likewise; and `program`, a function in Python with `@hloscope.target`, below the imports of
    `HEAD`. `known` replaces facts of the analysis, `each` those of every collective. Without any of the three,
    the program is one all-reduce of 1 MiB over eight devices.
    """
    said = {name: value for name, value in case.items() if name in ("mesh", "slice", "dcn")}
    if "program" in case:
        found, module = compiled_text(case["program"]), None
    else:
        if "captured" in case:
            text = (Path(__file__).parents[2] / f"fixtures/captured/{case['captured']}.jax-0.10.hlo").read_text()
        elif "hlo" in case:
            text = case["hlo"]
        else:
            text, said = chain_text(1, 262_144), {"mesh": {"X": 8}}
        found, module = hloscope.analyze_text(text, **said), parse_module(text, name="case.hlo")
    known = {name: _KNOWN[name](value) for name, value in case.get("known", {}).items()}
    each = {name: _EACH.get(name, lambda value: value)(value) for name, value in case.get("each", {}).items()}
    collectives = tuple(replace(one, **each) for one in found.collectives)
    runs_on = parse_slice(said["slice"]) if "slice" in said else None
    return Facts(replace(found, collectives=collectives, **known), module, runs_on)


def of_rule(rule: Rule) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    """The cases of a rule, which its file has: on which it fires, and on which it stays silent."""
    module = sys.modules[type(rule).__module__]
    return getattr(module, "INVALID", ()), getattr(module, "VALID", ())


def one_collective(**facts: object) -> Analysis:
    """A program with one all-reduce of 1 MB, of which this is known."""
    found = chain_of_all_reduces(1, 262_144)
    return replace(found, collectives=tuple(replace(one, **facts) for one in found.collectives))
