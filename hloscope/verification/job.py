"""What the process that runs two programs is told, and in which words it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hloscope.program.target import TargetFacts

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two programs.

    Attributes:
        target: `module:fn` or `file.py:fn`, or the function itself for a run in this process.
        facts: What the user said of it beside its own decorator.
    """

    target: str | Function
    facts: TargetFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run of two programs on the same inputs.

    Attributes:
        target: The program.
        reference: Its reference; it takes from the target's decorator what it leaves open.
        devices: Devices that the larger of both needs.
        platform: `cpu` for simulated devices, or the platform of attached ones: `tpu`, `gpu`.
        seed: The random seed.
        ranges: For the target's arguments by name: the least value and the one above the greatest, as numbers or
            letters of its dimensions.
        dims: Sizes for letters, over those of the programs.
        rtol: The user's own relative tolerance.
        atol: The user's own absolute tolerance.
        grad: Whether gradients are compared as well.
        against_single_device: Whether both are compared with the target on one device too.
        memory_bytes: Memory that the run may take; None when it is not known.
        programs: What the programs are known by, as `fingerprint` says; None for one that is whatever its name imports.
    """

    target: Side
    reference: Side
    devices: int
    platform: str = "cpu"
    seed: int = 0
    ranges: Mapping[str, tuple[float | str, float | str]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    rtol: float | None = None
    atol: float | None = None
    grad: bool = False
    against_single_device: bool = False
    memory_bytes: int | None = None
    programs: tuple[str | None, str | None] = (None, None)


class OtherProgramError(Exception):
    """What a name imported in another process is not the program that was meant."""


def references_facts(target: TargetFacts, reference: TargetFacts, *, is_factory: bool) -> TargetFacts:
    """The reference's facts, with what it leaves open taken from the target: all that says how it is called and where.

    The output shardings and the axis types are its own: a `shard_map` has them written into it.

    Args:
        target: The target's facts.
        reference: The reference's own.
        is_factory: Whether the reference brings its own arguments.
    """
    own = is_factory or reference.args is not None or bool(reference.kwargs)
    borrowed = TargetFacts(
        mesh=target.mesh,
        slice=target.slice,
        dcn=target.dcn,
        args=None if own else target.args,
        kwargs={} if own else target.kwargs,
        dims=target.dims,
    )
    return reference.over(borrowed)
