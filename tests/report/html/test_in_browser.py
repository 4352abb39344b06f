"""The page in real headless Chromium: what it shows, what it does, and that nothing that it shows is obeyed."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest
from bounded_examples import BRANCH, LOOP, ONCE, analysis_of
from pages import CHROMIUM, UNFOLD_ALL
from report_examples import FULL
from timeline_examples import with_buffers

import hloscope
from hloscope.app.analyzing import analyze_hlo
from hloscope.base.canvas import Canvas
from hloscope.base.units import format_bytes, format_capacity, format_count, format_flops, format_share, format_time
from hloscope.model import Memory
from hloscope.report.diffs import attach_sides
from hloscope.report.formats import render

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
pytest.importorskip("playwright", reason="playwright is not installed")

FORMATS = {
    "bytes": format_bytes,
    "time": format_time,
    "count": lambda value: format_count(int(value)),
    "capacity": lambda value: format_capacity(int(value)),
    "share": format_share,
    "flops": format_flops,
}
FIGURES = """() => [...document.querySelectorAll('data')].map(
  (one) => ({ ...one.dataset, value: one.value, text: one.textContent })
)"""


def at(document, steps):
    for step in steps:
        document = document[int(step)] if isinstance(document, list) else document[step]
    return document


def documents_of(*analyses, diff=None):
    """What the paths of figures begin with."""
    sides = {}
    for number, analysis in enumerate(analyses):
        known = analysis.time is not None and hasattr(analysis, "_evidence")
        sides[str(number)] = {
            "analysis": analysis.to_dict(),
            "timeline": analysis.timeline().to_dict() if known else None,
        }
    return {**sides, "diff": diff}


def exact_value(figure, documents):
    """What the JSON says of a figure."""
    if "of" in figure:
        return at(documents, figure["of"].split("."))
    if "keys" in figure:
        return at(documents, map(str, json.loads(figure["keys"])))
    if "share" in figure:
        part, whole = (at(documents, path.split(".")) for path in figure["share"].split())
        return part / whole
    rows = at(documents, figure["sum"].split("."))
    chosen = rows if figure["rows"] == "all" else [rows[int(index)] for index in figure["rows"].split()]
    times = figure.get("times")
    return math.fsum(
        row[figure["field"]] * (row[times] if times else 1) for row in chosen if row[figure["field"]] is not None
    )


def check_figures(page, documents, least):
    page.evaluate(UNFOLD_ALL)
    figures = page.evaluate(FIGURES)
    assert len(figures) >= least
    for figure in figures:
        value = exact_value(figure, documents)
        assert float(figure["value"]) == pytest.approx(value, rel=1e-12), figure
        text = re.sub(r"^[≥≤~]", "", figure["text"])
        assert text == FORMATS[figure["unit"]](float(figure["value"])), figure
    return figures


def test_every_figure_is_one_of_the_json(shown, found):
    figures = check_figures(shown(found), documents_of(found), least=40)
    told = {figure["of"] for figure in figures if "of" in figure}
    assert {"0.analysis.time.step_us", "0.timeline.computing_us", "0.analysis.collectives.0.wire_bytes"} <= told


def test_figures_that_are_not_exact_say_so(shown):
    page = shown(render("analysis", "html", FULL, Canvas()))
    figures = check_figures(page, documents_of(FULL), least=20)
    marked = {figure["text"][0] for figure in figures}
    assert "≥" in marked
    assert page.locator("#collectives .unknown").count() > 0  # an opaque one's bytes
    assert page.locator("#summary .bars").get_by_text("unknown", exact=True).count() == 1


@pytest.mark.long
@pytest.mark.parametrize(("text", "mark", "parts"), [(LOOP, "~", "~"), (BRANCH, "≤", "~"), (ONCE, "", "")])
def test_bounds_are_marked_wherever_they_are_shown(shown, text, mark, parts):
    found = analysis_of(text)
    page = shown(found)
    figures = check_figures(page, documents_of(found), least=20)
    sums = {one["field"]: one["text"] for one in figures if "sum" in one}
    assert sums["wire_bytes_per_step"] == f"{mark}6.14 kB"
    assert sums["time_us"] == sums["exposed_us"] == f"{mark}6.52 us"
    told = {one["of"]: one["text"] for one in figures if "of" in one}
    assert told["0.timeline.waits.collective_us"] == f"{parts}6.52 us"
    assert f"{mark}6.52 us exposed" in page.inner_text(".first")
    assert f"{mark}6.52 us" in page.inner_text("details:has([aria-label^='The longest waits'])")
    assert f"busiest links each step: x+ {mark}3.07 kB" in page.text_content("#mesh")
    assert ("within the error of the cost model" in page.inner_text("#summary")) is (mark != "~")
    assert ("of unknown accuracy" in page.inner_text("#summary")) is (mark == "~")


def test_a_computation_of_the_timeline_says_how_often_it_runs(shown):
    page = shown(analysis_of(LOOP))
    page.click("text=Open %w")
    assert page.inner_text(".crumbs") == "the step › body, ~1 time"


def test_changes_keep_their_bounds_and_large_ones_are_factors(shown):
    once = analysis_of(ONCE)

    def changes_to(text):
        page = shown(hloscope.diff(once, analysis_of(text)))
        return [row.inner_text().split("\t")[-1] for row in page.query_selector_all("table.measured tbody tr")]

    assert changes_to(LOOP)[:2] == ["unknown", "unknown"]
    assert changes_to(BRANCH.replace("1024", "2048"))[1] == "▲ ≤+6.14 kB"
    assert changes_to(ONCE.replace("1024", "2048"))[1] == "▲ +6.14 kB (+100.0%)"
    assert changes_to(ONCE.replace("1024", "1073741824"))[1] == "▲ +6.44 GB (×1,048,576)"


@pytest.mark.parametrize(
    ("new", "step", "verdict"),
    [
        (ONCE.replace("1024", "1048576"), "124 us, ×19", "▲ Worse, 1 change of what moves"),
        (BRANCH, "≤6.52 us, ≤0.0%", "≠ Different"),
        (LOOP, "~6.52 us, change unknown", "≠ Different"),
        (ONCE, "6.52 us, unchanged", "= The same"),
    ],
)
def test_a_difference_says_first_how_long_the_step_takes(shown, new, step, verdict):
    page = shown(hloscope.diff(analysis_of(ONCE), analysis_of(new)))
    assert page.inner_text(".changed .then") == f"6.52 us → {step}"
    assert page.inner_text(".changed small") == "predicted for one step"
    assert page.inner_text(".changed .verdict").startswith(verdict)


def test_a_difference_without_both_steps_says_first_what_is_sent(shown):
    untimed = hloscope.analyze_text(ONCE.replace("1024", "2048"), name="untimed.hlo", mesh={"X": 4})
    page = shown(hloscope.diff(analysis_of(ONCE), untimed))
    assert page.inner_text(".changed .then") == "6.14 kB → 12.3 kB, +100.0%"
    assert page.inner_text(".changed small") == "sent by one device per step"


def test_a_tie_of_two_steps_is_said_and_has_no_colour(shown):
    found = hloscope.diff(analysis_of(ONCE), analysis_of(ONCE.replace("1024", "1026")))
    page = shown(render("difference", "html", attach_sides(found, (None, found.sides[1])), Canvas()))
    assert page.inner_text(".changed .then") == "6.52 us → 6.52 us, under +0.1%"
    assert page.inner_text(".changed small").endswith("a tie within the error of the prediction")
    assert page.locator(".changed .then .bad").count() == 0


def test_steps_of_a_difference_have_one_scale(shown):
    found = hloscope.diff(analysis_of(ONCE), analysis_of(ONCE.replace("1024", "1048576")))
    page = shown(found)
    widths = [bar.bounding_box()["width"] for bar in page.query_selector_all(".side .split:not(.thin)")]
    assert widths[0] / widths[1] == pytest.approx(found.step_us[0] / found.step_us[1], rel=0.02)


def test_many_causes_and_changes_are_folded_and_whole(shown):
    found = hloscope.diff(analysis_of(ONCE), analysis_of(ONCE.replace("1024", "2048")))
    cause = found.judged.causes[0]
    many = [
        replace(cause, message=f"{n} {'all-reduces over X and ' * 40}end", source=f"/a/b.py:{n + 1}", why=f"so {n}")
        for n in range(9)
    ]
    (change,) = found.changes
    changes = tuple(replace(change, text=f"~ {number}  b.py:{number}") for number in range(12))
    page = shown(replace(found, judged=replace(found.judged, causes=tuple(many)), changes=changes))
    causes = page.locator(".causes li")
    assert (causes.count(), page.locator("#difference .changes li.mono").count()) == (5, 0)
    assert "b.py:1" in causes.first.inner_text()
    assert "so 0" in causes.first.inner_text()
    assert many[0].message in causes.first.inner_text()
    page.click("text=4 more causes")
    page.click("text=All 12 changes of what moves")
    page.wait_for_selector("#difference .changes li.mono")
    assert (causes.count(), page.locator("#difference .changes li.mono").count()) == (9, 12)


def test_both_sides_of_a_difference(shown, found, captured):
    text = captured("mixture_of_experts_shard_map")
    other = analyze_hlo(text, name="other.hlo", mesh={"X": 8}, slice="v5e:2x4")
    difference = hloscope.diff(found, other)
    page = shown(difference)
    check_figures(page, documents_of(found, other, diff=difference.to_dict()), least=80)
    assert page.locator("#difference tbody tr").count() == 5
    assert page.locator("canvas.overview").count() == 2


VALUES = (0, 0.004, 0.005, 0.125, 0.375, 1.005, 1.115, 9.995, 99.95, 112.5, 999.4, 999.5, 1125, 112_500, 2.5e12, 8.6e17)
WRITTEN = "(values) => values.map((value) => ['bytes', 'time', 'share', 'flops'].map((unit) => written(value, unit)))"


def test_figures_are_written_as_reports_write_them(browser, root):
    """Ties go to the even digit in both; where nothing is said of a list, Python's formatters are the truth."""
    page = browser.new_page()
    page.evaluate((root / "hloscope/report/html/assets/format.js").read_text() + ";globalThis.written = written;")
    values = [*VALUES, *(number / 8 for number in range(1, 4000, 7))]
    seen = page.evaluate(WRITTEN, values)
    units = (format_bytes, format_time, format_share, format_flops)
    assert seen == [[write(value) for write in units] for value in values]
    page.close()


