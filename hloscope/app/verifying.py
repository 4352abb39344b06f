"""`verify`: compares a program with its reference in numbers, structure and communication."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from hloscope.app.analyzing import analyze_capture
from hloscope.app.requests import Request, check_target, follow
from hloscope.base import calls
from hloscope.base.calls import front_door
from hloscope.base.errors import NotationError, Option, TargetError, did_you_mean, say
from hloscope.base.store import open_default_store
from hloscope.compile.loading import load_target
from hloscope.compile.target import (
    ProgramOptions,
    TargetFacts,
    accept_options,
    as_dims,
    find_target_name,
)
from hloscope.model import Analysis
from hloscope.verification.job import (
    Function,
    Range,
    Settings,
    Stage,
    VerificationJob,
    complete_reference_facts,
    complete_target_facts,
)
from hloscope.verification.judging import RULE_NAMES, judge_verification
from hloscope.verification.model import Numerics, Verification

if TYPE_CHECKING:
    from hloscope.compile.lowering import Lowered

_MOST_LETTERS = 120


@front_door
@accept_options(ProgramOptions)
def verify(
    target: Function | str,
    reference: Function | str,
    args: Any = None,
    *,
    slice: str | None = None,
    seed: int = 0,
    ranges: Mapping[str, Range] | None = None,
    scale: Mapping[str, int] | str | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    grad: bool = False,
    against_single_device: bool = False,
    on: str = "auto",
    timeout_s: float | str = 300.0,
    ignore: str | Collection[str] = (),
    **options: Unpack[ProgramOptions],
) -> Verification:
    """Verifies a program against a reference that is known to be correct, such as its `shard_map` twin.

    Both are compiled for the slice, their communication is compared, and both are run on the same random inputs.

    Example:
        >>> hloscope.verify("model:step", "model:step_shard_map", scale={"B": 64}).passed
        True

    Args:
        target: The program: a function, `module:fn` or `file.py:fn`.
        reference: The reference. Options for the call that one decorator leaves open are taken from the other's.
        args: One entry per positional argument of both, as for `analyze`.
        slice: The slice to compile both for.
        seed: Seed of the random inputs.
        ranges: Half-open ranges of values for arguments, by name: `{"B": (0, 8)}`.
        scale: Smaller sizes of letters, used for the numerics only: `{"B": 64, "F": 256}`.
        rtol: Relative tolerance; by default derived from types and contraction sizes.
        atol: Absolute tolerance; by default derived from the magnitude of the expected values.
        grad: Whether to compare gradients as well.
        against_single_device: Whether to compare both with a single-device run as well.
        on: Where to run: `cpu`, `tpu`, `gpu`, or `auto` for attached devices if there are any, otherwise simulated CPU
            devices.
        timeout_s: Time limit of the run, in seconds.
        ignore: Names of findings to skip, such as `more-than-reference`.
        {options}

    Returns:
        The verification; `passed` says whether no finding is an error.

    Raises:
        HloscopeError: The input is invalid, or JAX or the compiler rejects one of the programs.
    """
    request = Request(target=target, said={"args": args, "slice": slice, **options})
    reference = check_target(reference, "reference")
    settings = Settings(
        seed=calls.whole("seed", seed, example="seed=0"),
        ranges=calls.mapping("ranges", ranges, example='ranges={"B": (0, 8)}'),
        scale=as_dims("scale")(scale),
        rtol=None if rtol is None else calls.number("rtol", rtol, example="rtol=1e-3"),
        atol=None if atol is None else calls.number("atol", atol, example="atol=1e-3"),
        grad=grad,
        against_single_device=against_single_device,
        on=on,
        timeout_s=calls.seconds("timeout_s", timeout_s, example="timeout_s=300"),
    )
    unwanted = calls.texts("ignore", ignore, example='ignore="more-than-reference"')
    return find_verification(request, reference, settings, ignore=unwanted)


def find_verification(
    request: Request, reference: Function | str, settings: Settings, *, ignore: Collection[str] = ()
) -> Verification:
    """Verifies the function of a request against a reference.

    Args:
        request: The request.
        reference: The reference, as for `verify`.
        settings: The settings of the runs.
        ignore: Names of findings to skip.

    Raises:
        HloscopeError: The input is invalid, or JAX or the compiler rejects one of the programs.
    """
    _check_names(ignore)
    for role, asked in (("the target", request), ("the reference", replace(request, target=reference))):
        if asked.is_text:
            why = f"{find_target_name(asked.target)} is HLO text, which cannot be run on inputs"
            raise TargetError(f"{role} must be a function", why=why)
    return follow(
        request,
        of_function=lambda function, stage: _run_verification(
            function.target, reference, function.facts, settings, ignore=ignore, stage=stage
        ),
    )


def _run_verification(
    target: Function | str,
    reference: Function | str,
    facts: TargetFacts,
    settings: Settings,
    *,
    ignore: Collection[str],
    stage: Stage,
) -> Verification:
    from hloscope.compile.devices import provide_devices, run_on_enough_devices
    from hloscope.compile.importing import isolate_call
    from hloscope.verification.run_location import run_in_chosen_process

    with isolate_call():
        both = partial(_analyze_both, target, reference, facts, settings, stage)
        found, job, numerics = run_on_enough_devices((target, reference), facts, both)
        if numerics is None:
            stage("running both programs")
            with provide_devices(job.devices, settings.on):
                numerics = run_in_chosen_process(job, decided_by_devices=any(map(_is_decided_by_devices, found)))
    return judge_verification(found[0], found[1], numerics, ignore)


def _analyze_both(
    target: Function | str, reference: Function | str, facts: TargetFacts, settings: Settings, stage: Stage
) -> tuple[tuple[Analysis, Analysis], VerificationJob, Numerics | None]:
    """The analyses of both programs for the target's slice, the job that runs them, and its results if it has run."""
    from hloscope.compile.compiling import start_compile
    from hloscope.compile.lowering import lower
    from hloscope.compile.simulated_slice import count_posed_processes, find_posed_slice
    from hloscope.compile.slots import find_free_bytes, find_system_bytes
    from hloscope.verification.run_location import start_run_ahead

    functions = _load_functions(target, reference, facts, settings, stage)
    posed = find_posed_slice()
    all_facts, store = complete_target_facts(*functions, facts), open_default_store()
    first = lower(functions[0], all_facts, name=find_target_name(target), stage=stage, store=store)
    _check_ranges(settings.ranges, dict(zip(first.seen.argument_names, first.seen.argument_avals, strict=True)))
    with ExitStack() as stack:
        pending = start_compile(first, stage=stage, store=store)
        stack.callback(pending.drop)
        borrowed = complete_reference_facts(all_facts, functions[1], facts)
        borrowed = replace(borrowed, slice=first.slice.name if first.slice_chosen_by == "user" else None)
        twin = lower(functions[1], borrowed, name=find_target_name(reference), stage=stage, store=store)
        first.plan.notes.extend(_note_other_structure(first.module.out_tree, twin.module.out_tree))
        installed_bytes = find_system_bytes("SC_PHYS_PAGES")
        job = VerificationJob(
            target=target,
            reference=reference,
            devices=max(_count_devices(first), _count_devices(twin)),
            facts=facts,
            settings=settings,
            memory_bytes=None if installed_bytes is None else find_free_bytes(installed_bytes),
            poses=None if posed is None else (posed.name, count_posed_processes()),
        )
        child = start_run_ahead(job)
        if child is not None:
            stack.callback(child.close)
        analyses = [analyze_capture(pending.capture(stage), find_target_name(target))]
        pending = start_compile(twin, stage=stage, store=store)
        stack.callback(pending.drop)
        analyses.append(analyze_capture(pending.capture(stage), find_target_name(reference)))
        stage("running both programs")
        return (analyses[0], analyses[1]), job, None if child is None else child.numerics(settings.timeout_s)


