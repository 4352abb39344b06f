"""How well published timings are predicted.

Run it with `python tests/benchmarks/published_timings.py`. Every row of `published/rows.py` is compiled by libtpu for
the slice it ran on (compiled texts are kept in hloscope's cache) and priced. Two predictions are printed: with the
constants that ship, and with constants fitted to the rows of all other sources, which is the honest figure.

`--fit` fits the constants to all rows, writes `published/residuals.json`, brings the rows of `docs/time.md` up to them
and prints what to paste into the files of `hloscope/tpu/`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from published.prediction import Prediction, Table
    from published.rows import Row

sys.path.insert(0, str(Path(__file__).parent))

MOST_DEVICES = 512
"""Simulated devices that the largest row needs; JAX fixes their number when it is imported."""
RESIDUALS = Path(__file__).parent / "published" / "residuals.json"
PAGE = Path(__file__).parents[2] / "docs" / "time.md"
ROW_OF_PAGE = re.compile(r"^\| ([\w-]+)(?: \*)? \|.*\| (?:source|row) \|$", re.MULTILINE)
SPREAD_OF_PAGE = re.compile(r"^\*\*(\w+)\*\*: (?:\d+ rows|one row).*$", re.MULTILINE)


def left_out(rows: Sequence[Row]) -> dict[str, tuple[Prediction, str]]:
    """Predictions of each row with constants fitted without it, and what was left out with it: "source" or "row".

    Where another source has measured the same rule on the same generation, all rows of the row's source are left out;
    else the row alone.
    """
    from published.prediction import fit, phenomenon_of, predict

    sources: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        sources.setdefault(phenomenon_of(row), set()).add(row.source)
    found: dict[str, tuple[Prediction, str]] = {}
    fitted: dict[tuple[str, ...], Table] = {}
    for row in rows:
        whole = len(sources[phenomenon_of(row)]) > 1
        kept = tuple(
            other for other in rows if (other.source if whole else other.name) != (row.source if whole else row.name)
        )
        key = tuple(other.name for other in kept)
        fitted[key] = fitted[key] if key in fitted else fit(kept)
        found[row.name] = predict(row, fitted[key], own_source=not whole), "source" if whole else "row"
    return found


def summary(predictions: Sequence[Prediction]) -> dict[str, float]:
    """Rows, median and worst factor."""
    factors = [one.factor for one in predictions]
    return {"rows": len(factors), "median": round(statistics.median(factors), 3), "worst": round(max(factors), 3)}


LEAST_ERROR, MOST_ERROR = 0.04, 0.17
"""Between which the error of a rule lies that was measured: no rule is exact, and half of what one may be that was not.
"""


LEAST_OF = {("v7x", "cycles"): 0.1}
"""Where more than the rows say is known: the clock of 7x is not one number."""


def errors_of(honest: dict[str, Prediction]) -> dict[str, dict[str, float]]:
    """How far each rule may be off on each generation: 1.8 times the usual error of its rows, left out."""
    from published.prediction import rule_of

    found: dict[str, dict[str, list[float]]] = {}
    for one in honest.values():
        if not one.row.extra:
            found.setdefault(one.row.generation, {}).setdefault(rule_of(one.row), []).append(math.log(one.ratio))
    return {
        generation: {
            rule: round(min(max(_usual(logs), LEAST_OF.get((generation, rule), LEAST_ERROR)), MOST_ERROR), 3)
            for rule, logs in rules.items()
        }
        for generation, rules in found.items()
    }


def _usual(logs: Sequence[float]) -> float:
    return 1.8 * math.sqrt(statistics.fmean(x * x for x in logs))


def covered(honest: dict[str, Prediction]) -> float:
    """The share of all rows, left out, that were measured within their range."""
    inside = [one.least_us <= one.row.measured_us <= one.most_us for one in honest.values()]
    return sum(inside) / len(inside)


def broken_rankings(predictions: dict[str, Prediction]) -> list[tuple[str, ...]]:
    """Groups of programs that are predicted in another order than measured."""
    from published.rows import RANKINGS

    times = {name: one.predicted_us for name, one in predictions.items()}
    return [group for group in RANKINGS if sorted(group, key=times.__getitem__) != list(group)]


def print_table(shipped: dict[str, Prediction], honest: dict[str, Prediction], held: dict[str, str]) -> None:
    """One line for each row: measured, predicted, and predicted without the row or its source."""
    print(f"{'row':<28}{'source':<16}{'measured':>12}{'predicted':>12}{'ratio':>8}{'left out':>12}{'ratio':>8}{'±':>7}")
    for name, mine in shipped.items():
        row, other = mine.row, honest[name]
        print(
            f"{row.name:<28}{row.source:<16}{row.measured_us:>12.2f}{mine.predicted_us:>12.2f}{mine.ratio:>8.3f}"
            f"{other.predicted_us:>12.2f}{other.ratio:>8.3f}{row.uncertainty:>7.1%} {held[name]:<7}"
            f"{'extra' if row.extra else ''}"
        )


def spreads_of(shipped: dict[str, Prediction], honest: dict[str, Prediction]) -> dict[str, dict[str, float]]:
    """The summary of each generation, shipped and left out; rows beyond the required ones are left aside."""
    found = {}
    for generation in dict.fromkeys(one.row.generation for one in shipped.values()):
        for what, predictions in (("shipped", shipped), ("left out", honest)):
            asked = [one for one in predictions.values() if one.row.generation == generation and not one.row.extra]
            found[f"{generation} {what}"] = summary(asked)
    return found


def residuals(
    shipped: dict[str, Prediction], honest: dict[str, Prediction], held: dict[str, str]
) -> dict[str, dict[str, object]]:
    """Each row with what was measured and predicted."""
    return {
        name: {
            "source": one.row.source,
            "generation": one.row.generation,
            "measured_us": round(one.row.measured_us, 2),
            "uncertainty": one.row.uncertainty,
            "predicted_us": round(shipped[name].predicted_us, 2),
            "left_out_us": round(one.predicted_us, 2),
            "left_out": held[name],
            "range_us": [round(one.least_us, 2), round(one.most_us, 2)],
            "extra": one.row.extra,
        }
        for name, one in honest.items()
    }


def page_with(page: str, document: Mapping[str, Any]) -> str:
    """The page on predicted times with the residuals in its rows; rows that it does not have must be written in."""

    def row_of(found: re.Match[str]) -> str:
        row = document["rows"].get(found[1])
        return found[0] if row is None else _row_of_page(found[1], row)

    def spread_of(found: re.Match[str]) -> str:
        spread = document["spreads"][f"v{found[1].removeprefix('v')} left out"]
        if spread["rows"] == 1:
            return f"**{found[1]}**: one row."
        factors = f"{spread['median']} (median) and {spread['worst']} (worst)"
        return f"**{found[1]}**: {spread['rows']} rows, error factor {factors}."

    return SPREAD_OF_PAGE.sub(spread_of, ROW_OF_PAGE.sub(row_of, page))


def _row_of_page(name: str, row: Mapping[str, Any]) -> str:
    measured, predicted = row["measured_us"], row["left_out_us"]
    cells = (
        f"{name} *" if row["extra"] else name, row["source"], _shown(measured), f"{row['uncertainty']:.1%}",
        _shown(predicted), f"{predicted / measured:.2f}", row["left_out"],
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _shown(microseconds: float) -> str:
    return f"{microseconds:,.0f}" if microseconds >= 100 else f"{microseconds:.1f}"


def code_of_constants(document: Mapping[str, Any]) -> str:
    """The fields of `Constants` in `tpu/generation.py`, as they are written there."""
    shared = {name: value for name, value in document["constants"].items() if "." not in name}
    return "\n".join(f"    {name}: float = {_rounded(shared[name])}" for name in _names_of_constants())


def code_of_generation(document: Mapping[str, Any], generation: str) -> str:
    """The record of what was measured, as it is written in the file of a generation."""
    from hloscope.tpu import find_chip

    constants, spread = document["constants"], document["spreads"][f"{generation} left out"]
    own = {name: constants.get(f"{generation}.{name}") for name in _names_of_constants()}
    said = ", ".join(f"{name}={_rounded(value)}" for name, value in own.items() if value is not None)
    once = find_chip(generation).measured.rules_measured_once
    lines = (
        "measured=Measured(",
        *([f"    constants=Constants({said}),"] if said else []),
        "    rule_errors=(",
        *(f'        ("{rule}", {error}),' for rule, error in document["errors"][generation].items()),
        "    ),",
        *([f"    rules_measured_once=({json.dumps(once)[1:-1]},),"] if once else []),
        f"    rows={spread['rows']},",
        f"    median={spread['median']},",
        f"    worst={spread['worst']},",
        "),",
    )
    return "\n".join(f"    {line}" for line in lines)


def _names_of_constants() -> list[str]:
    from hloscope.tpu.generation import Constants

    return [field.name for field in fields(Constants)]


def _rounded(value: float) -> float:
    """Three digits of what was fitted, and all digits of what was set by hand."""
    return value if value == round(value, 3) else float(f"{value:.3g}")


def print_step(path: Path, table: Table) -> None:
    """The whole step, with the constants given and without those that it sets itself."""
    from published.prediction import BY_HAND
    from published.whole_step import MEASURED_MS, MEASURED_SHARES, predict_step

    own = {"dma_grid_share": table["grid_share"]}
    without = {**{name: value for name, value in table.items() if name not in BY_HAND}, **own}
    for what, constants in (("shipped", table), ("left out", without)):
        found = predict_step(path, constants)
        low, high = found.range_ms
        print(f"whole step, {what}: {found.step_ms:.1f} ms ({low:.0f} to {high:.0f}), measured {MEASURED_MS} ms")
        for part, share in MEASURED_SHARES.items():
            print(f"    {part}: {found.parts_ms[part]:.1f} ms, measured {share * MEASURED_MS:.1f}")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="fit the constants to all rows and write the residuals")
    parser.add_argument("--step-text", type=Path, help="the compiled text of the whole step, which is not kept here")
    arguments = parser.parse_args()
    from hloscope.compile.environment import prepare_environment

    prepare_environment(MOST_DEVICES, attached=False)
    from published.prediction import fit, predict, shipped_table
    from published.rows import ROWS

    table = fit(ROWS) if arguments.fit else shipped_table()
    shipped, without = {row.name: predict(row, table) for row in ROWS}, left_out(ROWS)
    honest, held = (
        {name: one for name, (one, _) in without.items()},
        {name: what for name, (_, what) in without.items()},
    )
    print_table(shipped, honest, held)
    spreads = spreads_of(shipped, honest)
    for name, spread in spreads.items():
        print(f"{name}: {spread}")
    print("rankings broken:", broken_rankings(shipped) or "none", "| left out:", broken_rankings(honest) or "none")
    print(f"within their range: {covered(honest):.0%}")
    if arguments.step_text is not None:
        print_step(arguments.step_text, table)
    if arguments.fit:
        document: dict[str, Any] = {
            "constants": table,
            "rows": residuals(shipped, honest, held),
            "spreads": spreads,
            "errors": errors_of(honest),
            "covered": round(covered(honest), 3),
        }
        RESIDUALS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), document), encoding="utf-8")
        print(f"\nhloscope/tpu/generation.py, Constants:\n{code_of_constants(document)}")
        for generation in document["errors"]:
            print(f"\nhloscope/tpu/{generation}.py:\n{code_of_generation(document, generation)}")


if __name__ == "__main__":
    main()
