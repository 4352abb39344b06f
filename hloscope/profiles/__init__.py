"""Profiles as `jax.profiler` writes them (`xplane.pb`): measured ones are read, predicted ones are written."""
