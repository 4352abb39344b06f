"""The one path: a request from any front door is resolved here, once, and followed to its result.

The command line, Python, the pytest plugin and the processes of a check differ in the options of a target, in the
display of progress and in the destination of the result (`FrontDoor`). The kinds of targets, and the work on them, are
the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from hloscope.analysis.analyze import is_from_tpu
from hloscope.analysis.groups import infer_mesh
from hloscope.analysis.totals import GUESS
from hloscope.base import calls
from hloscope.base.calls import has_value
from hloscope.base.documents import read_document
from hloscope.base.errors import (
    Command,
    HloscopeError,
    MeshError,
    NotationError,
    Option,
    SliceError,
    TargetError,
    make_missing_file_error,
    say,
)
from hloscope.base.outputs import check_hlo_file, write_text
from hloscope.base.progress import StageDisplay, show_waiting
from hloscope.base.units import pluralize
from hloscope.compile.dumps import ModuleFacts, find_dumped_module, read_module_facts
from hloscope.compile.hlo_files import is_hlo_target, read_hlo, split_module
from hloscope.compile.target import OPTIONS_BY_NAME, ProgramOptions, TargetFacts, find_target_name, make_facts
from hloscope.hlo import HloModule, select_module_text
from hloscope.judge.selection import DEFAULT_SELECTION, RuleSelection
from hloscope.model import Analysis
from hloscope.model.capture import Capture, CompiledProgram, Mesh
from hloscope.model.vocabulary import CompileStage
from hloscope.tpu.slices import Slice, override_chip

if TYPE_CHECKING:
    from hloscope.compile.functions import Function


Target: TypeAlias = Callable[..., Any] | str | Path | Analysis
"""What is checked or compared: a program as for `analyze`, or an analysis."""

# ---- HLO text as a target: reading it, the options that apply to it, and the slice that it is assumed to run on


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A target that is already compiled.

    Attributes:
        name: The target as the user named it.
        text: Its HLO text.
        facts: Its options: the mesh, the slice, the axes over DCN and all others that apply to text.
        dumped: Further facts from its dump, or from JAX's compiled program; None if there is only the text.
        is_foreign: Whether only the text is known, so that the names of axes and the TPU generation may be guessed.
    """

    name: str
    text: str
    facts: TargetFacts = field(default_factory=TargetFacts)
    dumped: ModuleFacts | None = None
    is_foreign: bool = True


_JAX_STAGES = ("Traced", "Lowered", "Compiled", "Exported")


def check_target(target: Any, name: str = "target") -> Any:
    """Checks that a target is of a known kind, and returns it; any path as a `Path`.

    Raises:
        TargetError: It is of an unknown kind.
    """
    if isinstance(target, os.PathLike) and not callable(target):  # mocks are both
        path = os.fspath(target)
        if isinstance(path, str):
            return Path(path)
    elif isinstance(target, str) and target.lstrip().startswith("HloModule") and "\n" in target:
        raise TargetError(
            f"{name} must be a name or a file, and is HLO text itself",
            fix="write hloscope.analyze_text(text), or save it",
        )
    elif callable(target) or isinstance(target, str) or _is_jax_stage(target):
        return target
    raise TargetError(
        f"{name} must be a function, its name or a file, not {calls.format_value(target)}",
        fix='write hloscope.analyze(step, …), "model.py:step" or "step.hlo"',
    )


def _is_jax_stage(target: object) -> bool:
    """Returns whether this is an object that JAX makes from a function, without importing JAX."""
    return any(base.__module__.startswith("jax.") and base.__name__ in _JAX_STAGES for base in type(target).__mro__)


def read_text(target: Any, facts: TargetFacts) -> Text:
    """Reads a target that is already compiled: a file of HLO, or a `jax.stages.Compiled`.

    Args:
        target: The file, which may name one of its modules, or the object.
        facts: Its options.

    Raises:
        TargetError: The file does not exist or cannot be read.
    """
    if isinstance(target, str | Path):
        return Text(name=str(target), text=read_hlo_text(target), facts=facts, dumped=read_dump_facts(target))
    from hloscope.compile.jax_targets import read_compiled_facts

    name, text, mesh, known = read_compiled_facts(target)
    if facts.mesh is None and mesh:
        facts = replace(facts, mesh=mesh)
    if facts.slice is None and known.slice is not None and known.slice.slice_count > 1:
        facts = replace(facts, slice=known.slice.name)  # the text is of one slice: the mesh gives their number
    return Text(name=name, text=text, facts=facts, dumped=known, is_foreign=False)


