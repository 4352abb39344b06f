"""Pictures: arrays cut along the axes of the mesh, the mesh on its slice, a step as a strip, graphs and plots.

As SVG, for pages, notebooks and files, and in characters. They draw what `analysis.shards`, `cost.placed`,
`cost.link_traffic` and the results know, and count nothing themselves. Of an analysis, `drawn.shards_in` and
`drawn.placed_in` make what `arrays.shards_svg` and `meshes.mesh_svg` draw.
"""
