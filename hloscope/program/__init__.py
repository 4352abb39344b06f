"""The path from a target to compiled text, with JAX: loading, argument notation, meshes, slices, compiling."""
