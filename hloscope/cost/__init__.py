"""The predicted cost of a compiled program on a slice: the time of each collective and of the step.

`network` prices `collectives` on the paths they take, `operations` prices what computes, `walk` records both along the
schedule, `records` adds that up, `price` joins them, and `timeline` shows intervals.
Measured constants are in the generations' own files, in `tpu`.
"""

from hloscope.analysis.analyze import analyze_program
from hloscope.hlo import HloModule
from hloscope.model import Analysis
from hloscope.model.capture import Capture


def price_capture(program: Capture, module: HloModule, *, target: str) -> Analysis:
    """The analysis of a compiled program, without reasons and findings; priced if it is for TPU chips.

    Args:
        program: The results of its compile.
        module: The parsed text.
        target: The target as the user named it.
    """
    found = analyze_program(program, module, target=target)
    if program.slice is None or program.slice.chip is None:
        return found
    from hloscope.cost.price import price_module  # text without a slice needs nothing of this room

    device_ids = program.compiled.device_ids or None
    return price_module(found, module, program.slice, device_ids=device_ids, kernel_costs=program.kernel_costs)
