"""What to change so that a collective goes away or gets cheaper: from its reason, and from who asked for each side."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hloscope.analysis.model.reason import Reason, ReasonKind
from hloscope.analysis.vocabulary import Kind
from hloscope.why.sentences import asked_words, axes_words, is_window, kept_axes, lost_words, summed_words
from hloscope.why.tensors import spec_of


def advice(reason: Reason, kind: Kind | None = None) -> tuple[str, ...]:
    """Changes worth a thought, the likeliest first; none for what the user wrote or what is not known.

    Whether a change pays depends on the rest of the program, so each names what it trades.

    Args:
        reason: Why the collective is there.
        kind: What it does; None where that does not matter.
    """
    if reason.kind not in _ADVICE:
        return ()
    spare = (_SCATTER,) if kind is Kind.ALL_REDUCE and kept_axes(reason) else ()
    return (*spare, *_ADVICE[reason.kind](reason))


_SCATTER = "add the parts up with jax.lax.psum_scatter under jax.shard_map, which moves half of it"


def _partial_sum(reason: Reason) -> Iterator[str]:
    axes = axes_words(reason)
    if reason.wanted and not kept_axes(reason):
        yield f"ask for the result sharded over {axes} too: a reduce-scatter moves half of what an all-reduce does"
    held = "; ".join(dict.fromkeys(asked_words(one) for one in reason.held_by))
    yield f"take {axes} off {summed_words(reason)}, and shard another dimension with it{f' ({held})' if held else ''}"


def _operand_conflict(reason: Reason) -> Iterator[str]:
    name = "it" if reason.moved is None else reason.moved.name
    if reason.loop_invariant:
        yield f"gather {name} once, before the loop: a sharding constraint outside it, at the price of keeping it whole"
    held = "; ".join(dict.fromkeys(asked_words(one) for one in reason.held_by))
    asked = "; ".join(dict.fromkeys(asked_words(one) for one in reason.asked_by))
    other = f"another axis than {axes_words(reason)}"
    yield f"shard {name} over {other}, or along a dimension that nothing sums over{f' ({held})' if held else ''}"
    if reason.conflicting is not None:
        yield f"or shard {reason.conflicting} over {other}{f' ({asked})' if asked else ''}"
    if reason.moved is not None and reason.moved.argument is not None and not reason.in_loop:
        yield "keep it where memory is what counts: weights sharded over the data axis (FSDP) are gathered where used"


def _needs_whole(reason: Reason) -> Iterator[str]:
    consumer = "the operation" if reason.consumer is None else reason.consumer.name
    yield f"shard another dimension than {lost_words(reason)} before {consumer}{_held(reason)}"
    yield f"or do what {consumer} does part by part under jax.shard_map, where a part is enough"


def _indexed_in_loop(reason: Reason) -> Iterator[str]:
    yield f"shard {_name(reason)} along a dimension that the loop does not index{_held(reason)}"
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