def is_compiled(target: object) -> bool:
    """Returns whether this is a `jax.stages.Compiled`, without importing JAX."""
    return any(f"{base.__module__}.{base.__qualname__}" == "jax._src.stages.Compiled" for base in type(target).__mro__)


def make_capture(text: str, module: HloModule, facts: TargetFacts, chosen: Slice | None, *, name: str) -> Capture:
    """Makes the capture of a program from its text alone.

    Args:
        text: The text.
        module: The parsed text.
        facts: The mesh, the axes over DCN and the costs of kernels.
        chosen: The slice that the program is meant for.
        name: File name used in messages.

    Raises:
        MeshError: The mesh does not have as many devices as the program.
        SliceError: The slice has fewer devices than the program.
    """
    sizes = facts.mesh or {}
    mesh = Mesh(axis_names=tuple(sizes), axis_sizes=tuple(sizes.values())) if sizes else None
    per_slice = module.device_count
    slices = _count_slices(text, per_slice, mesh, chosen)
    _check_devices(name, slices, module, mesh, chosen)
    return Capture(
        compiled=CompiledProgram(
            text=text,
            memory_bytes={},
            slice_of_partition=_assign_partitions(facts, slices),
            stage=CompileStage.TEXT,
        ),
        slice=chosen,
        slice_chosen_by="user",
        used_devices=per_slice * slices,
        mesh=mesh,
        devices_per_slice=per_slice if slices > 1 else None,
        kernel_costs=facts.kernel_costs,
    )


def read_dump_facts(target: str | Path) -> ModuleFacts | None:
    """Reads the facts in a dump about one of its files, without JAX; None if the file is not in a dump."""
    module = find_dumped_module(target)
    if module is None:
        return None
    beside = read_module_facts(module, on_the_way=False)
    if module.as_jax_lowered_it is None and module.before_propagation is None:
        return beside
    note = say(
        "for reasons, analyze the dump's folder: ",
        Command("analyze", (str(module.path.parent), Option("only", module.prefix))),
    )
    return replace(beside, notes=(*beside.notes, note))


def add_dump_facts(
    program: Capture, module: HloModule, beside: ModuleFacts, facts: TargetFacts, *, name: str
) -> Capture:
    """Adds the facts of a dump to a program that is known by its text; the user's options take precedence.

    Args:
        program: The program, as known by its text.
        module: The parsed text.
        beside: The facts from its dump, or from JAX's compiled program.
        facts: The mesh, the axes over DCN and the figures of the chip.
        name: File name used in messages.

    Raises:
        SliceError: An override of the chip's figures is invalid.
        MeshError: The mesh does not have as many devices as the program.
    """
    said, notes = beside.slice, list(beside.notes)
    if program.slice is None and said is not None:
        if said.devices_per_slice < module.device_count:
            notes.append(
                f"{_WHO[beside.said_by]} says {said.name}, which has {said.device_count} devices, but the program is "
                f"for {module.device_count}: it is not priced"
            )
        else:
            chosen = override_chip(said, facts.chip_overrides or ())
            program = make_capture(program.compiled.text, module, facts, chosen, name=name)
            program = replace(program, slice_chosen_by=beside.said_by)
    is_own = program.slice is not None and program.slice_chosen_by == beside.said_by
    is_one = is_own and said is not None and said.slice_count == 1
    compiled = replace(
        program.compiled,
        memory_bytes=beside.memory_bytes,
        partitioned=beside.partitioned,
        shardy=beside.shardy,
        shardy_as_written=beside.shardy_as_written,
        device_ids=beside.device_ids if is_one and len(beside.device_ids) == module.device_count else (),
    )
    mesh = program.mesh or beside.mesh_of(program.used_devices)
    return replace(program, compiled=compiled, mesh=mesh, notes=(*program.notes, *notes))


_WHO = {"dump": "the dump", "compiled": "the compiled program"}
_NO_TIMES = say(
    "it is unknown what the text was compiled for, so there are no times: name it, for example ",
    Option("slice", "v5e:2x4"),
)


