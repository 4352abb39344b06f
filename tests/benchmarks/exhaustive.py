"""All ways to shard a feed-forward layer over a mesh, and how close the search comes to the best of them.

    python tests/benchmarks/exhaustive.py --collect FOLDER [--batch B] [--whole N]
    python tests/benchmarks/exhaustive.py --search [--seed N ...]

The layer is `gelu(x @ W1) @ W2` on a mesh of 2x4 of v5e:2x4, with D=4096, F=16384 and a batch of 128 and of 1024. Each
of its four arrays lies in one of nine ways: both axes go to the first dimension, to the second or nowhere, and where
both go to one dimension, in the mesh's order. That makes 6,561 ways for each batch.

`--collect` prices all of them, and writes `exhaustive.toml` and `exhaustive.csv` beside this file. It takes hours,
keeps what it finds in FOLDER, and goes on there when it is started anew. Every program goes through the whole optimizer
(`optimized.py`); what code generation adds is taken from programs with the same instructions where such were compiled
(`code_generation.py`), and programs are compiled in full until every instruction is known; after that the fastest, and
others drawn by lot, to see that their prices are those that were put together. `--whole N` says how many of each.

`--search` has hloscope search from what practitioners write, compiles the fastest of the table anew, so that both have
the prices of today, and prints the ratio. The bar: at most 1.02, in at most 100 compiles.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import json
import os
import sys
import time
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from code_generation import Module, plainly_started, without_numbers

if TYPE_CHECKING:
    from hloscope.compile.compiling import PendingCompile
    from hloscope.compile.lowering import Lowered
    from hloscope.model.capture import Capture
    from hloscope.search.pareto_front import CompiledPoint
    from hloscope.search.space import Space

BATCHES = (128, 1024)
MESH = {"X": 2, "Y": 4}
SLICE = "v5e:2x4"
ARGS = ("bf16[B@X,D]", "bf16[D,F@Y]", "bf16[F@Y,D]")
OUT = "P('X', None)"
NAMES = ("x", "W1", "W2", "out")
WAYS = 9
COUNT = WAYS ** len(NAMES)
OWN = 3 * 729 + 2 * 81 + 1 * 9 + 3
"""The layer as it is written."""
SEEDS = (0, 1, 2)
CANDIDATES = 95
"""With the program itself, two orders of the devices and two freed results that makes 100 compiles at the most."""
MOST_COMPILES = 100
MOST_RATIO = 1.02
WHOLE = 60
"""The fastest that are compiled in full, and as many others."""
SHOWN = 20
TIERS = (1.5, 2.0, 4.0, float("inf"))
"""What is priced first: up to so many times the fastest, before code generation has said anything of most of it."""
QUANTILES = {"min": 0.0, "1%": 0.01, "10%": 0.1, "50%": 0.5, "max": 1.0}
TABLE, ROWS = (Path(__file__).with_suffix(ending) for ending in (".toml", ".csv"))

_AT_ONCE = 243
_AHEAD = 2
_ROUND = 16

T = TypeVar("T")


def ffn(x: Any, W1: Any, W2: Any) -> Any:
    """The layer."""
    import jax

    return jax.nn.gelu(x @ W1) @ W2


# ---- all ways to shard it


def digits(code: int) -> tuple[int, ...]:
    """The ways of x, W1, W2 and the result, of a number up to 9^4."""
    return tuple(code // WAYS**place % WAYS for place in reversed(range(len(NAMES))))


def spec_of(way: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The axes of both dimensions: 0 is nowhere, 1 the first one and 2 the second one, for X times three and for Y."""
    places = dict(zip(MESH, divmod(way, 3), strict=True))
    first, second = (tuple(axis for axis, place in places.items() if place == at) for at in (1, 2))
    return first, second


