"""Analysis of XLA dump folders: one module in full, with reasons, or all modules in parallel processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from hloscope.app.analyzing import analyze_text_target
from hloscope.app.config import load_project_plugins
from hloscope.app.requests import Text
from hloscope.base.errors import WITH_TRACEBACK, Either, HloscopeError, Option, TimeLimitError, say
from hloscope.base.units import format_capacity
from hloscope.compile import client
from hloscope.compile.client import choose_time_limit, describe_exit
from hloscope.compile.dumps import Dump, DumpedModule, ModuleFacts, read_module_facts
from hloscope.compile.hlo_files import add_partition_count, is_compressed, is_proto, read_hlo
from hloscope.compile.pool import WorkerDied, WorkerPool
from hloscope.compile.slots import count_cores, find_free_bytes
from hloscope.compile.target import TargetFacts
from hloscope.judge.selection import DEFAULT_SELECTION, RuleSelection
from hloscope.model import Analysis
from hloscope.model.capture import EXPANDED_OPERATIONS, ShardyModule
from hloscope.report.dumps import DumpedResult

_PROCESS_BYTES = 100 << 20
"""The memory of a process that analyzes text, without that of the text."""
_BYTES_PER_BYTE = 8
"""Memory per byte of text: 3.7 to 4.6, measured on programs of 3 to 37 MB, and that of a document made from it."""
_BYTES_PER_COMPRESSED_BYTE = 40
"""The text per byte of a compressed file: xz compresses real modules by a factor of 30."""
_PROTO_PROCESS_BYTES = 600 << 20
"""The additional memory to read a serialized module, which needs JAX."""
_SHARE_OF_FREE = 2
"""The divisor of the free memory: by default, half of it is used."""
_ONLY = Either("--only", 'only="NAME"')
_TRY_ALONE = say("try it alone, with ", _ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class HowToAnalyze:
    """Options that apply to all modules.

    Attributes:
        judging: The rules to run and the accepted findings.
        facts: The options of the texts: the mesh, the slice and all others that apply to text.
        folder: The folder of the user's project, whose plug-ins define rules.
    """

    judging: RuleSelection = DEFAULT_SELECTION
    facts: TargetFacts = field(default_factory=TargetFacts)
    folder: Path = field(default_factory=Path.cwd)


def analyze_dumped(module: DumpedModule, how: HowToAnalyze, *, with_reasons: bool = True) -> Analysis:
    """Analyzes one module of a dump, using the other files of the dump.

    Args:
        module: The module.
        how: The user's options for it.
        with_reasons: Whether to find the reasons for its collectives with Shardy, if the dump allows it; this starts a
            process with JAX.

    Raises:
        HloscopeError: The module cannot be read, or the options do not fit it.
    """
    beside = read_module_facts(module, on_the_way=with_reasons)
    if with_reasons:
        beside = _add_shardy(beside, module)
    text = add_partition_count(read_hlo(module.path), beside.partitions)
    return analyze_text_target(Text(name=str(module.path), text=text, facts=how.facts, dumped=beside), how.judging)


def _add_shardy(beside: ModuleFacts, module: DumpedModule) -> ModuleFacts:
    """Adds the module as propagated by Shardy before it was partitioned.

    Shardy is run on the compiler's own module if that keeps source lines, as on TPU; otherwise on the module as lowered
    by JAX.
    """
    notes: list[str] = []
    shardy = as_written = None
    try:
        if beside.before_propagation is not None:
            shardy = _propagate(beside.before_propagation, "compiler", notes)
        if beside.lowered is not None and (shardy is None or EXPANDED_OPERATIONS.search(beside.lowered)):
            as_written = _propagate(beside.lowered, "jax", notes)
    except (TimeLimitError, OSError) as error:
        notes.append(f"{getattr(error, 'what', error)}: the report gives no reasons")
    return replace(
        beside,
        shardy=shardy or as_written,
        shardy_as_written=None if shardy is None else as_written,
        notes=(*beside.notes, *dict.fromkeys(notes)),
    )


def _propagate(text: str, seen_by: str, notes: list[str]) -> ShardyModule | None:
    """The module as propagated by Shardy; None if Shardy cannot be run, or if the operations have lost their names."""
    found, _ = client.ask_propagation(text, seen_by, notes, timeout_s=None)
    return found if found is not None and any(op.op_name for op in found.ops) else None


def analyze_all(
    dump: Dump, how: HowToAnalyze, *, workers: int | None = None, memory_bytes: int | None = None
) -> Iterator[DumpedResult]:
    """Analyzes every module of a dump, largest first, without reasons; yields each as soon as it is done.

    A module that cannot be read, or whose process dies, does not stop the others. Modules wait while the running ones
    are estimated to take all of the memory allowed.

    Args:
        dump: The dump.
        how: The user's options for the modules.
        workers: Maximum number of parallel processes; by default as many as cores and memory allow.
        memory_bytes: Memory limit for all processes together; by default half of the free memory.
    """
    bound = memory_bytes or find_free_bytes() // _SHARE_OF_FREE or 2 * _PROCESS_BYTES
    most = max(1, min(workers or count_cores(), len(dump.modules), bound // _PROCESS_BYTES))
    pool = WorkerPool(most, counted=False)
    try:
        yield from _run_all(pool, most, bound, dump.modules, how)
    except BaseException:
        pool.kill_all()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def estimate_bytes(module: DumpedModule) -> int:
    """The estimated memory of a module's analysis, including its process."""
    size, name = module.size_bytes or 0, module.path.name
    text = size * (_BYTES_PER_COMPRESSED_BYTE if is_compressed(name) else 1)
    return _PROCESS_BYTES + text * _BYTES_PER_BYTE + (_PROTO_PROCESS_BYTES if is_proto(name) else 0)


