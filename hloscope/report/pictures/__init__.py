"""Pictures: arrays cut along the axes of the mesh, the mesh on its slice, a step as a strip, graphs and plots.

As SVG, for pages, notebooks and files, and in characters. They draw what `analysis.shards`, `cost.placed`,
`cost.link_traffic` and the results know, and count nothing themselves.
"""