def add_guesses(program: Capture, module: HloModule, facts: TargetFacts, *, is_said: bool = False) -> Capture:
    """Adds guesses for unknown axis names and for an unknown slice to a program, if its text allows them.

    Args:
        program: The program without guesses.
        module: The parsed text.
        facts: The figures of the chip.
        is_said: Whether a slice is given, even if the program cannot be priced on it.

    Raises:
        SliceError: An override of the chip's figures is invalid.
    """
    mesh = infer_mesh(module) if program.mesh is None else None
    if mesh is not None:
        program = replace(program, mesh=mesh, notes=(*program.notes, _describe_axis_names(mesh)))
    if program.slice is not None or is_said:
        return program
    if not is_from_tpu(module):
        return program
    from hloscope.cost.price import guess_slice

    guess = guess_slice(module)
    if guess is None:
        return replace(program, notes=(*program.notes, _NO_TIMES))
    chosen, (generation, _, block) = guess.slice, guess.slice.name.partition(":")
    note = say(
        f"{generation} is guessed from the text: {guess.because}; {block} is the usual block of {chosen.chip_count} "
        "chips; set it with ",
        Option("slice"),
    )
    chosen = override_chip(chosen, facts.chip_overrides or ())
    return replace(program, slice=chosen, slice_chosen_by=GUESS, notes=(*program.notes, note))


def _describe_axis_names(mesh: Mesh) -> str:
    """A note that the axis names are hloscope's, and how to replace them."""
    one = len(mesh.axis_names) == 1
    named = dict(zip("XYZUVW", mesh.axis_sizes, strict=False))
    return say(
        f"the text does not name its mesh axes: {'axis_0 is a name' if one else 'axis_0, axis_1 and so on are names'} "
        f"that hloscope gave to its device groups; choose {'another' if one else 'others'} with ",
        Option("mesh", named),
    )


def refuse_beside_text(
    target: object, said: Mapping[str, Any], called: Callable[[str], str] = lambda name: name
) -> dict[str, Any]:
    """Refuses options that apply only to functions; returns those that apply to HLO text.

    Args:
        target: HLO text, as the user named it.
        said: Values by option; None and empty values count as not given.
        called: Returns the user's name for an option.

    Raises:
        TargetError: An option that applies only to functions is given.
    """
    of_text = {name: value for name, value in said.items() if name in OPTIONS_BY_NAME and OPTIONS_BY_NAME[name].of_text}
    for name, value in said.items():
        if name not in of_text and has_value(value):
            shown = target if isinstance(target, str | Path) else find_target_name(target)
            raise TargetError(
                f"{called(name)} does not apply to HLO text", why=f"{shown} is already compiled", fix="leave it out"
            )
    return of_text


def refuse_beside_analysis(given: Mapping[str, Any]) -> None:
    """Refuses options that cannot apply to a program that is already analyzed.

    Args:
        given: Values by the user's names for them; None and empty values count as not given.

    Raises:
        TargetError: Such an option is given.
    """
    name = next((name for name, value in given.items() if has_value(value)), None)
    if name is not None:
        raise TargetError(
            f"{name} does not apply to an analysis",
            why="its program is already analyzed",
            fix="pass the program itself",
        )


def refuse_source_root(name: str, root: object) -> None:
    """Refuses a folder of source files for a function, since only HLO text needs one.

    Args:
        name: The user's name for the option.
        root: The folder; None if none is given.

    Raises:
        TargetError: A folder is given.
    """
    if root is not None:
        raise TargetError(
            f"{name} is for HLO text", why="the source files of a function are always read", fix="leave it out"
        )