def names_of_rows(page):
    return page.eval_on_selector_all(
        "#collectives tr[data-row]", "(rows) => rows.map((row) => Number(row.dataset.row))"
    )


def test_the_table_is_sorted_filtered_grouped_and_paged(shown, many):
    page = shown(render("analysis", "html", many, Canvas()))
    assert page.locator("#collectives tr.group").count() >= 1
    page.select_option("#group-0", "none")
    assert len(names_of_rows(page)) == 100
    page.click("#collectives .wide")
    assert len(names_of_rows(page)) == 200
    page.click('#collectives th[data-column="wire"] button')
    rising = names_of_rows(page)
    assert page.get_attribute('#collectives th[data-column="wire"]', "aria-sort") == "ascending"
    page.click('#collectives th[data-column="wire"] button')
    falling = names_of_rows(page)
    order = sorted(range(3000), key=lambda index: many.collectives[index].wire_bytes)
    assert (rising[:3], falling[:3]) == (order[:3], order[::-1][:3])
    page.fill("#search-0", "all-reduce.2998")
    assert page.inner_text("#collectives [role=status]") == "1 of 3,000 collectives"
    page.fill("#search-0", "all-reduce")
    page.select_option("#axis-0", "Y")
    assert page.inner_text("#collectives [role=status]") == "1,500 of 3,000 collectives"
    page.select_option("#group-0", "kind")
    assert page.locator("#collectives tr.group").count() == 1