def options(batch: int) -> dict[str, Any]:
    """What hloscope is told of the layer."""
    dims = {"B": batch, "D": 4096, "F": 16384}
    return {"args": ARGS, "mesh": MESH, "slice": SLICE, "out": OUT, "dims": dims}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The layer as practitioners write it, with one size of the batch.

    Attributes:
        function: The layer.
        lowered: What JAX makes of it.
        space: The ways to shard it, and those that leave the result open.
    """

    function: Callable[..., Any]
    lowered: Lowered
    space: Space

    def changed(self, code: int) -> Lowered:
        """The program that is sharded in one of all ways."""
        from hloscope.compile.lowering import lower_changed

        point = replace(self.space.own, specs=tuple(map(spec_of, digits(code))))
        change = self.space.change(point)
        if change is None:
            assert point == self.space.own, code
            return self.lowered
        return lower_changed(self.function, self.lowered, change)

    def compiled(self, codes: Iterable[int]) -> Iterator[tuple[int, Capture | None]]:
        """What the compiler makes of programs, one after another; None of one that it refuses."""
        from hloscope.base.errors import HloscopeError
        from hloscope.compile.compiling import prepare_compile

        def captured(pending: PendingCompile) -> Capture | None:
            try:
                return pending.capture(reasons=False)
            except HloscopeError:
                return None

        waiting: deque[tuple[int, PendingCompile]] = deque()
        for code in codes:
            waiting.append((code, prepare_compile(self.changed(code)).begun()))
            if len(waiting) == _AHEAD:
                first, pending = waiting.popleft()
                yield first, captured(pending)
        for code, pending in waiting:
            yield code, captured(pending)


def with_layer(batch: int, use: Callable[[Layer], T]) -> T:
    """Does something with the layer with one size of the batch, while one compiler works."""
    from hloscope.compile import client
    from hloscope.compile.executors import compile_on
    from hloscope.compile.functions import Function, with_function
    from hloscope.compile.lowering import lower
    from hloscope.compile.target import TargetFacts, make_facts
    from hloscope.search.space import Space

    def used(function: Callable[..., Any], facts: TargetFacts) -> T:
        lowered = lower(function, facts, name="ffn")
        module, said = client.ask_propagation(lowered.bytecode, "jax", [], timeout_s=None)
        assert module is not None, said
        return use(Layer(function=function, lowered=lowered, space=Space(lowered, module, (), ("result",))))

    with compile_on(None, 1):
        return with_function(Function(target=ffn, facts=make_facts(**options(batch))), used)


# ---- collecting


def optimize(layer: Layer, batch: int, folder: Path) -> None:
    """Has all ways optimized, and keeps what comes of it."""
    from optimized import optimized, without_symbols

    from hloscope.compile.compiling import prepare_compile

    for first in range(0, COUNT, _AT_ONCE):
        path = _kept_in(folder, batch, first)
        if path.exists():
            continue
        begun = time.monotonic()
        codes = range(first, first + _AT_ONCE)
        asked = [prepare_compile(layer.changed(code)).asked for code in codes]
        found = optimized([program for program in asked if program is not None], without_symbols(folder))
        assert len(found) == len(codes)
        new = path.with_suffix(".new")
        new.write_bytes(gzip.compress(json.dumps([(one.text, one.memory_bytes) for one in found]).encode(), 1))
        new.rename(path)
        print(f"B={batch}: {codes[-1] + 1} of {COUNT} optimized, {time.monotonic() - begun:.0f} s", flush=True)


def _kept_in(folder: Path, batch: int, first: int) -> Path:
    return folder / f"{batch}_{first:04}.json.gz"


class Prices:
    """All ways to shard the layer with one size of the batch, optimized, and those that were compiled.

    Args:
        batch: The size.
        folder: Where both are kept.

    Attributes:
        keys: For each way what its instructions are, by their names.
        memory_bytes: What the buffers of each take.
        configs: What code generation says of each instruction.
        compiled: The step and the memory of what was compiled, by its number; None of what the compiler refused.
        differing: How often it said something else of an instruction.
    """

    def __init__(self, batch: int, folder: Path) -> None:
        self._path = folder / f"compiled_{batch}.jsonl"
        self._texts: list[str] = []
        self.memory_bytes: list[int] = []
        for first in range(0, COUNT, _AT_ONCE):
            for text, sizes in json.loads(gzip.decompress(_kept_in(folder, batch, first).read_bytes())):
                self._texts.append(plainly_started(text))
                self.memory_bytes.append(sum(-size if "alias" in name else size for name, size in sizes.items()))
        self.keys = [Module(text).keys() for text in self._texts]
        self.configs: dict[str, str] = {}
        self.compiled: dict[int, tuple[float, int] | None] = {}
        self.differing = 0
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                self._take(json.loads(line))

    def add(self, code: int, capture: Capture | None) -> None:
        """Keeps what a whole compile says."""
        from hloscope.search.trials import price_figures

        entry: dict[str, Any] = {"code": code, "figures": None, "configs": {}}
        if capture is not None:
            figures = price_figures(capture, "ffn")
            entry["figures"] = figures.step_us, figures.hbm_bytes
            said = Module(capture.compiled.text).configs()
            entry["configs"] = {key: said[name] for name, key in self.keys[code].items() if name in said}
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        self._take(entry)

    def _take(self, entry: dict[str, Any]) -> None:
        self.compiled[entry["code"]] = None if entry["figures"] is None else tuple(entry["figures"])
        for key, config in entry["configs"].items():
            before = self.configs.setdefault(key, config)
            self.differing += without_numbers(before) != without_numbers(config)

    def unknown(self, code: int) -> set[str]:
        """The instructions of a program of which no compile has said anything."""
        return {key for key in self.keys[code].values() if key not in self.configs}

    def is_known(self, code: int) -> bool:
        """Whether a program can be priced."""
        return code in self.compiled or (bool(self._texts[code]) and not self.unknown(code))

    def text(self, code: int) -> str:
        """What the compiler would make of a program, as far as is known."""
        named = {name: self.configs[key] for name, key in self.keys[code].items() if key in self.configs}
        return Module(self._texts[code]).with_configs(named)


class Pricing:
    """Prices texts as those of one layer are priced.

    Args:
        capture: A compile of one of its programs.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def step_us(self, text: str) -> float:
        """What a step takes."""
        from hloscope.search.trials import price_figures

        compiled = replace(self._capture.compiled, text=text)
        found = price_figures(replace(self._capture, compiled=compiled), "ffn").step_us
        assert found is not None
        return found


