"""`analyze` in its three forms: of a target, of a function with its facts in one piece, of HLO text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from hloscope.analysis.model import Analysis, Mesh
from hloscope.analysis.placement import Placement
from hloscope.analysis.places import Sources
from hloscope.api.build_analysis import analysis_of, finished, slice_fact
from hloscope.api.python_words import in_python_words
from hloscope.errors import HloscopeError, MeshError, SliceError, TargetError
from hloscope.hardware.overrides import overridden
from hloscope.hardware.slices import Slice, parse_slice
from hloscope.hlo import HloModule
from hloscope.program.files import names_hlo, read_hlo, split_module
from hloscope.program.loading import loaded, name_of
from hloscope.program.options import BY_NAME
from hloscope.program.target import TargetFacts, TargetOptions, check_names, make_facts, with_options
from hloscope.rules.selection import DEFAULT_SELECTION, RuleSelection, make_selection
from hloscope.store import Store, default_store

if TYPE_CHECKING:
    from hloscope.program.capture import Capture

T = TypeVar("T")
Stage = Callable[[str], None]
KernelCosts = Mapping[str, tuple[float, float]] | Sequence[str]
"""FLOPs and bytes by the kernel's name, or texts such as `splash=7e11,2e8`."""


@in_python_words
@with_options(TargetOptions)
def analyze(
    target: Callable[..., Any] | str | Path,
    args: Any = None,
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    source_root: str | Path | None = None,
    **options: Unpack[TargetOptions],
) -> Analysis:
    """Compiles a function for a TPU slice that nobody needs to have, and says what really moves.

    What is not given here is taken from `@hloscope.target` and then from the function itself. A program that was
    compiled before is taken from the user's cache, unless `HLOSCOPE_CACHE=0` is set.

    Example:
        >>> found = hloscope.analyze(step, ("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]"), mesh={"X": 4, "Y": 2})
        >>> [c.kind for c in found.collectives]
        ['all-reduce']

    Args:
        target: A function (plain, jitted or shard_mapped), `module:fn`, `file.py:fn`, or the path of a file of HLO,
            which may be compressed or serialized.
        args: One entry per positional argument: a notation (`bf16[8@X,2048@Y]`), a pytree of notations,
            ShapeDtypeStructs or arrays, or a callable that returns one of these.
        select: Names of the rules to run; all when empty.
        ignore: Names of rules not to run.
        source_root: For HLO text: the folder in which files that it names may be read, for comments that accept
            findings.
        {options}

    Returns:
        The analysis; `to_dict()` gives plain data.

    Raises:
        HloscopeError: Bad input, or JAX or the compiler refuses the program.
    """
    check_names(options, "analyze")
    of_rules: dict[str, Any] = {name: options[name] for name in ("allow", "rule_options") if name in options}
    rules = make_selection(select=select, ignore=ignore, source_root=source_root, **of_rules)
    described = {"args": args, **{name: value for name, value in options.items() if name not in of_rules}}
    if isinstance(target, str | Path) and names_hlo(target):
        beside = beside_text(target, described)
        return analyze_text(hlo_text(target), name=str(target), judging=rules, **beside)
    if isinstance(target, Path):
        raise TargetError(f"{target} names no function", fix=f"write '{target}:FUNCTION'")
    refuse_source_root("source_root", source_root)
    return analyze_function(target, make_facts(**described), store=default_store(), judging=rules)


@in_python_words
def analyze_function(
    target: Callable[..., Any] | str,
    facts: TargetFacts,
    *,
    stage: Stage = lambda _: None,
    store: Store | None = None,
    judging: RuleSelection = DEFAULT_SELECTION,
) -> Analysis:
    """`analyze` for a function, with its facts in one piece, a progress display and a store of compiles.

    Raises:
        HloscopeError: Bad input, or JAX or the compiler refuses the program.
    """
    captured = capture_target(target, facts, stage=stage, store=store)
    stage("reading the compiled program")
    return analysis_of(captured, name_of(target), judging)


def capture_target(
    target: Callable[..., Any] | str,
    facts: TargetFacts,
    *,
    stage: Stage = lambda _: None,
    store: Store | None = None,
) -> Capture:
    """Loads, lowers and compiles a function: everything that only JAX and the compiler know.

    With a `store`, a program that was compiled before is taken from there.

    Raises:
        HloscopeError: Bad input, or JAX or the compiler refuses the program.
    """
    from hloscope.compiler.client import start_ahead

    start_ahead(name_of(target), facts.slice, store)

    def compiled(function: Callable[..., Any], known: TargetFacts) -> Capture:
        from hloscope.program.compiling import capture  # imports JAX, which takes its time

        return capture(function, known, name=name_of(target), stage=stage, store=store)

    captured = with_function(target, facts, compiled, stage)
    return replace(captured, notes=(*captured.notes, *_unused_letters(facts, captured)))


