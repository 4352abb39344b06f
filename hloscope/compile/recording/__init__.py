"""Recording of an unmodified script: each program that JAX compiles is intercepted and lowered for a slice."""
