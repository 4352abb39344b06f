"""The page of a check: each target with its verdict, failures first, what changed and why, and what to do."""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.analysis.model import Analysis
from hloscope.analysis.vocabulary import Bound
from hloscope.contracts.changes import Figure, Judgement
from hloscope.contracts.checks import Checked
from hloscope.report.checks import CheckReport, as_document, asides, is_other, judgement_words
from hloscope.report.html.finding_cards import cards, rules
from hloscope.report.html.pieces import (
    Content,
    Element,
    Page,
    Path,
    add,
    badge,
    labelled,
    made,
    note,
    unfolding,
    verdict,
)
from hloscope.units import plural

_UNITS = {"us": "time", "bytes": "bytes", "flops": "flops"}
_VERDICTS = {"error": ("could not run", "bad"), "failed": ("failed", "bad"), "passed": ("passed", "good")}
"""What a target may be, as it is said and marked; those that need somebody come first."""


def render(found: CheckReport) -> str:
    """The page of a check."""
    page = Page.of(as_document(found))
    title = f"Check of {plural(len(found.checks), 'target')}"
    of = [f"commit {found.commit[:12]}"] if found.commit is not None else []
    of += [f"shard {found.shard}"] if found.shard is not None else []
    page.heading(title, " · ".join(of))
    targets = page.section("targets", "Targets")
    verdict(targets, "good" if found.passed else "bad", found.headline)
    if found.interrupted:
        note(targets, "It was interrupted before all targets were checked.")
    sorts = [_kind(checked) for checked in found.checks]
    known = {kind: words for kind, (words, _) in _VERDICTS.items() if kind in sorts}
    page.tools(targets, "target", known)
    around = add(targets, "div", class_="cards")
    for number in sorted(range(len(sorts)), key=lambda number: list(_VERDICTS).index(sorts[number])):
        _card(page, around, found, number)
    rules(page, (finding for checked in found.checks for finding in checked.findings))
    if found.unused_baselines:
        page.notes(f"{path} is the baseline of no target" for path in page.document["unused_baselines"])
    versions = next((one.analysis.versions for one in found.checks if one.analysis is not None), {})
    return page.finished(f"({found.headline})", versions=versions, basis="Predicted, not measured.")


def _kind(checked: Checked) -> str:
    return "error" if checked.error is not None else "passed" if checked.passed else "failed"


def _card(page: Page, around: Element, report: CheckReport, number: int) -> None:
    """A target, unfolded where it is not as expected."""
    checked = report.checks[number]
    kind = _kind(checked)
    words, mark = _VERDICTS[kind]
    line: list[Content] = [badge(words, mark), " ", made("b", page.name(checked.name)), " "]
    card = unfolding(around, line, _facts(page, checked, number), is_open=kind != "passed")
    card.set("class", f"target-card {mark}")
    card.set("data-kind", kind)
    if checked.error is not None:
        page.code(card, checked.error.splitlines(), f"Why {checked.name} could not run")
    about: list[tuple[str, Content]] = [("against", _against(page, checked, number))]
    about += [("note", page.prose(aside)) for aside in asides(checked)]
    remarks = checked.verdict.remarks if checked.verdict is not None else ()
    labelled(card, [*about, *(("note", page.prose(remark)) for remark in remarks)])
    _figures(page, card, checked, number)
    if checked.findings:
        cards(page, card, [report.shown(finding) for finding in checked.findings])


def _facts(page: Page, checked: Checked, number: int) -> Iterator[Content]:
    """What a target costs, in its line."""
    analysis, path = checked.analysis, ("checks", number, "analysis")
    if analysis is None:
        return
    if analysis.slice is not None:
        yield from (made("span", page.name(analysis.slice.name), class_="of"), " ")
    if analysis.time is not None:
        step = page.figure((*path, "time", "step_us"), "time", bound=analysis.time.bound)
        yield from (made("span", step, " a step", class_="of"), " ")
    sent = page.figure((*path, "totals", "wire_bytes"), "bytes", bound=analysis.totals.bound)
    yield from (made("span", sent, " sent", class_="of"), " ")
    yield made("span", page.figure((*path, "memory", "peak_bytes"), "bytes"), " of HBM", class_="of")


