"""The predicted cost of a compiled program on a slice: the time of each collective and of the step.

`network` prices `collectives` on the `paths` they take, `operations` prices the `work` of what computes, `walk` records
both along the schedule, `records` adds that up and `intervals` shows it, `price` joins them, and `captures` does so for
what a compile yielded. `constants` holds everything that was measured.
"""
