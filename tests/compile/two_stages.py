"""The two stages of one compile side by side: `nox -s stages` compares them for many programs and generations.

Prints what differs, and the entry for `hloscope/compile/stages.toml`, by which hloscope knows which versions of libtpu
have a scheduled stage that can be trusted.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hloscope.app.analyzing import analyze_capture
from hloscope.base.errors import HloscopeError
from hloscope.compile import compiling, jax_support
from hloscope.compile.functions import Function, with_function
from hloscope.compile.lowering import lower
from hloscope.compile.target import TargetFacts
from hloscope.hlo import HloModule, parse_module
from hloscope.model import Analysis
from hloscope.model.vocabulary import CompileStage
from hloscope.tpu.slices import find_smallest_slice

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "fixtures" / "programs"
GENERATIONS = ("v4", "v5e", "v5p", "v6e", "7x")

_TIMES = re.compile(r"(_us|time_error|^time|^overlap|^findings|^notes|^versions|^stage|^row|^column)$")
_OTHER = {"generated_code_bytes", "most_code_bytes", "peak_bytes", "fits", "source", "why"}
"""What is known at the second stage alone, and rows of tables; places and reasons are compared as text."""
_TABLES = {"stacks", "frames", "operations", "tensors", "parts", "askers"}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One program at both stages.

    Attributes:
        scheduled: The analysis of what was there first; None if the compile was done before that was read.
        compiled: The analysis of the final program.
        differences: What differs, one line each.
        added: The keys that code generation added to configurations.
        seconds: The time to the first stage, and to the second, from the request.
    """

    scheduled: Analysis | None
    compiled: Analysis
    differences: tuple[str, ...] = ()
    added: frozenset[str] = frozenset()
    seconds: tuple[float, float] = (0.0, 0.0)


def compile_pair(target: str, facts: TargetFacts | None = None, *, slice_of: str | None = None) -> Pair:
    """Compiles a target, and compares what its two stages say.

    Args:
        target: `file.py:function`.
        facts: How to call it; by default as its decorator says.
        slice_of: The generation to compile for, on as many devices; None for the target's own slice.

    Raises:
        HloscopeError: It cannot be compiled.
    """

    def both(itself: Any, known: TargetFacts) -> Pair:
        if slice_of is not None:
            known = replace(known, slice=_find_slice(known, slice_of))
        lowered = lower(itself, known, name=target)
        begun = time.monotonic()
        pending = compiling.start_compile(lowered, wanted=CompileStage.SCHEDULED)
        assert pending.question is not None
        first = pending.question.first_answer()
        at_first = time.monotonic() - begun
        last = pending.question.answer()
        seconds = (at_first, time.monotonic() - begun)
        captures = [
            replace(pending, question=None, found=compiling._add_shardy(lowered, found)).capture()
            for found in (first, last)
        ]
        analyses = [analyze_capture(capture, target) for capture in captures]
        if first.stage is CompileStage.COMPILED:
            return Pair(scheduled=None, compiled=analyses[1], seconds=seconds)
        modules = [parse_module(found.text, name=target) for found in (first, last)]
        added: set[str] = set()
        differences = (*find_text_differences(*modules, added), *find_fact_differences(*analyses))
        if first.identities != last.identities:
            differences = (*differences, "identities differ")
        return Pair(
            scheduled=analyses[0],
            compiled=analyses[1],
            differences=differences,
            added=frozenset(added),
            seconds=seconds,
        )

    return with_function(Function(target=target, facts=facts or TargetFacts()), both)


def _find_slice(known: TargetFacts, generation: str) -> str:
    devices = 1
    for size in (known.mesh or {}).values():
        devices *= size
    return find_smallest_slice(devices, generation).name


# ---- what differs in the texts


def find_text_differences(first: HloModule, last: HloModule, added: set[str]) -> Iterator[str]:
    """The differences of two texts of a module; only configurations may grow.

    Args:
        first: The scheduled module.
        last: The compiled one.
        added: Receives the keys that configurations gained.
    """
    if [each.name for each in first.computations] != [each.name for each in last.computations]:
        yield "other computations"
        return
    for computation, other in zip(first.computations, last.computations, strict=True):
        if len(computation.instructions) != len(other.instructions):
            yield f"%{computation.name}: another number of instructions"
            continue
        for here, there in zip(computation.instructions, other.instructions, strict=True):
            yield from _compare_instructions(here, there, added)


