"""What to change so that a collective goes away or gets cheaper: from its reason, and from who asked for each side.

Source: each change was made to the programs of the tests and of `fixtures/programs` and compiled for v5e; those that
left the collective as large as it was are not told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

from hloscope.analysis.model import Collective
from hloscope.analysis.model.reason import Reason, ReasonKind
from hloscope.analysis.vocabulary import Kind
from hloscope.why.partitioned import dimensions_of, significant
from hloscope.why.tensors import spec_of
from hloscope.why.words import asked_words, axes_words, cut_words, is_window, kept_axes, lost_words, summed_words

_SCATTERED_ROWS = 8
"""Of results with fewer rows on a device, libtpu 0.0.42 and its successors make no reduce-scatter (measured, v5e)."""

_FOREIGN = ("_call", "callback")


def advice(reason: Reason, of: Collective | None = None) -> tuple[str, ...]:
    """Changes worth a thought, the likeliest first; none for what the user wrote or what is not known.

    Whether a change pays depends on the rest of the program, so each names what it trades.

    Args:
        reason: Why the collective is there.
        of: The collective; None where only the reason is at hand.
    """
    if reason.kind not in _ADVICE:
        return ()
    return (*_scattered(reason, of), *_ADVICE[reason.kind](reason))


def _scattered(reason: Reason, of: Collective | None) -> Iterator[str]:
    """Of an all-reduce, how to make a reduce-scatter of it."""
    if of is None or of.kind is not Kind.ALL_REDUCE or reason.kind is not ReasonKind.PARTIAL_SUM:
        return
    local = max(dimensions_of(of.operand_shapes), key=prod, default=())
    devices = of.group_size
    is_vector = reason.moved is not None and len(significant(reason.moved.shape)) < 2  # libtpu adds dimensions of 1
    if is_vector or len(local) < 2 or not devices or not any(size % devices == 0 for size in local):
        return  # nothing is left to cut, and libtpu scatters no vectors
    axes = axes_words(reason)
    if local[-2] < _SCATTERED_ROWS:
        yield (
            f"give each device {_SCATTERED_ROWS} rows or more, and ask for the result sharded over {axes} too: TPU's "
            "compiler makes no reduce-scatter of fewer, which moves half of what an all-reduce does"
        )
    elif kept_axes(reason):
        yield (
            f"shard another dimension of the result over {axes}: where the compiler makes a reduce-scatter of it, that "
            "moves half of what an all-reduce does"
        )
    else:
        yield (
            f"ask for the result sharded over {axes} too: where the compiler makes a reduce-scatter of it, that moves "
            "half of what an all-reduce does"
        )


def _partial_sum(reason: Reason) -> Iterator[str]:
    if reason.producer is None:
        yield f"have {_name(reason)} added up where it is made, unless only a part of it is needed there"
        return
    if not reason.summed:
        yield from _choice(replace(reason, consumer=reason.producer))
        return
    yield f"take {axes_words(reason)} off {summed_words(reason)}, and shard another dimension with it{_held(reason)}"


def _gathered_operand(reason: Reason) -> Iterator[str]:
    yield (
        f"take {cut_words(reason)} off {lost_words(reason)} of {_name(reason)}, and shard another dimension with it"
        f"{_held(reason)}"
    )


def _operand_conflict(reason: Reason) -> Iterator[str]:
    name, axes = _name(reason), cut_words(reason)
    if reason.loop_invariant:
        yield f"gather {name} once, before the loop: a sharding constraint outside it, at the price of keeping it whole"
    yield f"leave {axes} off {name}, where every device has room for all of it{_held(reason)}"
    yield f"or shard {name} over an axis that nothing else here uses, along a dimension that is not summed over"
    if reason.moved is not None and reason.moved.argument is not None:
        yield "or keep it, where memory is what counts: what is gathered where it is used lies in parts (FSDP)"


def _needs_whole(reason: Reason) -> Iterator[str]:
    consumer = "the operation" if reason.consumer is None else reason.consumer.name
    yield f"shard another dimension than {lost_words(reason)} before {consumer}{_held(reason)}"
    yield f"or do what {consumer} does part by part under jax.shard_map, where a part is enough"


def _indexed_in_loop(reason: Reason) -> Iterator[str]:
    yield f"shard {_name(reason)} along a dimension that the loop does not index{_held(reason)}"
    if reason.loop_invariant:
        yield "or gather it once, before the loop: a sharding constraint outside it, at the price of keeping it whole"
    yield "or send what is needed to where it is: an all-to-all under jax.shard_map"


def _halo(reason: Reason) -> Iterator[str]:
    yield f"shard another dimension than {lost_words(reason)}{_held(reason)}"
    if is_window(reason):
        yield "or leave it: only the edges move"


def _constraint(reason: Reason) -> Iterator[str]:
    asked = next((asked_words(one) for one in reason.asked_by), "the sharding constraint")
    had = None if reason.moved is None else spec_of(reason.moved.sharding)
    yield f"drop or change the constraint: {asked}, and the array is {had or 'sharded otherwise'}{_held(reason)}"


def _requested_output(reason: Reason) -> Iterator[str]:
    had = None if reason.moved is None else spec_of(reason.moved.sharding)
    yield f"ask for the output as it is computed, {had}, or leave its sharding open{_held(reason)}"


def _merged(reason: Reason) -> Iterator[str]:
    yield f"shard the major one of the merged dimensions instead of {lost_words(reason)}{_held(reason)}"
    yield "or keep the dimensions apart"


def _no_rule(reason: Reason) -> Iterator[str]:
    if reason.consumer is not None and not reason.consumer.name.endswith(_FOREIGN):
        yield from _needs_whole(reason)
        return
    yield "call it under jax.shard_map, so that each device hands over its own part"
    yield "or give it a rule: jax.experimental.custom_partitioning with a sharding_rule"


def _choice(reason: Reason) -> Iterator[str]:
    where = "the operation" if reason.consumer is None else reason.consumer.name
    yield f"say how the operands of {where} are to be sharded, with jax.lax.with_sharding_constraint before it"


def _held(reason: Reason) -> str:
    words = "; ".join(dict.fromkeys(asked_words(one) for one in reason.held_by))
    return f" ({words})" if words else ""


def _name(reason: Reason) -> str:
    return "the array" if reason.moved is None else reason.moved.name


_ADVICE: dict[ReasonKind, Callable[[Reason], Iterator[str]]] = {
    ReasonKind.PARTIAL_SUM: _partial_sum,
    ReasonKind.GATHERED_OPERAND: _gathered_operand,
    ReasonKind.OPERAND_CONFLICT: _operand_conflict,
    ReasonKind.NEEDS_WHOLE_DIMENSION: _needs_whole,
    ReasonKind.INDEXED_IN_LOOP: _indexed_in_loop,
    ReasonKind.HALO: _halo,
    ReasonKind.CONSTRAINT: _constraint,
    ReasonKind.REQUESTED_OUTPUT: _requested_output,
    ReasonKind.MERGED_DIMENSIONS: _merged,
    ReasonKind.NO_RULE: _no_rule,
    ReasonKind.PARTITIONERS_CHOICE: _choice,
}