def promises(pricing: Pricing, batch: int, folder: Path) -> list[float]:
    """The step of every program before code generation has said anything of it: of matmuls what the chip can do."""
    found: list[float] = []
    for first in range(0, COUNT, _AT_ONCE):
        optimized, path = _kept_in(folder, batch, first), folder / f"{batch}_{first:04}.promises.json"
        if not path.exists():
            texts = [text for text, _ in json.loads(gzip.decompress(optimized.read_bytes()))]
            path.write_text(json.dumps([pricing.step_us(text) if text else None for text in texts]))
        found += [float("inf") if step is None else step for step in json.loads(path.read_text())]
    return found


def cover(layer: Layer, prices: Prices, promises: Sequence[float], tiers: Iterable[float], until: float) -> None:
    """Compiles programs until every instruction of all of them is known.

    First those of programs that promise to be fast, and of which there is no text; of these the program first that has
    most that is not known.
    """
    for tier in tiers:
        most = tier * min(promises)
        codes = [code for code in range(COUNT) if promises[code] <= most or not prices.keys[code]]
        while time.monotonic() < until:
            waiting = {code: prices.unknown(code) for code in codes if not prices.is_known(code)}
            if not waiting:
                break
            print(f"{len(prices.compiled)} compiled; up to {tier:g}x {len(waiting)} of {len(codes)} wait", flush=True)
            for code, capture in layer.compiled(_most_unknown(waiting, _ROUND)):
                prices.add(code, capture)