def _compare_instructions(here: Any, there: Any, added: set[str]) -> Iterator[str]:
    said = (here.name, here.opcode, str(here.shape), [operand.name for operand in here.operands])
    if said != (there.name, there.opcode, str(there.shape), [operand.name for operand in there.operands]):
        yield f"%{here.name}: another instruction, shape or operands"
    attributes, others = dict(here.attributes), dict(there.attributes)
    before, after = (_read_config(each.pop("backend_config", "")) for each in (attributes, others))
    for each in (attributes, others):
        each.pop("metadata", None)  # rows of tables; the reports' places are compared
    if attributes != others:
        changed = {key for key in {*attributes, *others} if attributes.get(key) != others.get(key)}
        yield f"%{here.name}: other {', '.join(sorted(changed))}"
    yield from (f"%{here.name}: {what}" for what in _compare_configs(before, after, added))


def _read_config(text: str) -> Any:
    try:
        return json.loads(text) if text else {}
    except ValueError:
        return text


def _compare_configs(before: Any, after: Any, added: set[str], path: str = "") -> Iterator[str]:
    """The values of a configuration that are lost or changed; empty ones may be filled."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before:
            if key not in after:
                yield f"backend_config {path}{key} is lost"
            else:
                yield from _compare_configs(before[key], after[key], added, f"{path}{key}.")
        added |= {path + key for key in after if key not in before}
    elif before != after:
        if before in ([], "", None):
            added.add(path.rstrip("."))
        else:
            yield f"backend_config {path.rstrip('.')} changed"


# ---- what differs in the facts


def find_fact_differences(first: Analysis, last: Analysis) -> Iterator[str]:
    """The differences of two analyses, but for times, the code's size and what follows from them."""
    here, there = (_list_facts(found) for found in (first, last))
    for name in sorted({*here, *there}):
        if here.get(name) != there.get(name):
            yield f"{name}: {str(here.get(name))[:120]} and then {str(there.get(name))[:120]}"


def _list_facts(found: Analysis) -> Mapping[str, Any]:
    document = replace(found, time=None, findings=(), notes=(), versions={}).to_dict()
    own = {name: _without_times(document[name]) for name in document if not _TIMES.search(name) and name not in _TABLES}
    # the costliest are first in the tables, and costs differ
    own["decisions"] = sorted(str(_without_times(asdict(each))) for each in found.decisions)
    own["reasons"] = [str(one.why) for one in found.collectives]
    placed = (*found.collectives, *found.matmuls, *found.intermediates)
    own["places"] = [[(frame.file, frame.line) for frame in one.source] for one in placed]
    return own


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_times(each) for key, each in value.items() if not _TIMES.search(key) and key not in _OTHER
        }
    return [_without_times(each) for each in value] if isinstance(value, list) else value


# ---- all programs


def list_targets() -> Iterator[str]:
    """Every program of the fixtures that compiles."""
    sys.path.insert(0, str(FOLDER))
    yield f"{FOLDER / 'decoder_step'}.py:decoder_step"
    for name in importlib.import_module("seed_programs").SEED_PROGRAMS:
        try:
            module = importlib.import_module(name)
        except ImportError:  # flax
            continue
        for program in module.PROGRAMS:
            if program.refused is None:
                yield f"{FOLDER / name}.py:{program.function}"


@dataclass
class Tally:
    """What was seen of all pairs."""

    pairs: int = 0
    too_quick: int = 0
    failed: list[str] = field(default_factory=list)
    different: dict[str, tuple[str, ...]] = field(default_factory=dict)
    added: Counter[str] = field(default_factory=Counter)


def compare_all(targets: Iterable[str], generations: Iterable[str]) -> Tally:
    """Compares the stages of every program on every generation, and prints a line for each."""
    tally, chosen = Tally(), tuple(generations)
    for target in targets:
        for generation in chosen:
            name = f"{target.removeprefix(str(FOLDER) + '/')} on {generation}"
            try:
                pair = compile_pair(target, slice_of=generation)
            except HloscopeError as error:
                tally.failed.append(f"{name}: {error.what}")
                print(f"{name}: {error.what}", flush=True)
                continue
            tally.pairs += pair.scheduled is not None
            tally.too_quick += pair.scheduled is None
            tally.added.update(pair.added)
            if pair.differences:
                tally.different[name] = pair.differences
            first, last = pair.seconds
            print(f"{name}: {first:.2f} of {last:.2f} s, {len(pair.differences)} differences", flush=True)
            for difference in pair.differences[:10]:
                print(f"    {difference}", flush=True)
    return tally


def main() -> None:
    """Compares all programs, or the named ones, and prints the entry of the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--generations", default=",".join(GENERATIONS))
    said = parser.parse_args()
    tally = compare_all(said.targets or list(list_targets()), said.generations.split(","))
    print(f'\n[libtpu."{jax_support.find_package_version("libtpu")}"]')
    print(f"date = {time.strftime('%Y-%m-%d')}")
    print(f"pairs = {tally.pairs}  # and {tally.too_quick} compiled before their first stage was read")
    print(f"exceptions = {json.dumps(sorted(tally.different))}")
    print(f"added = {json.dumps(sorted(tally.added))}")


if __name__ == "__main__":
    main()
