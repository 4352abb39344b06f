"""Judges hloscope's decisions against the table: `python tests/decisions/run.py [--full] [NAME ...]`.

For each program: the decision that was expected to be lost and the one that hloscope says is, the step with the cure
that it prints first beside that of the twin written by hand, both estimated before machine code or both compiled, and
the share of bytes that no decision explains. A name may be a file of programs (`language`) or one of them
(`language:tied`); `--full` judges by compiled programs alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from traceback import format_exc

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "16")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

from table import TABLE, Row, compute_unexplained, name_role, read_dims

import hloscope
from hloscope.base.units import format_bytes, format_time
from hloscope.model import Analysis
from hloscope.model.decision import Decision
from hloscope.model.trial import Figures
from hloscope.model.vocabulary import CompileStage

COMPILE_S = 240
MOST_UNEXPLAINED = 0.1
SLACK = 1.02
"""How much slower than the twin's a step with the printed cure may be."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A row of the table beside what hloscope says.

    Attributes:
        row: The row.
        found: The analysis; None if there is none.
        twin: The analysis of the twin; None if there is none.
        problem: What stopped the analysis of the program or of its twin.
        seconds: How long both took.
    """

    row: Row
    found: Analysis | None
    twin: Analysis | None
    problem: str
    seconds: float

    @property
    def lost(self) -> tuple[Decision, ...]:
        """The decisions that hloscope calls lost."""
        return () if self.found is None else tuple(each for each in self.found.decisions if each.is_lost)

    @property
    def is_as_expected(self) -> bool:
        """Whether the first lost decision is the expected one, or there is none where none is expected."""
        if self.row.lost is None or self.found is None:
            return self.found is not None and not self.lost
        return bool(self.lost) and self.row.lost.matches(self.lost[0], read_dims(self.row))

    @property
    def cure(self) -> Figures | None:
        """The figures with the cure that is printed first; None if none helps."""
        trials = self.lost[0].trials if self.lost else None
        best = None if trials is None else next(iter(trials.helping), None)
        return None if best is None else best.after

    @property
    def cured_us(self) -> float | None:
        """The step with that cure, in microseconds."""
        return None if self.cure is None else self.cure.step_us

    @property
    def twin_us(self) -> float | None:
        """The step of the twin."""
        return None if self.twin is None or self.twin.time is None else self.twin.time.step_us

    @property
    def is_comparable(self) -> bool:
        """Whether the cure and the twin are at the same stage: an estimate is no measure of a compiled step."""
        return self.cure is None or self.twin is None or self.cure.stage is self.twin.stage

    @property
    def is_cured(self) -> bool:
        """Whether the step with that cure is as fast as the twin's."""
        return None not in (self.cured_us, self.twin_us) and (self.cured_us or 0) <= SLACK * (self.twin_us or 0)

    @property
    def unexplained(self) -> float:
        """The share of bytes that no decision explains."""
        return 0.0 if self.found is None else compute_unexplained(self.found)


def judge(row: Row, stage: CompileStage) -> Judged:
    """Analyzes a program and its twin."""
    begun, found, twin, problem = monotonic(), None, None, ""
    try:
        found = hloscope.analyze(row.target, stage=stage, try_s=60, timeout_s=COMPILE_S)
        if row.cured is not None:
            twin = hloscope.analyze(row.cured, stage=stage, trials=False, timeout_s=COMPILE_S)
    except hloscope.HloscopeError as error:
        problem = " ".join(str(error).split())
    except Exception:
        problem = f"CRASH: {format_exc()}"
    judged = Judged(row=row, found=found, twin=twin, problem=problem, seconds=monotonic() - begun)
    return judged if judged.is_comparable else judge(row, CompileStage.COMPILED)


