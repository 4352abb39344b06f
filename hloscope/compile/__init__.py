"""From a target to compiled text, the only room that imports JAX (with `verify`): loading, notation, meshes, compiling.

Everything that runs XLA's, libtpu's or Shardy's native code on a user's program goes through one seam, in a process of
its own: a `Program` goes in, a `Compiled` comes out. `client` is what the rest of hloscope calls; `step` holds the pure
functions that run on the other side; `pool` runs them in worker processes behind the interface of
`concurrent.futures.Executor`; `worker` is what such a process does; `cache` keeps what was compiled before. A worker
that dies takes nothing with it but its one step.
"""