def read_report(path: Path, name: str) -> Analysis:
    """Reads an analysis that was written as JSON.

    Args:
        path: The file.
        name: The user's name for it.

    Raises:
        HloscopeError: The file cannot be read, or is not such a document.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise HloscopeError(f"{name} is not valid JSON", why=str(error)) from None
    return read_document(Analysis, document, name=name, key="collectives")


def read_hlo_text(target: str | Path) -> str:
    """The HLO text of a file, or of one of its modules: `many.hlo#step`.

    Raises:
        TargetError: The file does not exist or cannot be read.
        HloParseError: No module has that name, or several have.
    """
    path, module = split_module(target)
    if not os.path.exists(path):
        raise make_missing_file_error(path, is_hlo_target)
    text = read_hlo(path)
    return text if module is None else select_module_text(text, module, name=path)


_MAX_DEVICES = 1 << 20
"""More devices than any program is compiled for; a header with more is damaged."""


def _assign_partitions(facts: TargetFacts, slices: int) -> tuple[int, ...]:
    """The slice of each mesh position according to `dcn`; empty if it follows from the order of the mesh."""
    if slices == 1 or not facts.dcn or not facts.mesh:
        return ()
    from hloscope.compile.multislice import assign_slices, choose_slices_per_axis

    across = choose_slices_per_axis(facts.mesh, slices, facts.dcn, [])
    return tuple(int(number) for number in assign_slices(tuple(facts.mesh.values()), across).flat)


def _count_slices(text: str, per_slice: int, mesh: Mesh | None, chosen: Slice | None) -> int:
    """The number of slices that a program spans; its text has the partitions of one slice only."""
    if chosen is not None and chosen.slice_count > 1:
        return chosen.slice_count
    if mesh is not None and per_slice > 0 and "_xla_megascale" in text and mesh.device_count % per_slice == 0:
        return mesh.device_count // per_slice
    return 1


def _check_devices(name: str, slices: int, module: HloModule, mesh: Mesh | None, chosen: Slice | None) -> None:
    """Checks a mesh and a slice against the header of a text.

    Raises:
        HloscopeError: The text claims more devices than any program has, or none.
        MeshError: The mesh does not have as many devices as the program.
        SliceError: The slice has fewer devices than the program.
    """
    devices = module.device_count * slices
    why = f"its header says num_partitions={module.num_partitions}, replica_count={module.replica_count}"
    why += f", which are those of one of {slices} slices" if slices > 1 else ""
    if not 0 < devices <= _MAX_DEVICES:
        raise HloscopeError(
            f"{name} claims to be a program for {pluralize(devices, 'device')}", why=why, fix="check its header"
        )
    says = devices > 1 or "num_partitions" in module.header
    if mesh is not None and says and mesh.device_count != devices:
        raise MeshError(
            f"the mesh has {pluralize(mesh.device_count, 'device')}, but {name} is a program for {devices}",
            why=why,
            fix="pass the mesh that the program was compiled for",
        )
    if chosen is not None and not chosen.is_attached and chosen.device_count < devices:
        raise SliceError(
            f"{chosen.name} has {pluralize(chosen.device_count, 'device')}, but {name} is a program for {devices}",
            why=why,
            fix="name a slice that is large enough",
        )


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontDoor:
    """The differences between the ways to make a request; by default those of a call in Python.

    Attributes:
        read: Converts the options of a target, as they are written there, to facts.
        prepare: Called with the facts of a function before JAX is imported.
        quiet: A context in which the user's code runs without disturbing the report.
        progress: A context that displays the stage of the work.
        begin: Called with a subject of reports and its records, which are known while the rest is still computed.
        say: Prints a message while the progress is displayed.
        write_hlo: Writes compiled HLO to a file.
        called: The name of an option there.
        standard_input: Reads the HLO text of the target `-`; None if there is no such target.
    """

    read: Callable[[Mapping[str, Any]], TargetFacts] = lambda said: make_facts(**said)
    prepare: Callable[[TargetFacts], None] = lambda _: None
    quiet: Callable[[], AbstractContextManager[None]] = nullcontext
    progress: Callable[[], AbstractContextManager[StageDisplay]] = show_waiting
    begin: Callable[[str, Any, StageDisplay], None] = lambda _subject, _found, _stage: None
    say: Callable[[StageDisplay, str], None] = lambda stage, text: stage(text)
    write_hlo: Callable[[str, str], None] = lambda text, path: write_text(text, path, "the HLO")
    called: Callable[[str], str] = lambda name: name
    standard_input: Callable[[], tuple[str, str]] | None = None


PYTHON = FrontDoor()


class FunctionOptions(ProgramOptions, total=False):
    """Options for functions, without those of rules."""

    slice: str | None
    timeout_s: float | None


STAGE = "stage"
"""The option for the stage of a compile that is enough, in Python."""


def parse_stage(value: object) -> CompileStage:
    """Reads the stage of a compile that is enough: `scheduled` or `compiled`.

    Raises:
        NotationError: It is neither.
    """
    return CompileStage(calls.choice(STAGE, value, (CompileStage.SCHEDULED, CompileStage.COMPILED)))


PROFILE_PROGRAM = "the program in the profile"
"""The target of a comparison that names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trying:
    """The wish to try changes, and its time limit.

    Attributes:
        wanted: False never tries any.
        seconds: Time limit for all trials; None for what the program's own compile allows.
    """

    wanted: bool = True
    seconds: float | None = None


