"""Analysis of XLA dump folders: one module in full, with reasons, or all modules in parallel processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from hloscope.app.analyzing import analysis_of_text
from hloscope.app.config import load_project_plugins
from hloscope.app.requests import Text
from hloscope.base.errors import WITH_TRACEBACK, Either, HloscopeError, Option, TimeLimitError, say
from hloscope.base.units import format_capacity
from hloscope.compile import client
from hloscope.compile.client import choose_time_limit, describe_exit
from hloscope.compile.dumps import Dump, DumpedModule, ModuleFacts, read_module_facts
from hloscope.compile.hlo_files import add_partition_count, is_compressed, is_proto, read_hlo
from hloscope.compile.pool import WorkerDied, WorkerPool, count_cores, find_free_bytes
from hloscope.compile.target import TargetFacts
from hloscope.judge.selection import DEFAULT_SELECTION, RuleSelection
from hloscope.model import Analysis
from hloscope.model.capture import EXPANDED_OPERATIONS, ShardyModule
from hloscope.report.dumps import DumpedResult

_PROCESS_BYTES = 100 << 20
"""A process that analyses text, without the text."""
_BYTES_PER_BYTE = 8
"""Of text: 3.7 to 4.6 where it is large, measured on programs of 3 to 37 MB, and a document made of it."""
_UNPACKED = 40
"""What a byte of a compressed file may stand for: real modules are packed 30 times by xz."""
_PROTO_PROCESS_BYTES = 600 << 20
"""A serialized module is read by a process that holds JAX."""
_SHARE_OF_FREE = 2
"""By default half of the free memory is used."""
_ONLY = Either("--only", 'only="NAME"')
_ALONE = say("try it alone, with ", _ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class HowToAnalyze:
    """Options that apply to all modules.

    Attributes:
        judging: Which rules run and what is accepted.
        facts: What is said of the texts: the mesh, the slice and what else applies to text.
        folder: Where the user's project is, whose plug-ins bring rules.
    """

    judging: RuleSelection = DEFAULT_SELECTION
    facts: TargetFacts = field(default_factory=TargetFacts)
    folder: Path = field(default_factory=Path.cwd)


def analyze_dumped(module: DumpedModule, how: HowToAnalyze, *, with_reasons: bool = True) -> Analysis:
    """Analyzes one module of a dump, using the other files of the dump.

    Args:
        module: The module.
        how: What the user says of it.
        with_reasons: Whether to find out with Shardy why its collectives are there, as far as the dump allows; this
            starts a process with JAX.

    Raises:
        HloscopeError: The module cannot be read, or the options do not fit it.
    """
    beside = read_module_facts(module, on_the_way=with_reasons)
    if with_reasons:
        beside = _asked(beside, module)
    text = add_partition_count(read_hlo(module.path), beside.partitions)
    return analysis_of_text(Text(name=str(module.path), text=text, facts=how.facts, dumped=beside), how.judging)


def _asked(beside: ModuleFacts, module: DumpedModule) -> ModuleFacts:
    """With what Shardy says of the module before it was partitioned.

    It is asked of the compiler's own module where that keeps source lines, as on TPU; else of what JAX lowered.
    """
    notes: list[str] = []
    shardy = as_written = None
    try:
        if beside.before_propagation is not None:
            shardy = _propagated(beside.before_propagation, "compiler", notes)
        if beside.lowered is not None and (shardy is None or EXPANDED_OPERATIONS.search(beside.lowered)):
            as_written = _propagated(beside.lowered, "jax", notes)
    except (TimeLimitError, OSError) as error:
        notes.append(f"{getattr(error, 'what', error)}: the report gives no reasons")
    return replace(
        beside,
        shardy=shardy or as_written,
        shardy_as_written=None if shardy is None else as_written,
        notes=(*beside.notes, *dict.fromkeys(notes)),
    )


def _propagated(text: str, seen_by: str, notes: list[str]) -> ShardyModule | None:
    """What Shardy makes of a module; None where it cannot be asked, and where its operations have lost their names."""
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
        how: What the user says of the modules.
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


def needed_bytes(module: DumpedModule) -> int:
    """The estimated memory of a module's analysis, including its process."""
    size, name = module.size_bytes or 0, module.path.name
    text = size * (_UNPACKED if is_compressed(name) else 1)
    return _PROCESS_BYTES + text * _BYTES_PER_BYTE + (_PROTO_PROCESS_BYTES if is_proto(name) else 0)


def _run_all(
    pool: WorkerPool, most: int, bound: int, modules: Sequence[DumpedModule], how: HowToAnalyze
) -> Iterator[DumpedResult]:
    waiting = list(modules)
    running: dict[Future[DumpedResult], DumpedModule] = {}
    while waiting or running:
        taken = sum(map(needed_bytes, running.values()))
        fitting = next((module for module in waiting if taken + needed_bytes(module) <= bound), None)
        if fitting is not None and len(running) < most:
            waiting.remove(fitting)
            running[pool.submit_in(dict(os.environ), choose_time_limit(None), _analyzed, fitting, how)] = fitting
        elif running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield _result(future, running.pop(future))
        else:
            yield _too_large(waiting.pop(0), bound)


def _analyzed(module: DumpedModule, how: HowToAnalyze) -> DumpedResult:
    """Analyzes one module in this process, which is one of the pool's."""
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
    return _with_error(DumpedResult(module=module, analysis=analysis, seconds=time.monotonic() - begun), failed)


@cache
def _load_plugins(folder: Path) -> None:
    load_project_plugins(folder)


def _result(future: Future[DumpedResult], module: DumpedModule) -> DumpedResult:
    """What became of a module: whatever its process raised or could not begin is its own, and ends no other."""
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, WorkerDied):
        why = describe_exit(error.returncode)
        fix = say("most likely the machine ran out of memory: ", _ALONE)
    elif isinstance(error, TimeoutError):
        why, fix = "it took too long", say("HLOSCOPE_TIMEOUT=0 sets no limit")
    elif isinstance(error, Exception):
        why, fix = f"{type(error).__name__}: {error}".removesuffix(": "), _ALONE
    else:
        raise error
    failed = HloscopeError(f"{module.file} could not be analyzed", why=why, fix=fix)
    return _with_error(DumpedResult(module=module), failed)


def _too_large(module: DumpedModule, bound: int) -> DumpedResult:
    needed = format_capacity(needed_bytes(module))
    failed = HloscopeError(
        f"{module.file} needs about {needed}, but the limit is {format_capacity(bound)}",
        fix=say(
            "allow more, such as ", Option("memory", needed.replace(" ", "")), ", or analyze it alone, with ", _ONLY
        ),
    )
    return _with_error(DumpedResult(module=module), failed)


def _with_error(result: DumpedResult, failed: HloscopeError | None) -> DumpedResult:
    if failed is None:
        return result
    what = " ".join(failed.what.split()).replace(str(result.module.path), "it", 1)
    return replace(result, error=failed.message(), problem=what)