def _most_unknown(waiting: dict[int, set[str]], count: int) -> Iterator[int]:
    """Programs with most that is not known, each as if those before it were known."""
    while waiting and count:
        code = max(waiting, key=lambda one: (len(waiting[one]), -one))
        known = waiting.pop(code)
        waiting = {other: left for other, keys in waiting.items() if (left := keys - known) or not keys}
        count -= 1
        yield code


def confirm(layer: Layer, prices: Prices, steps: dict[int, float], whole: int, until: float) -> None:
    """Compiles the fastest in full, and as many drawn by lot."""
    fastest = sorted(steps, key=lambda code: (steps[code], code))[:whole]
    others = Random(0).sample(range(COUNT), whole)
    left = [code for code in dict.fromkeys((*fastest, *others)) if code not in prices.compiled]
    for code, capture in layer.compiled(left):
        prices.add(code, capture)
        if time.monotonic() > until:
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """All that was found with one size of the batch.

    Attributes:
        prices: What was compiled.
        promises: The step of every program before code generation has said anything of it.
        steps: The step of every program whose instructions are known.
        versions: Of jax, jaxlib and libtpu.
    """

    prices: Prices
    promises: Sequence[float]
    steps: dict[int, float]
    versions: dict[str, str]

    @property
    def all_steps(self) -> dict[int, float]:
        """The step of every program, as it was compiled where it was."""
        whole = {code: figures[0] for code, figures in self.prices.compiled.items() if figures is not None}
        return self.steps | whole

    @property
    def deviation(self) -> float:
        """The most by which the step of a program that was compiled differs from the one put together."""
        whole = {code: figures[0] for code, figures in self.prices.compiled.items() if figures is not None}
        return max(
            (abs(self.steps[code] / step - 1) for code, step in whole.items() if code in self.steps), default=0.0
        )

    @property
    def overpromised(self) -> float:
        """The most that a program promises, in steps of it."""
        ratios = (self.promises[code] / step for code, step in self.all_steps.items())
        return max((ratio for ratio in ratios if ratio < float("inf")), default=0.0)


def collect(batch: int, folder: Path, whole: int, seconds: float) -> Collected:
    """Prices all ways to shard the layer with one size of the batch, or as many as there is time for."""
    until = time.monotonic() + seconds

    def used(layer: Layer) -> Collected:
        optimize(layer, batch, folder)
        prices = Prices(batch, folder)
        ((_, own),) = layer.compiled([OWN])
        assert own is not None
        pricing = Pricing(own)
        promised = promises(pricing, batch, folder)
        for tiers in (TIERS[:2], TIERS[2:]):
            cover(layer, prices, promised, tiers, until)
            known = (code for code in range(COUNT) if prices.keys[code] and not prices.unknown(code))
            steps = {code: pricing.step_us(prices.text(code)) for code in known}
            confirm(layer, prices, steps, whole, until)
        return Collected(prices=prices, promises=promised, steps=steps, versions=dict(own.versions))

    return with_layer(batch, used)