def test_a_row_and_a_group_unfold_without_drawing_the_others_again(shown, many):
    page = shown(render("analysis", "html", many, Canvas()))
    page.select_option("#group-0", "kind")
    for _ in range(2):
        page.click('#collectives tr.group button[aria-expanded="false"]')
    assert page.evaluate("document.activeElement.closest('tr.group') !== null")
    counts = [page.locator(f"#collectives {rows}").count() for rows in ("tr.group", "tr[data-row]", "tr:has(.wide)")]
    assert counts == [2, 200, 2]
    page.evaluate("window.others = [...document.querySelectorAll('#collectives tr[data-row]')].slice(1)")
    page.click("#collectives tr[data-row] button")
    assert page.locator("#collectives tr.details").count() == 1
    assert page.evaluate("window.others.every((row) => row.isConnected)")
    assert page.evaluate("document.activeElement.matches('#collectives tr[data-row].open button')")
    page.keyboard.press("Enter")
    assert page.locator("#collectives tr.details").count() == 0
    page.click('#collectives tr.group button[aria-expanded="true"]')
    assert page.locator("#collectives tr[data-row]").count() == 100
    assert page.evaluate("window.others.slice(99).every((row) => row.isConnected)")


@pytest.mark.parametrize(
    ("fits", "words"), [(True, "Little is left."), (False, "It does not fit."), (None, "It does not fit.")]
)
def test_the_compiler_says_whether_a_program_fits(shown, fits, words):
    memory = Memory(argument_bytes=17 << 30, peak_bytes=17 << 30, hbm_bytes=16 << 30, fits=fits)
    page = shown(render("analysis", "html", replace(FULL, memory=memory), Canvas()))
    assert words in page.inner_text(".tiles")


