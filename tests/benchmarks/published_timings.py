"""How well published timings are predicted.

Run it with `python tests/benchmarks/published_timings.py`. Every row of `published/rows.py` is compiled by libtpu for
the slice it ran on (compiled texts are kept in hloscope's cache) and priced. Two predictions are printed: with the
constants that ship, and with constants fitted to the rows of all other sources, which is the honest figure.

`--fit` prints constants fitted to all rows and writes `published/residuals.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from published.prediction import Prediction
    from published.rows import Row

sys.path.insert(0, str(Path(__file__).parent))

MOST_DEVICES = 512
"""Simulated devices that the largest row needs; JAX fixes their number when it is imported."""
RESIDUALS = Path(__file__).parent / "published" / "residuals.json"


def left_out(rows: Sequence[Row]) -> dict[str, Prediction]:
    """Predictions of each row with constants fitted to the other sources' rows."""
    from published.prediction import fit, predict

    found = {}
    for source in dict.fromkeys(row.source for row in rows):
        constants = fit([row for row in rows if row.source != source])
        found.update({row.name: predict(row, constants, own_source=False) for row in rows if row.source == source})
    return found


def summary(predictions: Sequence[Prediction]) -> dict[str, float]:
    """Rows, median and worst factor."""
    factors = [one.factor for one in predictions]
    return {"rows": len(factors), "median": round(statistics.median(factors), 3), "worst": round(max(factors), 3)}


def broken_rankings(predictions: dict[str, Prediction]) -> list[tuple[str, ...]]:
    """Groups of programs that are predicted in another order than measured."""
    from published.rows import RANKINGS

    times = {name: one.predicted_us for name, one in predictions.items()}
    return [group for group in RANKINGS if sorted(group, key=times.__getitem__) != list(group)]


def print_table(shipped: dict[str, Prediction], honest: dict[str, Prediction]) -> None:
    """One line for each row: measured, predicted, and predicted without the row's source."""
    print(f"{'row':<26}{'source':<17}{'measured':>12}{'predicted':>12}{'ratio':>8}{'left out':>12}{'ratio':>8}{'±':>7}")
    for name, mine in shipped.items():
        row, other = mine.row, honest[name]
        print(
            f"{row.name:<26}{row.source:<17}{row.measured_us:>12.2f}{mine.predicted_us:>12.2f}{mine.ratio:>8.3f}"
            f"{other.predicted_us:>12.2f}{other.ratio:>8.3f}{row.uncertainty:>7.1%}{'  extra' if row.extra else ''}"
        )


def spreads_of(shipped: dict[str, Prediction], honest: dict[str, Prediction]) -> dict[str, dict[str, float]]:
    """The summary of each generation, shipped and left out; rows beyond the required ones are left aside."""
    found = {}
    for generation in dict.fromkeys(one.row.generation for one in shipped.values()):
        for what, predictions in (("shipped", shipped), ("left out", honest)):
            asked = [one for one in predictions.values() if one.row.generation == generation and not one.row.extra]
            found[f"{generation} {what}"] = summary(asked)
    return found


def residuals(shipped: dict[str, Prediction], honest: dict[str, Prediction]) -> dict[str, dict[str, object]]:
    """Each row with what was measured and predicted."""
    return {
        name: {
            "source": one.row.source,
            "generation": one.row.generation,
            "measured_us": round(one.row.measured_us, 2),
            "uncertainty": one.row.uncertainty,
            "predicted_us": round(shipped[name].predicted_us, 2),
            "left_out_us": round(one.predicted_us, 2),
            "extra": one.row.extra,
        }
        for name, one in honest.items()
    }


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="fit the constants to all rows and write the residuals")
    arguments = parser.parse_args()
    from hloscope.program.environment import prepare_environment

    prepare_environment(MOST_DEVICES, attached=False)
    from published.prediction import fit, predict
    from published.rows import ROWS

    shipped, honest = {row.name: predict(row) for row in ROWS}, left_out(ROWS)
    print_table(shipped, honest)
    spreads = spreads_of(shipped, honest)
    for name, spread in spreads.items():
        print(f"{name}: {spread}")
    print("rankings broken:", broken_rankings(shipped) or "none", "| left out:", broken_rankings(honest) or "none")
    if arguments.fit:
        constants = asdict(fit(ROWS))
        print(json.dumps(constants, indent=1))
        document = {"constants": constants, "rows": residuals(shipped, honest), "spreads": spreads}
        RESIDUALS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