def with_function(
    target: Callable[..., Any] | str,
    facts: TargetFacts,
    use: Callable[[Callable[..., Any], TargetFacts], T],
    stage: Stage = lambda _: None,
) -> T:
    """Imports a target and does something with its function, while no other call does.

    Args:
        target: The target.
        facts: What was said of it.
        use: Is given the function and its facts, those of its decorator included. It sees as many devices as the
            program needs, and may be called again where these turn out to be others.
        stage: Told what is happening.

    Raises:
        HloscopeError: Bad input.
    """
    from hloscope.program.devices import check_attached, on_enough_devices
    from hloscope.program.importing import modules_of
    from hloscope.program.surroundings import one_call
    from hloscope.program.target import attached_facts

    def work() -> T:
        stage("importing")
        function = loaded(target, facts)
        known = facts.over(attached_facts(function))
        check_attached(known)
        with modules_of(function):
            return use(function, known)

    with one_call():
        return on_enough_devices((target,), facts, work)


def _unused_letters(facts: TargetFacts, captured: Capture) -> tuple[str, ...]:
    """A note on sizes of letters that no argument's type has, which is most likely a slip of the pen."""
    used = {letter for array in captured.arguments for letter in array.letters or ()}
    unused = ", ".join(letter for letter in facts.dims if letter not in used)
    return (f"no argument's type has the letter {unused}, whose size is given",) if unused else ()


def analyze_text(
    text: str,
    *,
    name: str = "-",
    mesh: Any = None,
    slice: str | None = None,
    dcn: Mapping[str, int] | str | None = None,
    chip_overrides: Sequence[str] = (),
    kernel_costs: KernelCosts = (),
    judging: RuleSelection = DEFAULT_SELECTION,
    source_root: str | Path | None = None,
) -> Analysis:
    """Says what moves in a compiled program's HLO text; needs no JAX.

    Args:
        text: What `compiled.as_text()` prints, or a dump of the final module. Of a text that is cut off, what is whole
            is read, and its totals are marked "at least".
        name: The file's name, for messages.
        mesh: Axis name to size, major first; by default the names in the text, else raw groups are shown.
        slice: The slice that the program is meant for.
        dcn: For several slices: the mesh axes that cross DCN and how many slices each spans.
        chip_overrides: Figures of the slice's chip, as `name=value` or as TOML files.
        kernel_costs: FLOPs and bytes of Pallas kernels by name.
        judging: Which rules run and what is accepted, as `hloscope.rules.selection.make_selection` makes it.
        source_root: The folder in which files that the text names may be read, for comments that accept findings.

    Raises:
        HloParseError: The text is not HLO.
        MeshError: The mesh does not have as many devices as the program.
        SliceError: The slice has fewer devices than the program.
    """
    from hloscope.hlo import parse_module

    facts = make_facts(mesh=mesh, slice=slice, dcn=dcn, kernel_costs=kernel_costs)
    chosen = overridden(parse_slice(slice) if slice else None, chip_overrides)
    if source_root is not None:
        judging = replace(judging, sources=Sources(root=Path(source_root)))
    return analyze_parsed(parse_module(text, name=name), text, facts, chosen, name=name, judging=judging)


def analyze_parsed(
    module: HloModule,
    text: str,
    facts: TargetFacts,
    chosen: Slice | None,
    *,
    name: str,
    judging: RuleSelection = DEFAULT_SELECTION,
) -> Analysis:
    """`analyze_text` for a text that is parsed already.

    Args:
        module: The parsed text.
        text: The text itself.
        facts: The mesh, the axes over DCN and what kernels cost.
        chosen: The slice that the program is meant for.
        name: The file's name, for messages.
        judging: Which rules run and what is accepted.

    Raises:
        MeshError: The mesh does not have as many devices as the program.
        SliceError: The slice has fewer devices than the program.
    """
    from hloscope.analysis import analyze_module
    from hloscope.cost import price_module
    from hloscope.why import unexplained

    axis_sizes = facts.mesh or {}
    user_mesh = Mesh(axis_names=tuple(axis_sizes), axis_sizes=tuple(axis_sizes.values())) if axis_sizes else None
    per_slice = module.num_partitions * module.replica_count
    slices = _slice_count(text, per_slice, user_mesh, chosen)
    _check_devices(name, per_slice * slices, module, user_mesh, chosen)
    found = analyze_module(
        module,
        target=name,
        mesh=user_mesh,
        devices_per_slice=per_slice if slices > 1 else None,
        placement=_placement_of_text(facts, slices),
    )
    if chosen is not None:
        hbm = chosen.chip.hbm_bytes_per_device if chosen.chip else None
        fact = slice_fact(chosen, "user", per_slice * slices)
        found = replace(found, slice=fact, memory=replace(found.memory, hbm_bytes=hbm))
        found = price_module(found, module, chosen, kernel_costs=facts.kernel_costs)
    return finished(unexplained(found), judging)