def test_with_keys_alone(shown, found):
    page = shown(found)
    page.keyboard.press("/")
    page.keyboard.type("all-gather")
    page.focus("#collectives button.unfold")
    page.keyboard.press("Enter")
    assert page.get_attribute("#collectives button.unfold", "aria-expanded") == "true"
    assert page.evaluate("document.activeElement.matches('#collectives button.unfold')")
    assert "return out + (A @ W[e])" not in page.inner_text(
        "#collectives"
    )  # HLO text names files that nobody let it read
    page.focus("#timeline canvas:not(.overview)")
    for _ in range(20):
        page.keyboard.press("ArrowDown")
        if "while" in page.inner_text("#timeline .chosen"):
            break
    assert page.inner_text("#timeline .crumbs") == "the step"
    page.keyboard.press("Enter")
    assert "8 times" in page.inner_text("#timeline .crumbs")
    page.keyboard.press("Escape")
    assert page.inner_text("#timeline .crumbs") == "the step"
    page.keyboard.press("w")
    assert "all-gather" in page.inner_text("#timeline .chosen")
    assert "8 times" in page.inner_text("#timeline .crumbs")


def test_the_timeline_shows_what_is_taken_of_hbm(shown, found):
    known = with_buffers(found)
    page = shown(known)
    assert "HBM in use, without code (full height: the maximum)" in page.inner_text("#timeline")
    levels = "document.querySelector('#timeline canvas:not(.overview)').timeline.lanes.find((lane) => lane.level)"
    drawn = page.evaluate(f"[...{levels}.level]")
    (entry,) = [each for each in known.timeline().computations if each.name == known.timeline().entry]
    core = [one for one in entry.intervals if one.unit == "core" and one.time_us > 0]
    inside = max(one.live_bytes or 0 for each in known.timeline().computations for one in each.intervals)
    assert [one.live_bytes for one in core if not one.runs] == [
        each for each in drawn if each in (one.live_bytes for one in core)
    ]
    assert max(drawn) == inside
    page.focus("#timeline canvas:not(.overview)")
    page.keyboard.press("w")
    assert "of HBM in use" in page.inner_text("#timeline .chosen")
    assert "HBM in use" not in shown(found).inner_text("#timeline")


def test_zoom_and_pan(shown, found):
    page = shown(found)
    view = "document.querySelector('#timeline canvas:not(.overview)')"
    shot = f"{view}.toDataURL()"
    whole = page.evaluate(shot)
    page.click('#timeline button[title="Zoom in"]')
    page.wait_for_function(f"(before) => {shot} !== before", arg=whole)
    zoomed = page.evaluate(shot)
    page.focus("#timeline canvas:not(.overview)")
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"(before) => {shot} !== before", arg=zoomed)
    page.keyboard.press("0")
    page.wait_for_function(f"(before) => {shot} === before", arg=whole)


