"""The one path: a request from any front door is resolved here, once, and followed to its result.

The command line, Python, the pytest plugin and the processes of a check differ in what they say of a target, in what
they show meanwhile and in where the result goes (`FrontDoor`). What a target is, and what happens to it, is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hloscope.api.texts import Text, is_compiled, meant, refuse_beside_text, refuse_source_root, text_of
from hloscope.errors import TargetError
from hloscope.outputs import check_hlo_file, write_text
from hloscope.program.dumps import is_folder
from hloscope.program.files import is_hlo_target
from hloscope.program.functions import Function
from hloscope.program.target import TargetFacts, make_facts
from hloscope.progress import StageDisplay, show_waiting
from hloscope.rules.selection import DEFAULT_SELECTION, RuleSelection
from hloscope.store import open_default_store

if TYPE_CHECKING:
    from hloscope.program.capture import Capture

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Generic[T_co]):
    """The answer to a request: partial while more of it is still looked for, then whole.

    Attributes:
        found: The records.
        subject: The kind of report that shows them: a key of `hloscope.report.formats.FORMATS`.
        is_whole: Whether nothing is still looked for.
    """

    found: T_co
    subject: str
    is_whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontDoor:
    """The differences between the ways to make a request; by default those of a call in Python.

    Attributes:
        read: From the options of a target, as they are written there, to facts.
        prepare: Called with the facts of a function before JAX is imported.
        quiet: A context in which the user's code runs without disturbing the report.
        progress: A context that displays the stage of the work.
        begin: Called with a partial result.
        say: Says something while the progress is displayed.
        write_hlo: Writes compiled HLO to a file.
        called: The name of an option there.
        standard_input: Reads the HLO text of the target `-`; None if there is no such target.
    """

    read: Callable[[Mapping[str, Any]], TargetFacts] = lambda said: make_facts(**said)
    prepare: Callable[[TargetFacts], None] = lambda _: None
    quiet: Callable[[], AbstractContextManager[None]] = nullcontext
    progress: Callable[[], AbstractContextManager[StageDisplay]] = show_waiting
    begin: Callable[[Result[Any], StageDisplay], None] = lambda _result, _stage: None
    say: Callable[[StageDisplay, str], None] = lambda stage, text: stage(text)
    write_hlo: Callable[[str, str], None] = lambda text, path: write_text(text, path, "the HLO")
    called: Callable[[str], str] = lambda name: name
    standard_input: Callable[[], tuple[str, str]] | None = None


PYTHON = FrontDoor()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a user asks about.

    Attributes:
        target: What the user means: a function or its name, what JAX makes of one, HLO text or a folder of dumps.
        said: The options of the target by name, as the front door takes them.
        door: The front door.
        judging: Which rules run and what is accepted.
        source_root: For HLO text, the folder of its source files.
        save_hlo: For functions, the file to write the compiled HLO to.
        only: For folders, the module to analyze.
        configured: What the targets file says of the target.
        helpers: The files and functions that the project calls helpers.
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

    @property
    def is_text(self) -> bool:
        """Whether the target is already compiled: HLO text, or a `jax.stages.Compiled`."""
        is_input = self.target == "-" and self.door.standard_input is not None
        return is_input or is_hlo_target(self.target) or is_compiled(self.target)

    @property
    def is_folder(self) -> bool:
        """Whether the target is a folder of dumps."""
        return is_folder(self.target)

    def facts(self) -> TargetFacts:
        """What is said of a function, with everything made ready for it to be imported.

        Raises:
            HloscopeError: An option is invalid, or JAX is not installed.
        """
        facts = self.door.read(self.said)
        facts = facts if self.configured is None else facts.over(self.configured)
        self.door.prepare(facts)
        return facts

    def facts_of_text(self) -> TargetFacts:
        """What is said of HLO text.

        Raises:
            HloscopeError: An option is invalid, or only a function can obey it.
        """
        named = {**self.said, "save_hlo": self.save_hlo}
        return self.door.read(refuse_beside_text(self.target, named, self.door.called))


def follow(
    request: Request, *, of_function: Callable[[Function, StageDisplay], T], of_text: Callable[[Text], T] | None = None
) -> T:
    """Resolves the target of a request, and does with it whatever is asked.

    Args:
        request: The request.
        of_function: Given a function, once everything is ready to import it.
        of_text: Given HLO text, which needs no JAX; None if the caller has refused text.

    Raises:
        HloscopeError: The target cannot be read, or an option does not apply to it.
    """
    door = request.door
    if of_text is not None and request.is_text:
        with door.quiet():
            return of_text(_read(request))
    target = meant(request.target)
    if isinstance(target, Path):
        raise TargetError(f"{target} does not name a function", fix=f"write '{target}:FUNCTION'")
    refuse_source_root(door.called("source_root"), request.source_root)
    if request.save_hlo is not None:
        check_hlo_file(request.save_hlo)
    facts, captured = request.facts(), list["Capture"]()
    try:
        with door.quiet(), door.progress() as stage:
            function = Function(
                target=target, facts=facts, stage=stage, store=open_default_store(), when_compiled=captured.append
            )
            return of_function(function, stage)
    finally:
        if captured and request.save_hlo is not None:
            door.write_hlo(captured[0].compiled.text, request.save_hlo)


def _read(request: Request) -> Text:
    facts = request.facts_of_text()
    if request.target == "-" and request.door.standard_input is not None:
        name, text = request.door.standard_input()
        return Text(name=name, text=text, facts=facts)
    return text_of(request.target, facts)