def refuse_beside_text(target: object, given: Mapping[str, Any]) -> None:
    """Refuses what only a function can obey.

    Args:
        target: HLO text, as the user named it.
        given: Values by the names that the user has for them; those that are None or empty are not given.

    Raises:
        TargetError: One of them is given.
    """
    for name, value in given.items():
        if value is not None and not (isinstance(value, str | tuple | Mapping) and not value):
            raise TargetError(
                f"{name} does not go with HLO text", why=f"{target} is compiled already", fix="leave it out"
            )


def beside_text(target: object, given: Mapping[str, Any]) -> dict[str, Any]:
    """What of a target's options goes with HLO text, by name.

    Raises:
        TargetError: One is given that only a function can obey.
    """
    refuse_beside_text(target, {name: value for name, value in given.items() if not BY_NAME[name].of_text})
    return {name: value for name, value in given.items() if BY_NAME[name].of_text}


def refuse_source_root(name: str, root: object) -> None:
    """Refuses, beside a function, what only HLO text needs.

    Args:
        name: What the user calls the folder.
        root: The folder; None where none was given.

    Raises:
        TargetError: One was given.
    """
    if root is not None:
        raise TargetError(f"{name} is for HLO text", why="the files of a function are read anyway", fix="leave it out")


def hlo_text(target: str | Path) -> str:
    """The HLO text of a file, or of the one of its modules that is named: `many.hlo#step`.

    Raises:
        TargetError: There is no such file, or it cannot be read.
        HloParseError: No module has that name, or several have.
    """
    path, module = split_module(target)
    if not Path(path).exists():
        raise TargetError(f"there is no file {path}")
    text = read_hlo(path)
    if module is None:
        return text
    from hloscope.hlo import module_text

    return module_text(text, module, name=path)


_MAX_DEVICES = 1 << 20
"""More than any program will be compiled for; a header that says more is damaged."""


def _placement_of_text(facts: TargetFacts, slices: int) -> Placement | None:
    """The slice of each mesh position, as `dcn` says; None leaves it to the order of the mesh."""
    if slices == 1 or not facts.dcn or not facts.mesh:
        return None
    from hloscope.program.several_slices import slice_of_position, slices_per_axis

    across = slices_per_axis(facts.mesh, slices, facts.dcn, [])
    return Placement(tuple(int(one) for one in slice_of_position(tuple(facts.mesh.values()), across).flat))


def _slice_count(text: str, per_slice: int, mesh: Mesh | None, chosen: Slice | None) -> int:
    """Slices that a program spans; its text holds the partitions of one slice only."""
    if chosen is not None and chosen.slice_count > 1:
        return chosen.slice_count
    if mesh is not None and per_slice > 0 and "_xla_megascale" in text and mesh.device_count % per_slice == 0:
        return mesh.device_count // per_slice
    return 1


def _check_devices(name: str, devices: int, module: HloModule, mesh: Mesh | None, chosen: Slice | None) -> None:
    """Checks a mesh and a slice against what a text says of itself.

    Raises:
        HloscopeError: The text claims more devices than any program has, or none.
        MeshError: The mesh does not have as many devices as the program.
        SliceError: The slice has fewer devices than the program.
    """
    why = f"its header says num_partitions={module.num_partitions}, replica_count={module.replica_count}"
    if not 0 < devices <= _MAX_DEVICES:
        raise HloscopeError(f"{name} claims to be a program for {devices} devices", why=why, fix="check its header")
    says = devices > 1 or "num_partitions" in module.header
    if mesh is not None and says and mesh.device_count != devices:
        raise MeshError(
            f"the mesh has {mesh.device_count} devices and {name} is a program for {devices}",
            why=why,
            fix="give the mesh that the program was compiled for",
        )
    if chosen is not None and not chosen.is_attached and chosen.device_count < devices:
        raise SliceError(
            f"{chosen.name} has {chosen.device_count} devices and {name} is a program for {devices}",
            why=why,
            fix="name a slice that is large enough",
        )
