"""How much longer it takes to know of a large step what runs when, beside its analysis.

    python tests/benchmarks/timelines.py TEXT SLICE

TEXT is compiled HLO, which may be compressed; the bar is set for a step of 24 MB. Printed are the seconds of a
processor, the least of some runs, that the analysis of the text takes (reading, analyzing and pricing it, without
rules), what of it is the walk that records the intervals, and what making the timeline of these takes besides. The bar:
recording and making it add at most a tenth to the analysis.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hloscope.analysis.analyze import analyze_module
from hloscope.compile.hlo_files import read_hlo
from hloscope.cost.price import PricedWalk, make_walk, price_walk
from hloscope.cost.records import Stretch, Sums
from hloscope.cost.timeline import build_timeline
from hloscope.hlo import parse_module
from hloscope.tpu.slices import Slice, parse_slice

RUNS = 5
MOST_ADDED = 0.1

T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Seconds of a processor, and what was made."""
    gc.collect()
    start = time.process_time()
    found = work()
    return time.process_time() - start, found


def analyzed(text: str, chosen: Slice) -> PricedWalk:
    """The whole analysis of a text."""
    module = parse_module(text)
    found = price_walk(analyze_module(module, target="large", mesh=None), module, chosen)
    assert found is not None
    return found


def recording(priced: PricedWalk, chosen: Slice) -> float:
    """Seconds that recording takes: to make every interval of the step once more, and to add them up."""
    stretches = [one for schedule in priced.walk.schedules.values() for one in schedule.stretches]

    def again() -> None:
        sums = Sums()
        for one in stretches:
            sums.add_stretch(Stretch(*one))

    return min(timed(again)[0] for _ in range(RUNS))


def main() -> None:
    """Prints the figures; fails when the bar is missed."""
    text, chosen = read_hlo(Path(sys.argv[1])), parse_slice(sys.argv[2])
    runs = [timed(lambda: analyzed(text, chosen)) for _ in range(RUNS)]
    whole_s, priced = min(seconds for seconds, _ in runs), runs[-1][1]
    module = priced.walk.graph.module
    walk, _ = make_walk(priced.analysis, module, chosen, device_ids=None, kernel_costs=None)
    walk_s, _ = timed(walk.step)
    record_s = recording(priced, chosen)
    document_s = min(timed(lambda: build_timeline(priced.walk, priced.analysis, chosen.name))[0] for _ in range(RUNS))
    count = sum(len(one.stretches) for one in priced.walk.schedules.values())
    added = (record_s + document_s) / (whole_s - record_s)
    print(f"{len(text) / 1e6:.1f} MB, {count:,} intervals: the analysis takes {whole_s:.2f} s, its walk {walk_s:.2f} s")
    print(
        f"recording takes {1e3 * record_s:.0f} ms, the timeline {1e3 * document_s:.0f} ms: {added:.1%} of the analysis"
    )
    if added > MOST_ADDED:
        sys.exit(f"missed: at most {MOST_ADDED:.0%}")


if __name__ == "__main__":
    main()
