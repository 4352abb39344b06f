"""The user's program after Shardy's propagation: values and operations by the user's names, and where data must move.

The records read here are those of `hloscope.compiler.shardy_model`; they serve reasons, the search for better shardings
and the list of intermediate arrays.
"""
