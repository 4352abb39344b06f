"""A script that runs as it is, while each program that JAX compiles is noticed and lowered for a slice."""
