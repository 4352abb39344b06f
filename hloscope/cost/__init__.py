"""The predicted cost of a compiled program on a slice: the time of each collective and of the step.

`network` prices `collectives` on the `paths` they take, `operations` prices the `work` of what computes, `walk` records
both along the schedule, `records` adds that up and `intervals` shows it, `price` joins them, and `captures` does so for
what a compile yielded. What was measured is in the generations' own files, in `tpu`.
"""

MODEL_VERSION = 1
"""Increases with each change of predictions: steps of two versions are not compared.

A test holds the predicted steps of the fixtures against it.
"""