def test_links_lead_from_one_part_to_another(shown, found):
    page = shown(found)
    page.click("#collectives button.unfold")
    page.get_by_role("button", name="Show on the timeline").click()
    assert "all-gather" in page.inner_text("#timeline .chosen")
    page.locator("#timeline .chosen").get_by_role("button", name="HLO around it").click()
    assert page.inner_text("#hlo .line").startswith("%all-gather")
    page.locator("#hlo .around button.link").first.click()
    assert not page.inner_text("#hlo .line").startswith("%all-gather")
    page.fill("#instruction-0", "all-gather.8")
    page.locator("#hlo .tools button.link").first.click()
    page.get_by_role("button", name="Show the collective").first.click()
    assert page.evaluate("document.activeElement.matches('#collectives button.unfold')")


def test_light_and_dark(shown, found):
    page = shown(found, color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    seen = []
    for _ in range(3):
        page.click("#theme")
        seen.append((page.inner_text("#theme"), page.evaluate(paper) == dark))
    assert seen == [("Theme: light", False), ("Theme: dark", True), ("Theme: system", True)]
    page.emulate_media(color_scheme="light")
    assert page.evaluate(paper) != dark
    assert page.locator("nav").is_visible()
    page.emulate_media(color_scheme="dark", media="print")
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()


EVIL = (
    "<script>window.owned=1</script><img src=x onerror='window.owned=2'>\"'&`</style>]]>--><!--\u202e\u2066\u200f\x1b"
)
HUGE = "x" * 10_000


def test_paper_shows_what_is_folded(shown, many):
    page = shown(many)
    rows = "document.querySelectorAll('#collectives tbody tr[data-row]').length"
    assert page.evaluate(rows) == 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    groups = page.evaluate("document.querySelectorAll('#collectives tbody tr.group').length")
    assert 0 < page.evaluate(rows) <= 25 * groups
    assert "more, which the page lists" in page.inner_text("#collectives")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(rows) == 0


def test_a_name_is_not_written_as_the_beginning_of_a_sentence(shown, captured):
    page = shown(analyze_hlo(captured("mixture_of_experts"), name="cut.hlo"))
    assert "cut.hlo is not placed on a slice" in page.inner_text("#mesh")
    assert "Cut.hlo" not in page.inner_text("main")


def hostile_text() -> str:
    """HLO text whose every string would like to be more than text."""

    def quoted(text):
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

    place = f'metadata={{op_name="jit(f)/{quoted(EVIL)}" source_file="/src/{quoted(EVIL)}.py" source_line=3}}'
    argument = f"metadata={{op_name=\"params['{quoted(EVIL)}\n{HUGE}']\"}}".replace("\n", "\\n")
    gathers = "".join(
        f"  g{at}{'y' * 4000 * at} = f32[8] all-gather(p), channel_id=1, replica_groups=[1,4]<=[4], dimensions={{0}}, "
        f"use_global_device_ids=true, {place}\n"
        for at in range(3)
    )
    kernel = f'  k = f32[4] custom-call(p), custom_call_target="send{quoted(EVIL)}", {place}\n'
    root = f"  ROOT t = (f32[8], f32[8], f32[4]) tuple(g0, g1{'y' * 4000}, k)\n"
    parameter = f"  p = f32[4] parameter(0), {argument}\n"
    return f"HloModule m, num_partitions=4\n\nENTRY main {{\n{parameter}{kernel}{gathers}{root}}}\n"


@pytest.mark.parametrize("width", [1280, 420])
def test_hostile_strings_are_text(shown, width):
    analysis = analyze_hlo(hostile_text(), name=f"step{EVIL}", slice="v5e:2x2")
    page = shown(analysis, viewport={"width": width, "height": 900})
    page.evaluate(UNFOLD_ALL)
    assert page.evaluate("window.owned") is None
    assert page.locator("main script, main img, main iframe, main style").count() == 0
    text = page.inner_text("body")
    assert "<script>window.owned=1</script>" in text
    assert not re.search("[\u202e\u2066\u200f\x1b]", page.content())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.scrollHeight") < 60_000
