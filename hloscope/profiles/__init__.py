"""Profiles in the format of `jax.profiler` (`xplane.pb`): measured ones are read, predicted ones are written."""
