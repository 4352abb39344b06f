"""The compiler, in a process of its own.

Everything that runs XLA's, libtpu's or Shardy's native code on a user's program has one interface: a `CompileRequest`
in, a `CompiledProgram` out. `client` is called by the rest of hloscope; `step` holds the pure functions that run on the
other side; `pool` runs them in worker processes behind the interface of `concurrent.futures.Executor`; `worker` is what
such a process does; `cache` keeps earlier compiles. A worker that dies takes only its one step with it.
"""
