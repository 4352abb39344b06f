"""What a compiled program costs on a slice: the time of each collective and of the step.

`network` prices `collectives` on the `paths` they take, `operations` prices the `work` of what computes, `timeline`
adds up both along the schedule, and `price` joins them. `constants` holds everything that was measured.
"""

from hloscope.cost.captures import price_capture
from hloscope.cost.price import price_module

__all__ = ["price_capture", "price_module"]
