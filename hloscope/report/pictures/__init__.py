"""Pictures: arrays cut along the axes of the mesh, and the mesh on its slice; as SVG, and in characters.

They draw what `hloscope.analysis.shards` and `hloscope.cost.traffic` know, and count nothing themselves.
"""