def _note_other_structure(found: Any, expected: Any) -> Iterator[str]:
    """A note if two programs return equally many arrays in different structures, which are compared by position."""
    ours, references = (_format_structure(tree) for tree in (found, expected))
    if ours != references and found.num_leaves == expected.num_leaves:
        shown = [text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…" for text in (ours, references)]
        yield f"the program returns {shown[0]}, but its reference {shown[1]}: outputs are compared by position"


def _format_structure(tree: Any) -> str:
    """A structure as JAX prints it, with `*` for each array."""
    return calls.ADDRESS.sub("", str(tree).removeprefix("PyTreeDef(").removesuffix(")"))


def _load_functions(
    target: Function | str, reference: Function | str, facts: TargetFacts, settings: Settings, stage: Stage
) -> tuple[Function, Function]:
    from hloscope.compile.devices import check_devices_seen

    stage("importing")
    functions = load_target(target, facts, reference), load_target(reference, facts, target)
    if functions[0] is functions[1] and not settings.against_single_device:
        raise TargetError(
            f"{find_target_name(target)} is its own reference, so nothing can differ",
            fix=say(
                "name another function, or add ",
                Option("against-single-device"),
                " to compare it with itself on one device",
            ),
        )
    all_facts = complete_target_facts(*functions, facts)
    check_devices_seen(all_facts)
    _check_scale(settings.scale, all_facts)
    return functions


def _count_devices(program: Lowered) -> int:
    return max(program.seen.device_count, program.mesh.size if program.mesh is not None else 1)


def _is_decided_by_devices(found: Analysis) -> bool:
    """Returns whether a collective may be in a branch or a loop that each device decides for itself."""
    return bool(found.unmodelled) or any(collective.executions_bound != "exact" for collective in found.collectives)


def _check_names(ignore: Collection[str]) -> None:
    for name in ignore:
        if name not in RULE_NAMES:
            raise NotationError(
                f"a verification has no finding named {name!r}",
                fix=did_you_mean(name, RULE_NAMES, f"they are {', '.join(RULE_NAMES)}", most=2),
            )


def _check_scale(scale: Mapping[str, int], facts: TargetFacts) -> None:
    for letter in scale:
        if letter not in facts.dims:
            raise NotationError(
                f"the target's dimensions do not use the letter {letter!r}",
                why=f"its letters are {', '.join(facts.dims)}" if facts.dims else "its argument types have no letters",
                fix="write its argument types with letters, such as 'bf16[B@X,D]', and their sizes as dims",
            )


def _check_ranges(ranges: Mapping[str, Range], types: Mapping[str, Any]) -> None:
    from hloscope.verification.job import check_range

    for name, bounds in ranges.items():
        if name not in types:
            raise NotationError(
                f"the target has no argument {name!r}",
                fix=did_you_mean(name, types, f"it has {', '.join(types)}", most=2),
            )
        low, high = bounds
        if not isinstance(low, str) and not isinstance(high, str):
            check_range(name, types[name].dtype, (low, high))