def written(found: dict[int, Collected]) -> str:
    """The table as TOML."""

    import hloscope
    from hloscope.tpu.slices import parse_slice

    chip = parse_slice(SLICE).chip
    assert chip is not None
    versions = next(iter(found.values())).versions | {"hloscope": hloscope.__version__}
    digest = hashlib.sha256(f"{chip}".encode()).hexdigest()[:12]
    lines = [
        "# Written by exhaustive.py --collect: all ways to shard gelu(x @ W1) @ W2 over X=2 and Y=4 of v5e:2x4.",
        "# What a step takes is of the prices of that day; a digest tells the figures of the chip and the constants.",
        "# A program promises what its optimized text is priced at before code generation has said anything of it.",
        "# Where not all are priced, the others promise at least others_promise_us; of those that are priced none",
        "# takes less than what it promised, divided by largest_promise_by_step. Steps that were put together differ",
        "# from those of full compiles by largest_deviation at the most.",
        "",
        "[versions]",
        *(f'{name} = "{version}"' for name, version in sorted(versions.items())),
        f'constants = "{digest}"',
    ]
    for batch, one in found.items():
        steps, compiled = one.all_steps, one.prices.compiled
        failed = sum(figures is None for figures in compiled.values())
        lines += [
            "",
            f"[B{batch}]",
            f"ways = {COUNT}",
            f"priced = {len(steps)}",
            f"failed = {failed}",
            f"compiled = {len(compiled)}",
            f"instructions = {len({key for keys in one.prices.keys for key in keys.values()})}",
            f"instructions_that_differ = {one.prices.differing}",
            f"largest_deviation = {one.deviation:.6f}",
            f"largest_promise_by_step = {one.overpromised:.3f}",
        ]
        left = [one.promises[code] for code in range(COUNT) if code not in steps and compiled.get(code, ()) is not None]
        if left:
            lines.append(f"others_promise_us = {min(left):.2f}")
        ordered = sorted(steps, key=lambda code: (steps[code], code))
        lines.append(f"[B{batch}.step_us]")
        lines += [
            f'"{name}" = {steps[ordered[round(share * (len(ordered) - 1))]]:.2f}' for name, share in QUANTILES.items()
        ]
        for code in ordered[:SHOWN]:
            figures = compiled.get(code)
            lines += [f"[[B{batch}.best]]", f'way = "{_numbered(code)}"']
            lines += [f"{name} = {_shown(way)}" for name, way in zip(NAMES, digits(code), strict=True)]
            lines.append(f"step_us = {steps[code]:.2f}")
            if figures is not None:
                lines.append(f"hbm_bytes = {figures[1]}")
    return "\n".join(lines) + "\n"


def _numbered(code: int) -> str:
    return "".join(map(str, digits(code)))


def _shown(way: int) -> str:
    from hloscope.model.capture import format_spec

    return f'"{format_spec(spec_of(way))}"'


def write(found: dict[int, Collected]) -> None:
    """Writes the table, and the rows of all programs."""
    TABLE.write_text(written(found))
    with ROWS.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["way", *(f"{what}_{batch}" for batch in found for what in ("step_us", "buffers_kb"))])
        steps = {batch: one.all_steps for batch, one in found.items()}
        for code in range(COUNT):
            cells: list[object] = [_numbered(code)]
            for batch, one in found.items():
                step = steps[batch].get(code)
                cells += ["" if step is None else f"{step:.5g}", round(one.prices.memory_bytes[code] / 1e3)]
            rows.writerow(cells)


