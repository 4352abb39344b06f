"""What a loop carries from trip to trip: how it begins, how the body advances it, what stays the same."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.analysis.loops.integers import is_in_range, signed
from hloscope.analysis.loops.progressions import Part, Progression
from hloscope.analysis.loops.scalars import Element, Linear, carried, read_linear
from hloscope.analysis.values.handing_on import element_type_of
from hloscope.graph import HloGraph, Value
from hloscope.hlo import HloComputation, HloInstruction

_NESTING_LIMIT = 64
_PASS_ARGUMENTS = frozenset({"while", "call", "fusion", "async-start"})


@dataclass(frozen=True, slots=True)
class LoopValues:
    """The scalars that a `while` carries.

    Attributes:
        graph: The module.
        loop: The `while`, which names its body.
    """

    graph: HloGraph
    loop: HloInstruction

    def following(self, element: Element) -> Linear | None:
        """What a trip makes of a carried scalar, as a function of what the loop carries before it."""
        following = read_linear(self.graph, self.after_a_trip(element))
        declared = element_type_of(Value(self.loop, element[1:]))
        return following if following is not None and following.element_type == declared else None

    def after_a_trip(self, element: Element) -> Value:
        """What the body returns for a carried scalar."""
        return Value(self.graph.module.computation(dict(self.loop.called)["body"]).root, element[1:])

    def is_invariant(self, element: Element) -> bool:
        """Whether the loop hands a scalar on unchanged."""
        return self.following(element) == carried(element)

    def initial(self, element: Element, depth: int = 0) -> int | None:
        """A carried scalar before the first trip; None when it is not a constant."""
        number, *path = element
        if number >= len(self.loop.operands):
            return None
        return _constant_value(self.graph, Value(self.loop.operands[number], tuple(path)), depth)

    def at_start(self, term: Linear) -> int | None:
        """A function of carried scalars before the first trip."""
        values = self._initials(set(term.elements()))
        return None if values is None else term.evaluate(values)

    def constant(self, term: Linear) -> int | None:
        """A function of carried scalars that all stay the same."""
        return self.at_start(term) if all(self.is_invariant(element) for element in term.elements()) else None

    def progression(self, term: Linear) -> Progression | None:
        """The values that a function of carried scalars takes, trip after trip."""
        elements = set(term.elements())
        varying = [element for element in elements if not self.is_invariant(element)]
        if len(varying) > 1:
            return None
        if not varying:
            number = self.at_start(term)
            return None if number is None else Progression(start=0, factor=1, step=0, scale=0, offset=number)
        return self._of_counter(term, varying[0])

    def _of_counter(self, term: Linear, counter: Element) -> Progression | None:
        following = self.following(counter)
        start = self.initial(counter)
        if following is None or counter not in following.scales or start is None:
            return None
        others = {*term.elements(), *following.elements()} - {counter}
        if not all(self.is_invariant(element) for element in others):
            return None
        values = self._initials(others)
        if values is None or not is_in_range(start, following.element_type):
            return None
        state = Part(scale=1, offset=0, element_type=following.element_type)
        conditions = [_part(part, counter, values, in_body=False) for part in term.provided]
        steps = [_part(part, counter, values, in_body=True) for part in following.provided]
        constant = {**values, counter: 0}
        return Progression(
            start=start,
            factor=following.scales[counter],
            step=signed(following.total(constant), following.element_type),
            scale=term.scales.get(counter, 0),
            offset=term.total(constant),
            parts=(state, *conditions, *steps),
        )

    def _initials(self, elements: set[Element]) -> dict[Element, int] | None:
        found = {element: self.initial(element) for element in elements}
        known = {element: number for element, number in found.items() if number is not None}
        return known if len(known) == len(found) else None


def _part(term: Linear, counter: Element, values: dict[Element, int], *, in_body: bool) -> Part:
    return Part(
        scale=term.scales.get(counter, 0),
        offset=term.total({**values, counter: 0}),
        element_type=term.element_type,
        in_body=in_body,
    )


def _constant_value(graph: HloGraph, value: Value, depth: int) -> int | None:
    """The value as a number, also when it comes unchanged through the parameters of the loops and calls around it."""
    term = read_linear(graph, value)
    if term is None:
        return None
    values: dict[Element, int] = {}
    for element in term.elements():
        outer = _argument(graph, value.instruction.computation, element, depth)
        if outer is None:
            return None
        values[element] = outer
    return term.evaluate(values)


def _argument(graph: HloGraph, computation: HloComputation, element: Element, depth: int) -> int | None:
    """What the only caller of a computation passes for an element of its parameters."""
    caller = graph.only_caller(computation.name)
    if caller is None or depth > _NESTING_LIMIT or caller.opcode not in _PASS_ARGUMENTS:
        return None
    loop = LoopValues(graph, caller)
    if caller.opcode == "while" and not loop.is_invariant(element):
        return None
    return loop.initial(element, depth + 1)
