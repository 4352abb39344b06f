"""From a target to compiled texts: loading, argument notation, meshes, slices, compiling. The only door to JAX."""