# ---- searching


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one search came to.

    Attributes:
        compiles: Programs that it had compiled, the one as it is written among them.
        best_us: The step of the fastest with the devices in their usual order; where it leaves the result open, that
            lies in one of all ways too.
        at: How many were compiled until then.
        near_at: How many until one was near enough to the best of all; None where none was.
        asked_us: The step of the fastest that asks for a sharding of the result.
        ordered_us: The step of the fastest, devices in other orders included.
        best: How the arrays of the fastest lie.
    """

    compiles: int
    best_us: float
    at: int
    near_at: int | None
    asked_us: float
    ordered_us: float
    best: str


def searched(layer: Layer, seed: int, best_us: float) -> Outcome:
    """Has the layer searched as `hloscope.suggest(…, free="result", fix_mesh=True)` does."""
    from hloscope.app.analyzing import analyze_capture
    from hloscope.base.store import open_default_store
    from hloscope.compile.compiling import start_compile
    from hloscope.search.suggesting import Effort, Search
    from hloscope.search.trial_cache import SearchSubject

    store = open_default_store()
    pending = start_compile(layer.lowered, store=store)
    captured = pending.capture()
    subject = SearchSubject(
        function=layer.function,
        lowered=layer.lowered,
        captured=captured,
        analysis=analyze_capture(captured, "ffn"),
        store=store,
        kept=pending.kept,
    )
    search = Search([(subject, layer.space)], Effort(candidates=CANDIDATES, seed=seed))
    found = search.run()
    usual = [(at, _step(one)) for at, one in enumerate(found.compiled, 1) if one.point.order is None]
    at, best = min(usual, key=lambda item: (item[1], item[0]))
    asked = (_step(one) for one in found.compiled if one.point.order is None and None not in one.point.specs)
    return Outcome(
        compiles=len(found.compiled) + found.failures.total() + 2 * (found.freed is not None),
        best_us=best,
        at=at,
        near_at=next((at for at, step in usual if step <= MOST_RATIO * best_us), None),
        asked_us=min(asked),
        ordered_us=min(map(_step, found.compiled)),
        best=", ".join(map(_of_spec, found.compiled[at - 1].point.specs)),
    )


def _step(found: CompiledPoint) -> float:
    return float("inf") if found.figures.step_us is None else found.figures.step_us


def _of_spec(spec: Sequence[Sequence[str]] | None) -> str:
    from hloscope.model.capture import format_spec

    return "open" if spec is None else format_spec(spec)


def best_today(layer: Layer, rows: Sequence[dict[str, Any]]) -> float:
    """The fastest of the table's best, with the prices of today."""
    from hloscope.search.trials import price_figures

    codes = [int(str(row["way"]), WAYS) for row in rows]
    captures = [capture for _, capture in layer.compiled(codes) if capture is not None]
    steps = [price_figures(capture, "ffn").step_us for capture in captures]
    return min(step for step in steps if step is not None)


def compare(batches: Sequence[int], seeds: Sequence[int]) -> list[str]:
    """Prints what each search came to; what misses the bar."""
    table = tomllib.loads(TABLE.read_text())
    missed = []
    for batch in batches:

        def used(layer: Layer, batch: int = batch) -> list[str]:
            best_us = best_today(layer, table[f"B{batch}"]["best"])
            print(f"B={batch}: the best of all ways takes {best_us:.2f} us")
            found = []
            for seed in seeds:
                outcome = searched(layer, seed, best_us)
                ratio = outcome.best_us / best_us
                print(
                    f"  seed {seed}: {outcome.best_us:.2f} us, {ratio:.4f} of it, compile {outcome.at} of "
                    f"{outcome.compiles}, within {MOST_RATIO - 1:.0%} at {outcome.near_at}: {outcome.best}; "
                    f"with a result that is asked for {outcome.asked_us:.2f} us, "
                    f"with other orders of the devices {outcome.ordered_us:.2f} us",
                    flush=True,
                )
                if ratio > MOST_RATIO or outcome.compiles > MOST_COMPILES:
                    found.append(f"B={batch}, seed {seed}: {ratio:.4f} in {outcome.compiles} compiles")
            return found

        missed += with_layer(batch, used)
    return missed


def main() -> None:
    """Collects, or searches; fails where a search misses the bar."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--collect", type=Path, metavar="FOLDER")
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--seed", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--whole", type=int, default=WHOLE)
    parser.add_argument("--hours", type=float, default=100.0)
    given = parser.parse_args()
    if given.collect is not None:
        os.environ["HLOSCOPE_CACHE"] = "0"
        given.collect.mkdir(parents=True, exist_ok=True)
        write({batch: collect(batch, given.collect, given.whole, 3600 * given.hours) for batch in given.batch})
    if given.search:
        missed = compare(given.batch, given.seed)
        if missed:
            sys.exit(f"missed: at most {MOST_RATIO:g} of the best, in at most {MOST_COMPILES} compiles: {missed}")


if __name__ == "__main__":
    main()
