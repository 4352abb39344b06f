"""The user's program after Shardy's propagation: values and operations by the user's names, and where data must move.

What is read here stands in `hloscope.compiler.shardy_model`; who asks for it are the reasons, the search for better
shardings and the list of intermediate ones.
"""
