"""`analyze`, `analyze_text` and `analyze_all`: analysis of functions, HLO text and folders of dumps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypedDict, Unpack

from hloscope import given
from hloscope.analysis.model import Analysis
from hloscope.api.analyzing import KernelCosts, analysis_of_text, analyze_function, analyze_hlo
from hloscope.api.dumps import HowToAnalyze, analyze_dumped
from hloscope.api.dumps import analyze_all as analyze_modules
from hloscope.api.texts import beside_text, meant, refuse_beside_text, refuse_source_root, text_of
from hloscope.calls import front_door
from hloscope.errors import TargetError
from hloscope.outputs import check_hlo_file, write_text
from hloscope.program.capture import Capture
from hloscope.program.dumps import is_folder, read_dump
from hloscope.program.target import TargetOptions, make_facts, with_options
from hloscope.progress import waiting
from hloscope.report.dumps import DumpedModules
from hloscope.rules.selection import RuleSelection, make_selection
from hloscope.store import default_store
from hloscope.units import plural


@front_door
@with_options(TargetOptions)
def analyze(
    target: Callable[..., Any] | str | Path,
    args: Any = None,
    *,
    select: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    source_root: str | Path | None = None,
    save_hlo: str | Path | None = None,
    only: str | None = None,
    **options: Unpack[TargetOptions],
) -> Analysis:
    """Compiles a function for a TPU slice, which need not be attached, and reports what it moves.

    Options that are not given are taken from `@hloscope.target` and then from the function itself. A program that was
    compiled before is taken from the user's cache, unless `HLOSCOPE_CACHE=0` is set.

    Example:
        >>> found = hloscope.analyze(step, ("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]"), mesh={"X": 4, "Y": 2})
        >>> [c.kind for c in found.collectives]
        ['all-reduce']

    Args:
        target: A function (plain, jitted or shard_mapped; a partial, a method, a Flax NNX module, a factory), its name
            as `module:fn` or `file.py:fn`; what JAX returns: `jax.stages.Traced`, `Lowered` or `Compiled`, or
            `jax.export.Exported`; the path of an HLO file, which may be compressed or serialized; or the path of an XLA
            dump folder, whose largest module is used.
        args: One entry per positional argument: a notation (`bf16[8@X,2048@Y]`), a pytree of notations,
            ShapeDtypeStructs or arrays, or a callable that returns one of these. The compiler chooses the sharding of
            arrays without one; a notation without axes means replicated.
        select: Names of the rules to run; all when empty.
        ignore: Names of rules to skip.
        source_root: For HLO text, the folder below which source files that it names may be read, for comments that
            accept findings.
        save_hlo: For functions, a file to write the compiled HLO to, so that line numbers in the report refer to it. An
            existing file must hold HLO text.
        only: For a dump folder, the name, number or file of the module to analyze.
        {options}

    Returns:
        The analysis; `to_dict()` returns it as plain data.

    Raises:
        HloscopeError: The input is invalid, or JAX or the compiler rejects the program.
    """
    target = meant(target)
    rules, described = _rules_and_facts(select, ignore, source_root, args, options)
    file = given.path("save_hlo", save_hlo, example='save_hlo="step.hlo"')
    if isinstance(target, str | Path) and is_folder(target):
        refuse_beside_text(target, {"save_hlo": file})
        return _of_folder(target, only, HowToAnalyze(judging=rules, beside=beside_text(target, described)))
    if only is not None:
        raise TargetError("only is for a folder of XLA dumps", fix="leave it out, or pass the folder")
    text = text_of(target, described)
    if text is not None:
        refuse_beside_text(text.name, {"save_hlo": file})
        return analysis_of_text(text, rules)
    refuse_source_root("source_root", source_root)
    assert not isinstance(target, Path)  # which is text, or refused
    facts = make_facts(**described)
    if file is not None:
        check_hlo_file(file)
    captured: list[Capture] = []
    with waiting() as stage:
        try:
            return analyze_function(
                target, facts, store=default_store(), judging=rules, stage=stage, when_compiled=captured.append
            )
        finally:
            if file is not None and captured:
                write_text(captured[0].compiled.text, file, "the HLO")


@front_door
def analyze_text(
    text: str,
    *,
    name: str = "-",
    mesh: Any = None,
    slice: str | None = None,
    dcn: Mapping[str, int] | str | None = None,
    chip_overrides: str | Sequence[str] = (),
    kernel_costs: KernelCosts = (),
    select: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    allow: str | Sequence[str] = (),
    rule_options: Mapping[str, Any] | None = None,
    source_root: str | Path | None = None,
) -> Analysis:
    """Reports what a compiled program moves, from its HLO text; does not need JAX.

    Example:
        >>> hloscope.analyze_text(compiled.as_text(), mesh={"X": 4, "Y": 2}, slice="v5e:2x4")

    Args:
        text: The output of `compiled.as_text()`, or a dump of the final module. A truncated text is read as far as it
            is complete, and its totals are marked "at least".
        name: File name used in messages.
        mesh: Mapping of axis names to sizes, major first. By default the axis names in the text; without any, raw
            device groups are shown.
        slice: The slice that the program is meant for.
        dcn: For several slices, the mesh axes that cross DCN, mapped to the number of slices that each spans.
        chip_overrides: Overrides of the chip's figures, as `name=value` or as TOML files.
        kernel_costs: FLOPs and bytes of Pallas kernels, by name.
        select: Names of the rules to run; all when empty.
        ignore: Names of rules to skip.
        allow: Findings to accept, each with a reason, such as `all-gather@X: weights of FSDP`.
        rule_options: Values of rule options, by `rule.option`.
        source_root: The folder below which source files named in the text may be read, for comments that accept
            findings.

    Raises:
        HloParseError: The text is not HLO.
        MeshError: The mesh does not have as many devices as the program.
        SliceError: The slice has fewer devices than the program.
    """
    rules = make_selection(
        select=select, ignore=ignore, allow=allow, rule_options=rule_options, source_root=source_root
    )
    return analyze_hlo(
        given.text("the HLO", text, example="hloscope.analyze_text(compiled.as_text())"),
        name=given.text("name", name, example='name="step.hlo"'),
        mesh=mesh,
        slice=slice,
        dcn=dcn,
        chip_overrides=chip_overrides,
        kernel_costs=kernel_costs,
        judging=rules,
    )


class TextOptions(TypedDict, total=False):
    """Options for compiled programs given as text."""

    mesh: Any
    slice: str | None
    dcn: Mapping[str, int] | str | None
    chip_overrides: str | Sequence[str]
    kernel_costs: KernelCosts
    allow: str | Sequence[str]
    rule_options: Mapping[str, Any] | None


@front_door
@with_options(TextOptions)
def analyze_all(
    folder: str | Path,
    *,
    jobs: int | None = None,
    memory: int | str | None = None,
    select: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    source_root: str | Path | None = None,
    **options: Unpack[TextOptions],
) -> DumpedModules:
    """Analyzes all modules in an XLA dump folder in parallel, without reasons.

    Example:
        >>> print(hloscope.analyze_all("dump/"))

    Args:
        folder: The folder passed to `xla_dump_to`.
        jobs: Maximum number of parallel processes; by default as many as cores and memory allow.
        memory: Memory limit for all processes together, in bytes or such as `4GiB`; by default half of the free memory.
        select: Names of the rules to run; all when empty.
        ignore: Names of rules to skip.
        source_root: The folder below which source files named in the texts may be read, for comments that accept
            findings.
        {options}

    Returns:
        Each module with its analysis or error, largest module first.

    Raises:
        HloscopeError: The input is invalid, or the folder has no module.
    """
    rules, described = _rules_and_facts(select, ignore, source_root, None, options)
    path = given.path("folder", folder, example='hloscope.analyze_all("dump/")')
    workers = None if jobs is None else given.whole("jobs", jobs, least=1)
    most = None if memory is None else given.size("memory", memory, example='memory="4GiB"')
    if path is None or not is_folder(path):
        raise TargetError(f"there is no folder {path}", fix="use the folder of xla_dump_to")
    dump = read_dump(path)
    how = HowToAnalyze(judging=rules, beside=beside_text(path, described))
    done, begun = [], monotonic()
    with waiting() as stage:
        stage(f"analyzing {plural(len(dump.modules), 'module')}")
        for result in analyze_modules(dump, how, workers=workers, memory_bytes=most):
            done.append(result)
            stage(f"{len(done)} of {plural(len(dump.modules), 'module')} analyzed")
    places = {module.file: place for place, module in enumerate(dump.modules)}
    done.sort(key=lambda result: places[result.module.file])
    return DumpedModules(done, dump=dump, seconds=monotonic() - begun)


def _rules_and_facts(
    select: Any, ignore: Any, source_root: Any, args: Any, options: Mapping[str, Any]
) -> tuple[RuleSelection, dict[str, Any]]:
    """What was said of rules, and what was said of the program."""
    of_rules = {name: options[name] for name in ("allow", "rule_options") if name in options}
    rules = make_selection(select=select, ignore=ignore, source_root=source_root, **of_rules)
    return rules, {"args": args, **{name: value for name, value in options.items() if name not in of_rules}}


def _of_folder(folder: str | Path, only: object, how: HowToAnalyze) -> Analysis:
    dump = read_dump(folder)
    name = None if only is None else given.text("only", only, example='only="jit_step"')
    module = dump.modules[0] if name is None else dump.named(name)
    with waiting() as stage:
        stage(f"analyzing {module.file}")
        return analyze_dumped(module, how)
