"""Functions as targets: from a function or its name to its compiled program, in one call for each step of the way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from hloscope.base.units import pluralize
from hloscope.compile.target import TargetFacts, find_attached_facts, find_target_name
from hloscope.model.capture import Capture
from hloscope.model.vocabulary import CompileStage

if TYPE_CHECKING:
    from hloscope.base.store import Store
    from hloscope.compile.compiling import PendingCompile
    from hloscope.compile.lowering import Lowered

T = TypeVar("T")
_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A target that has to be traced and compiled, and the means to do so.

    Attributes:
        target: The function or its name, or what JAX made of it.
        facts: How to call and place it.
        stage: Called with what is happening, for a progress display.
        store: The compile cache; None for no cache.
        when_compiled: Called with the compiled program, before it is analyzed.
        wanted: The stage of the compile that is enough.
        is_enough: Called with the scheduled program if that is wanted; after False, its machine code is awaited.
        when_scheduled: Called with the scheduled program if its machine code is awaited, and takes long.
    """

    target: Callable[..., Any] | str
    facts: TargetFacts
    stage: Callable[[str], None] = lambda _: None
    store: Store | None = None
    when_compiled: Callable[[Capture], None] = lambda _: None
    wanted: CompileStage = CompileStage.COMPILED
    is_enough: Callable[[Capture], bool] = lambda _: True
    when_scheduled: Callable[[Capture], None] = lambda _: None

    @property
    def name(self) -> str:
        """The target as the user named it."""
        return find_target_name(self.target)


def captured_function(function: Function) -> tuple[Capture, PendingCompile]:
    """Compiles a function and returns the result with the compile itself.

    Raises:
        HloscopeError: The input is invalid, or JAX or the compiler rejects the program.
    """

    def add_notes(program: Capture) -> Capture:
        notes = (*program.notes, *_unused_letters(function.facts, program), *_left_open(function.facts, program))
        return replace(program, notes=notes)

    def compiled(itself: Callable[..., Any], known: TargetFacts) -> tuple[Capture, PendingCompile]:
        _, pending = begin_compile(function, itself, known)
        captured = pending.capture(
            function.stage,
            is_enough=function.is_enough,
            when_scheduled=lambda program: function.when_scheduled(add_notes(program)),
        )
        return captured, pending

    program, pending = with_function(function, compiled)
    program = add_notes(program)
    function.when_compiled(program)
    return program, pending


def begin_compile(
    function: Function,
    itself: Callable[..., Any],
    known: TargetFacts,
    *,
    when_lowered: Callable[[Lowered], None] = lambda _: None,
) -> tuple[Lowered, PendingCompile]:
    """Lowers a function and starts its compile.

    Args:
        function: The target.
        itself: The function itself.
        known: How to call and place it, with the facts of its decorator.
        when_lowered: Called with the lowered program before it is compiled; may reject it.

    Raises:
        HloscopeError: The input is invalid, or JAX rejects the program.
    """
    from hloscope.compile.compiling import start_compile  # both import JAX, which takes its time
    from hloscope.compile.lowering import lower

    lowered = lower(itself, known, name=function.name, stage=function.stage, store=function.store)
    when_lowered(lowered)
    return lowered, start_compile(lowered, stage=function.stage, store=function.store, wanted=function.wanted)


def with_function(function: Function, use: Callable[[Callable[..., Any], TargetFacts], T]) -> T:
    """Imports a target and does something with its function, while no other call does.

    Args:
        function: The target.
        use: Is given the function itself and its facts, those of its decorator included. It sees as many devices as the
            program needs, and may be called again where these turn out to be others.

    Raises:
        HloscopeError: The input is invalid.
    """
    from hloscope.compile.devices import check_devices_seen, run_on_enough_devices, show_all_of_slice
    from hloscope.compile.importing import enter_modules_of, isolate_call
    from hloscope.compile.jax_targets import convert_to_function
    from hloscope.compile.loading import load_target

    target, facts = function.target, function.facts
    attempts = count()

    def work() -> T:
        function.stage("importing")
        found = load_target(target, facts)
        known = facts.over(find_attached_facts(found))
        check_devices_seen(known)
        is_first = next(attempts) == 0 and isinstance(target, str)  # later ones have the number that the program needs
        with show_all_of_slice(known) if is_first else nullcontext():
            found, known = convert_to_function(found, known)
            with enter_modules_of(found):
                return use(found, known)

    with isolate_call():
        return run_on_enough_devices((target,), facts, work)


def _unused_letters(facts: TargetFacts, captured: Capture) -> tuple[str, ...]:
    """A note on sizes of letters that no argument's type has, which is most likely a slip of the pen."""
    used = {letter for array in captured.arguments or () for letter in array.letters or ()}
    unused = ", ".join(letter for letter in facts.dims if letter not in used)
    return (f"sizes are set for letters that no argument type uses: {unused}",) if unused else ()


def _left_open(facts: TargetFacts, captured: Capture) -> tuple[str, ...]:
    """A note on arrays that were given without a sharding, which many take for replicated."""
    from jax.tree import leaves

    given = () if facts.args is None or callable(facts.args) else leaves((facts.args, dict(facts.kwargs)))
    arguments = captured.arguments or ()
    if captured.used_devices < 2 or len(given) != len(arguments):
        return ()
    known = zip(given, arguments, strict=True)
    left = [array.name for leaf, array in known if hasattr(leaf, "shape") and array.used and not array.asked]
    if not left:
        return ()
    more = f" and {pluralize(len(left) - _NAMED, 'more argument')}" if len(left) > _NAMED else ""
    has, one = ("have", "theirs") if len(left) > 1 else ("has", "one")
    return (f"{', '.join(left[:_NAMED])}{more} {has} no sharding in args, so the compiler chooses {one}",)