def render(judged: Judged) -> Iterator[str]:
    """What the runner prints of a program."""
    row, found = judged.row, judged.found
    yield f"{row.name}  ({row.kind})  {judged.seconds:.0f} s"
    if judged.problem:
        yield f"  FAILED: {judged.problem}"
    if row.known_wrong:
        yield f"  the expectation is wrong: {row.known_wrong}"
    if found is None:
        return
    said = "as expected" if judged.is_as_expected else "NOT AS EXPECTED"
    yield f"  lost: expected {row.lost or 'none'}; found {_name_all(judged.lost)}: {said}"
    if found.time is not None:
        yield f"  step: {_format(found.time.step_us)}; printed cure {_format(judged.cured_us)}; by hand " + (
            f"{_format(judged.twin_us)}{_judge_cure(judged)}"
        )
    yield from _render_cures(judged)
    total = sum(each.wire_bytes_per_step or 0 for each in found.collectives)
    share = "UNEXPLAINED" if judged.unexplained > MOST_UNEXPLAINED else "unexplained"
    yield f"  {share}: {judged.unexplained:.1%} of {format_bytes(total)}"
    if judged.unexplained > MOST_UNEXPLAINED:
        yield from _render_unexplained(found)
    if not judged.is_as_expected:
        for decision in found.decisions[:4]:
            other = "?" if decision.other_bytes is None else format_bytes(decision.other_bytes)
            yield f"    {decision.name} ({name_role(decision)}): {decision.summary_of_all}; other way {other}"


def _render_unexplained(found: Analysis) -> Iterator[str]:
    """The collectives that no decision explains, with the reason of each."""
    explained = {name for decision in found.decisions for name in decision.collectives}
    for each in found.collectives:
        if each.name not in explained:
            line = next(iter(each.source), None)
            place = "" if line is None else f" at {line.file.rpartition('/')[2]}:{line.line}"
            kind = "no reason" if each.reason is None else each.reason.kind
            yield f"    {each.name} over {','.join(each.axes or ())}: {kind}{place}"


def _judge_cure(judged: Judged) -> str:
    if judged.row.lost is None:
        return ""
    return ": cured" if judged.is_cured else ": NOT CURED"


def _name_all(decisions: tuple[Decision, ...]) -> str:
    return ", ".join(f"{each.name} ({name_role(each)})" for each in decisions) or "none"


def _render_cures(judged: Judged) -> Iterator[str]:
    trials = judged.lost[0].trials if judged.lost else None
    if trials is None:
        return
    for trial in trials.trials:
        after = None if trial.after is None else trial.after.step_us
        yield f"    tried: {'; '.join(trial.change)}: {_format(after)}{' helps' if trial.helps else ''}"
    for words in (trials.not_tried, trials.verdict):
        if words:
            yield f"    {words}"
    if trials.stopped:
        yield f"    stopped after {trials.seconds:.0f} s"


def _format(time_us: float | None) -> str:
    return "none" if time_us is None else format_time(time_us)


def summarize(judged: list[Judged]) -> Iterator[str]:
    """The counts at the end."""
    mistaken = [each for each in judged if each.row.known_wrong]
    wrong = [each for each in judged if each.row.lost is not None and each not in mistaken]
    right = [each for each in judged if each.row.lost is None and each not in mistaken]
    yield f"{len(judged)} programs, {len(wrong)} with a cure, {len(right)} right as they are"
    yield f"besides, {len(mistaken)} whose expectation was wrong: {', '.join(each.row.name for each in mistaken)}"
    yield f"lost decision as expected: {sum(each.is_as_expected for each in wrong)} of {len(wrong)}"
    yield f"cured by the line printed first: {sum(each.is_cured for each in wrong)} of {len(wrong)}"
    yield f"no lost decision in right ones: {sum(each.is_as_expected for each in right)} of {len(right)}"
    much = [each.row.name for each in judged if each.unexplained > MOST_UNEXPLAINED]
    yield f"more than {MOST_UNEXPLAINED:.0%} of bytes unexplained: {', '.join(much) or 'none'}"
    yield f"failed: {', '.join(each.row.name for each in judged if each.problem) or 'none'}"


def main(names: list[str]) -> int:
    """Judges the named rows, or all; returns how many failed to be analyzed."""
    stage = CompileStage.COMPILED if "--full" in names else CompileStage.SCHEDULED
    names = [name for name in names if name != "--full"]
    chosen = [row for row in TABLE if not names or row.name in names or row.name.partition(":")[0] in names]
    done = []
    for row in chosen:
        done.append(judge(row, stage))
        print("\n".join(render(done[-1])), flush=True)
    print("\n".join(summarize(done)))
    return sum(bool(each.problem) for each in done)


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
