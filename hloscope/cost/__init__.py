"""The predicted cost of a compiled program on a slice: the time of each collective and of the step.

`network` prices `collectives` on the paths they take, `operations` prices what computes, `walk` records both along the
schedule, `records` adds that up, `price` joins them, and `timeline` shows intervals and prices what a compile yielded.
Measured constants are in the generations' own files, in `tpu`.
"""

MODEL_VERSION = 1
"""Increases with each change of predictions: steps of two versions are not compared.

A test holds the predicted steps of the fixtures against it.
"""