def _run_all(
    pool: WorkerPool, most: int, bound: int, modules: Sequence[DumpedModule], how: HowToAnalyze
) -> Iterator[DumpedResult]:
    waiting = list(modules)
    running: dict[Future[DumpedResult], DumpedModule] = {}
    while waiting or running:
        taken = sum(map(estimate_bytes, running.values()))
        fitting = next((module for module in waiting if taken + estimate_bytes(module) <= bound), None)
        if fitting is not None and len(running) < most:
            waiting.remove(fitting)
            running[pool.submit_in(dict(os.environ), choose_time_limit(None), _analyze_in_worker, fitting, how)] = (
                fitting
            )
        elif running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield _take_result(future, running.pop(future))
        else:
            yield _make_too_large_result(waiting.pop(0), bound)


def _analyze_in_worker(module: DumpedModule, how: HowToAnalyze) -> DumpedResult:
    """Analyzes one module in this process, a worker of the pool."""
    begun, analysis, failed = time.monotonic(), None, None
    try:
        _load_plugins(how.folder)
        analysis = analyze_dumped(module, how, with_reasons=False)
    except HloscopeError as error:
        failed = error
    except Exception as error:
        failed = HloscopeError(
            f"hloscope itself failed: {type(error).__name__}: {error}",
            where=str(module.path),
            fix=say("run ", WITH_TRACEBACK, " on this file and report the traceback"),
        )
    return _add_error(DumpedResult(module=module, analysis=analysis, seconds=time.monotonic() - begun), failed)


@cache
def _load_plugins(folder: Path) -> None:
    load_project_plugins(folder)


def _take_result(future: Future[DumpedResult], module: DumpedModule) -> DumpedResult:
    """The result of a module; an error of its process belongs to this module alone, and ends no other."""
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, WorkerDied):
        why = describe_exit(error.returncode)
        fix = say("most likely the machine ran out of memory: ", _TRY_ALONE)
    elif isinstance(error, TimeoutError):
        why, fix = "it took too long", say("HLOSCOPE_TIMEOUT=0 sets no limit")
    elif isinstance(error, Exception):
        why, fix = f"{type(error).__name__}: {error}".removesuffix(": "), _TRY_ALONE
    else:
        raise error
    failed = HloscopeError(f"{module.file} could not be analyzed", why=why, fix=fix)
    return _add_error(DumpedResult(module=module), failed)


def _make_too_large_result(module: DumpedModule, bound: int) -> DumpedResult:
    needed = format_capacity(estimate_bytes(module))
    failed = HloscopeError(
        f"{module.file} needs about {needed}, but the limit is {format_capacity(bound)}",
        fix=say(
            "allow more, such as ", Option("memory", needed.replace(" ", "")), ", or analyze it alone, with ", _ONLY
        ),
    )
    return _add_error(DumpedResult(module=module), failed)


def _add_error(result: DumpedResult, failed: HloscopeError | None) -> DumpedResult:
    if failed is None:
        return result
    what = " ".join(failed.what.split()).replace(str(result.module.path), "it", 1)
    return replace(result, error=failed.message(), problem=what)