def _against(page: Page, checked: Checked, number: int) -> Content:
    """`its contract: no all-gather; its baseline: worse than it`."""
    document = page.document["checks"][number]
    words = [f"contract: {document['contract']}"] if document["contract"] else []
    if checked.judged is not None:
        same = "the same" if not is_other(checked.judged) else judgement_words(checked.judged)
        words.append(f"baseline {document['baseline']}: {same} {'as' if same == 'the same' else ''}".rstrip() + " it")
        words += [f"the compiler is another one: {checked.judged.versions}"] if checked.judged.versions else []
    return page.name("; ".join(words), 400) if words else None


def _figures(page: Page, card: Element, checked: Checked, number: int) -> None:
    """Each figure before and after; of a target without a baseline as it is."""
    if checked.judged is not None:
        rows = list(_before_and_after(page, checked, number))
        heads = ["per device", ">baseline", ">now", ">change"]
    elif checked.analysis is not None:
        rows = list(_now(page, checked.analysis, ("checks", number, "analysis")))
        heads = ["per device", ">now"]
    else:
        return
    page.table(card, f"Figures of {checked.name}", heads, rows, sorts=False)


def _before_and_after(page: Page, checked: Checked, number: int) -> Iterator[list[Content]]:
    assert checked.judged is not None
    for at, figure in enumerate(checked.judged.figures):
        path, unit = ("checks", number, "judged", "figures", at), _UNITS[figure.unit]
        is_worse = checked.judged.judgement is Judgement.WORSE
        then = _amount(page, path, "before", unit)
        if not figure.comparable:
            then.append(made("small", "from another version of hloscope"))
        now = _amount(page, path, "after", unit)
        yield [page.name(figure.name, 60), then, now, _change(page, path, figure, is_worse=is_worse)]


def _amount(page: Page, path: Path, side: str, unit: str) -> list[Content]:
    """A figure with its bound; what is exact has the range of its prediction, where it is one."""
    bound = Bound(page.at((*path, f"{side}_bound")))
    span = (*path, f"{side}_range")
    ranged = page.range((*span, 0), (*span, 1)) if bound is Bound.EXACT and page.at(span) is not None else []
    amount = page.figure((*path, side), unit, bound=bound, unknown="not known")
    return [amount, made("small", *ranged) if ranged else None]


def _change(page: Page, path: Path, figure: Figure, *, is_worse: bool) -> Content:
    """How much more or less it is now, with a mark; red only where the check says that the target got worse."""
    before, after, bound = figure.before, figure.after, figure.change_bound
    if before == after and before is not None and figure.before_bound is figure.after_bound and figure.comparable:
        return "=" if bound is Bound.EXACT else made("span", "= as counted", class_="unknown")
    if before is None or after is None or not figure.comparable or bound is Bound.UNKNOWN:
        words = "not comparable" if not figure.comparable and None not in (before, after) else "unknown"
        return made("span", words, class_="unknown")
    if before == after:
        return made("span", f"{bound} as much", class_="unknown")
    mark, kind = ("▲", "bad" if is_worse else "more") if after > before else ("▼", "fewer")
    if not before:
        return made("span", f"{mark} new", class_=kind)
    factor = page.figure((*path, "after"), "change", over=(*path, "before"), bound=bound)
    return made("span", f"{mark} ", factor, class_=kind)


def _now(page: Page, analysis: Analysis, path: Path) -> Iterator[list[Content]]:
    if analysis.time is not None:
        time = (*path, "time")
        step = page.figure((*time, "step_us"), "time", bound=analysis.time.bound)
        spread = [] if analysis.time.unpriced_kernels else page.range((*time, "least_us"), (*time, "most_us"))
        yield ["predicted step", [step, made("small", *spread) if spread else None]]
    for axes, total in page.at((*path, "totals", "by_axis")).items():
        words = "unknown axes" if axes == "?" else axes or "no axis"
        sent = page.figure((*path, "totals", "by_axis", axes, "wire_bytes"), "bytes", bound=total["bound"])
        yield [page.name(f"sent over {words}", 60), sent]
    if not analysis.totals.by_axis:
        yield ["sent per step", page.figure((*path, "totals", "wire_bytes"), "bytes", bound=analysis.totals.bound)]
    peak = page.figure((*path, "memory", "peak_bytes"), "bytes")
    hbm = page.figure((*path, "memory", "hbm_bytes"), "capacity")
    yield ["memory: peak", [peak, made("small", "of ", hbm) if analysis.memory.hbm_bytes else None]]