def parse_trying(try_s: object, trials: bool) -> Trying:
    """Reads whether to try changes, and for how long; by default not where the environment variable `CI` is set.

    Raises:
        NotationError: The time is invalid, or contradicts `trials`.
    """
    span = None if try_s is None else calls.seconds("try_s", try_s, example='try_s=300, or try_s="5m"')
    if span is not None and (not trials or not span):
        raise NotationError(
            "try_s=0 tries nothing" if trials else "try_s and trials=False contradict each other",
            fix="pass seconds, such as try_s=300, or only trials=False",
        )
    return Trying(wanted=trials and (span is not None or not os.environ.get("CI")), seconds=span)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A user's question about a target.

    Attributes:
        target: A function or its name, an object that JAX makes from one, HLO text or a folder of dumps; any path as a
            `Path`.
        said: The options of the target by name, as the front door takes them.
        door: The front door.
        judging: The rules to run and the accepted findings.
        source_root: For HLO text, the folder of its source files.
        save_hlo: For functions, the file to write the compiled HLO to.
        only: For folders, the module to analyze.
        configured: The options of the target in the targets file.
        helpers: The files and functions that the project calls helpers.
        wanted: For functions, the stage of the compile that is enough.
        is_enough: As for `Function`.
        begins: Whether the door is given what is known of a scheduled function while its machine code is awaited.
        trying: Whether to try to turn a function's costliest decision.
        is_text: Whether the target is already compiled: HLO text, or a `jax.stages.Compiled`.
        is_folder: Whether the target is a folder of dumps.
    """

    target: Any
    said: Mapping[str, Any] = field(default_factory=dict)
    door: FrontDoor = PYTHON
    judging: RuleSelection = DEFAULT_SELECTION
    source_root: str | Path | None = None
    save_hlo: str | None = None
    only: str | None = None
    configured: TargetFacts | None = None
    helpers: tuple[str, ...] = ()
    wanted: CompileStage = CompileStage.COMPILED
    is_enough: Callable[[Capture], bool] = lambda _: True
    begins: bool = False
    trying: Trying = Trying(wanted=False)

    is_text: bool = field(init=False, default=False)
    is_folder: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        target = check_target(self.target)
        is_input = target == "-" and self.door.standard_input is not None
        found = {"target": target, "is_folder": isinstance(target, str | Path) and os.path.isdir(target)}
        found["is_text"] = is_input or is_compiled(target) or is_hlo_target(target)
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def facts(self) -> TargetFacts:
        """The options of a function as facts.

        Raises:
            HloscopeError: An option is invalid.
        """
        facts = self.door.read(self.said)
        return facts if self.configured is None else facts.over(self.configured)

    def facts_of_text(self) -> TargetFacts:
        """The options of HLO text as facts.

        Raises:
            HloscopeError: An option is invalid, or applies only to functions.
        """
        is_early = self.wanted is CompileStage.SCHEDULED
        named = {**self.said, "save_hlo": self.save_hlo, STAGE: self.wanted if is_early else None}
        return self.door.read(refuse_beside_text(self.target, named, self.door.called))


def follow(
    request: Request,
    *,
    of_function: Callable[[Function, StageDisplay], T],
    of_text: Callable[[Text], T] | None = None,
    compiles: bool = True,
) -> T:
    """Resolves the target of a request, and passes it to the function for its kind.

    Args:
        request: The request.
        of_function: Called with a function, once everything is ready to import it.
        of_text: Called with HLO text, which needs no JAX; None if the caller has refused text.
        compiles: Whether a function is compiled for a slice, so that a compiler starts while it is imported and traced.

    Raises:
        HloscopeError: The target cannot be read, or an option does not apply to it.
    """
    door = request.door
    if of_text is not None and request.is_text:
        with door.quiet():
            return of_text(_read_request_text(request))
    target = request.target
    if isinstance(target, Path):
        raise TargetError(f"{target} does not name a function", fix=f"write '{target}:FUNCTION'")
    refuse_source_root(door.called("source_root"), request.source_root)
    if request.save_hlo is not None:
        check_hlo_file(request.save_hlo)
    from hloscope.base.store import open_default_store
    from hloscope.compile.functions import Function

    facts, store, captured = request.facts(), open_default_store(), list["Capture"]()
    if compiles and find_spec("jax") is not None:
        from hloscope.compile.client import start_worker_ahead

        start_worker_ahead(target, facts.slice, store)
    door.prepare(facts)
    try:
        with door.quiet(), door.progress() as stage:
            function = Function(
                target=target,
                facts=facts,
                stage=stage,
                store=store,
                when_compiled=captured.append,
                wanted=CompileStage.SCHEDULED if request.begins else request.wanted,
                is_enough=(lambda _: False) if request.begins else request.is_enough,
            )
            return of_function(function, stage)
    finally:
        if captured and request.save_hlo is not None:
            door.write_hlo(captured[0].compiled.text, request.save_hlo)


def _read_request_text(request: Request) -> Text:
    facts = request.facts_of_text()
    if request.target == "-" and request.door.standard_input is not None:
        name, text = request.door.standard_input()
        return Text(name=name, text=text, facts=facts)
    return read_text(request.target, facts)
