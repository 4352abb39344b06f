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

sys.path.insert(0, str(Path(__file__).parent))

MOST_DEVICES = 256
"""Simulated devices that the largest row needs; JAX fixes their number when it is imported."""
RESIDUALS = Path(__file__).parent / "published" / "residuals.json"


def left_out(rows: Sequence[object]) -> dict[str, object]:
    """Predictions of each row with constants fitted to the other sources' rows."""
    from published.prediction import fit, predict

    found = {}
    for source in dict.fromkeys(row.source for row in rows):
        constants = fit([row for row in rows if row.source != source])
        found.update({row.name: predict(row, constants, own_source=False) for row in rows if row.source == source})
    return found


def summary(predictions: Sequence[object]) -> dict[str, float]:
    """Rows, median and worst factor."""
    factors = [one.factor for one in predictions]
    return {"rows": len(factors), "median": round(statistics.median(factors), 3), "worst": round(max(factors), 3)}


def broken_rankings(predictions: dict[str, object]) -> list[tuple[str, ...]]:
    """Groups of programs that are predicted in another order than measured."""
    from published.rows import RANKINGS

    times = {name: one.predicted_us for name, one in predictions.items()}
    return [group for group in RANKINGS if sorted(group, key=times.__getitem__) != list(group)]


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="fit the constants to all rows and write the residuals")
    arguments = parser.parse_args()
    from hloscope.program.devices import prepare_environment

    prepare_environment(MOST_DEVICES, attached=False)
    from published.prediction import fit, predict
    from published.rows import ROWS

    shipped = {row.name: predict(row) for row in ROWS}
    honest = left_out(ROWS)
    print(f"{'row':<26}{'source':<17}{'measured':>12}{'predicted':>12}{'ratio':>8}{'left out':>12}{'ratio':>8}{'±':>7}")
    for row in ROWS:
        mine, other = shipped[row.name], honest[row.name]
        print(
            f"{row.name:<26}{row.source:<17}{row.measured_us:>12.2f}{mine.predicted_us:>12.2f}{mine.ratio:>8.3f}"
            f"{other.predicted_us:>12.2f}{other.ratio:>8.3f}{row.uncertainty:>7.1%}{'  extra' if row.extra else ''}"
        )
    spreads = {}
    for generation in dict.fromkeys(row.generation for row in ROWS):
        for what, predictions in (("shipped", shipped), ("left out", honest)):
            asked = [one for one in predictions.values() if one.row.generation == generation and not one.row.extra]
            spreads[f"{generation} {what}"] = summary(asked)
            print(f"{generation} {what}: {spreads[f'{generation} {what}']}")
    print("rankings broken:", broken_rankings(shipped) or "none", "| left out:", broken_rankings(honest) or "none")
    if arguments.fit:
        constants = fit(ROWS)
        print(json.dumps(asdict(constants), indent=1))
        document = {
            "constants": asdict(constants),
            "rows": {
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
            },
            "spreads": spreads,
        }
        RESIDUALS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
