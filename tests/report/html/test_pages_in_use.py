"""What the page of a program does for who has only keys, only paper, a narrow screen, or a step of folded loops."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import pytest
from bounded_examples import LOOP, analysis_of
from pages import CHROMIUM
from report_examples import FULL, TWO_SLICES, total

from hloscope.model.analysis import BufferRole, MemoryPeak, PeakBuffer

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
pytest.importorskip("playwright", reason="playwright is not installed")

NARROW = {"width": 420, "height": 900}
IS_AT_CANVAS = "document.activeElement.matches('#timeline canvas:not(.overview)')"
ROW = "Number(document.activeElement.closest('tr')?.dataset.row)"
VIEW = "document.querySelector('#timeline canvas:not(.overview)').timeline"


def press(page, button):
    """Presses a button as the keyboard does."""
    page.locator(button).first.focus()
    page.keyboard.press("Enter")


def test_a_button_that_opens_a_computation_leaves_the_keys_to_the_timeline(shown):
    page = shown(analysis_of(LOOP))
    press(page, "#timeline .chosen button:has-text('Open %w')")
    assert page.inner_text(".crumbs") == "the step › body, ~1 time"
    assert page.evaluate(IS_AT_CANVAS)
    page.keyboard.press("Escape")
    assert page.inner_text(".crumbs") == "the step"
    page.evaluate(f"{VIEW}.select({VIEW}.computation.intervals.find((one) => one.runs.length))")
    press(page, "#timeline .chosen button:has-text('Open body')")
    assert page.evaluate(IS_AT_CANVAS)
    press(page, ".crumbs button")
    assert (page.inner_text(".crumbs"), page.evaluate(IS_AT_CANVAS)) == ("the step", True)


def test_more_rows_are_said_in_as_few_words_and_lead_on_with_keys(shown, many):
    page = shown(replace(many, collectives=many.collectives[:224]))
    page.select_option("#group-0", "none")
    more = page.locator("#collectives .table > .wide")
    assert more.inner_text() == "Show 100 more of 124"
    press(page, "#collectives .table > .wide")
    order = page.eval_on_selector_all(
        "#collectives tr[data-row]", "(rows) => rows.map((row) => Number(row.dataset.row))"
    )
    assert page.evaluate(ROW) == order[100]
    assert more.inner_text() == "Show 24 more"
    press(page, "#collectives .table > .wide")
    assert (page.evaluate("document.activeElement.matches('.unfold')"), more.is_visible()) == (True, False)
    page.select_option("#group-0", "kind")
    page.click("#collectives tr.group button")
    assert page.inner_text("#collectives td .wide") == "Show 12 more"
    press(page, "#collectives td .wide")
    assert page.evaluate("document.activeElement.matches('#collectives tr[data-row] .unfold')")


def test_where_rows_are_chosen_all_rows_are_shown_again_with_keys(shown, many):
    page = shown(many)
    press(page, ".first button")
    assert page.inner_text("#collectives .scope").endswith("Show all")
    press(page, ".scope button")
    assert page.evaluate("document.activeElement.id") == "search-0"


def test_paper_has_no_buttons_and_says_what_it_leaves_out(shown, many):
    page = shown(many)
    page.select_option("#group-0", "none")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("#collectives tr[data-row]").count() == 100
    assert page.inner_text("#collectives tbody tr:last-child") == "and 2,900 more, which the page lists"
    shown_buttons = "[...document.querySelectorAll('button')].filter((each) => each.checkVisibility())"
    assert page.evaluate(f"{shown_buttons}.every((each) => each.matches('.unfold, .link, th button'))")


def printed(page, path):
    """The text of each page of paper."""
    page.pdf(path=path, format="A4")
    done = subprocess.run(["pdftotext", "-layout", str(path), "-"], capture_output=True, text=True, check=True)
    return done.stdout.split("\f")


needs_pdftotext = pytest.mark.skipif(shutil.which("pdftotext") is None, reason="there is no pdftotext")


@needs_pdftotext
def test_what_is_for_the_screen_is_not_printed(shown, tmp_path):
    text = "".join(printed(shown(analysis_of(LOOP)), tmp_path / "page.pdf"))
    assert "Timeline of one step" in text
    assert not [words for words in ("Keys:", "Open %", "Longest wait", "Select an") if words in text]


@needs_pdftotext
def test_each_page_of_a_printed_table_has_its_headings(shown, many, tmp_path):
    page = shown(replace(many, collectives=many.collectives[:90]))
    page.select_option("#group-0", "none")
    pages = printed(page, tmp_path / "page.pdf")
    with_rows = [each for each in pages if each.count("all-reduce") + each.count("all-gather") > 8]
    assert len(with_rows) > 3
    assert all("Part of the model" in each and "Collective" in each for each in with_rows)


def test_the_parts_of_the_peak_add_up_to_it(shown):
    buffers = tuple(
        PeakBuffer(role=BufferRole.ARGUMENT, bytes=1000 * (50 - number), count=2, name=f"w{number}", shape=None)
        for number in range(40)
    )
    live_bytes = sum(each.bytes * each.count for each in buffers) + 77
    peak = MemoryPeak(
        at="dot",
        op_name=None,
        source=(),
        live_bytes=live_bytes,
        fragmentation_bytes=0,
        buffers=buffers,
        other_bytes=77,
    )
    page = shown(replace(FULL, memory_peak=peak))
    values = page.eval_on_selector_all("ul.peak data", "(all) => all.map((each) => Number(each.value))")
    assert (len(values), sum(values)) == (26, live_bytes)
    rest = page.locator("ul.peak li").nth(24)
    assert "16 smaller parts" in rest.inner_text()
    assert rest.locator("data").get_attribute("data-rows") == " ".join(map(str, range(24, 40)))
    page.select_option("#memory select", "role")
    assert page.locator("ul.peak li").count() == 2


def busy_us(intervals, unit):
    """The time in which a unit is in use, whatever overlaps."""
    busy, until = 0.0, 0.0
    for one in sorted((one for one in intervals if one.unit == unit), key=lambda one: one.begin_us):
        busy += max(0.0, one.end_us - max(one.begin_us, until))
        until = max(until, one.end_us)
    return busy


def test_what_is_in_use_inside_a_folded_loop_is_drawn(shown, found):
    """No transfer of the example is outside its loop."""
    timeline = found.timeline()
    entry = timeline.computation(timeline.entry)
    (loop,) = [one for one in entry.intervals if one.runs]
    inside = sum(run.times * busy_us(timeline.computation(run.computation).intervals, "ici") for run in loop.runs)
    page = shown(found)
    lanes = f"{VIEW}.lanes.filter((lane) => lane.busy)"
    assert page.evaluate(f"{lanes}.map((lane) => lane.label)") == ["ICI x± y±"]
    assert page.evaluate(f"[...{lanes}[0].busy.parts]") == [pytest.approx(inside / (loop.end_us - loop.begin_us))]
    assert "in use inside a folded loop (height: share of its time)" in page.inner_text("#timeline .legend")
    lane = page.evaluate(f"(({{ top, row }}) => [{VIEW}.width / 2, top + row / 2])({lanes}[0])")
    colour = page.evaluate(
        "([x, y]) => { const canvas = document.querySelector('#timeline canvas:not(.overview)');"
        " return [...canvas.getContext('2d').getImageData(x * devicePixelRatio, y * devicePixelRatio, 1, 1).data] }",
        lane,
    )
    assert colour == [188, 211, 203, 255]
    page.click("#timeline canvas:not(.overview)", position={"x": lane[0], "y": lane[1]})
    assert f"%{loop.name}" in page.inner_text("#timeline .chosen")
    page.keyboard.press("Enter")
    assert page.evaluate(f"{lanes}.length") == 0


def test_shares_of_what_overlaps_and_of_inner_loops(browser, root):
    """Two transfers at once are in use once; an inner loop adds its own use where nothing around it is in use."""
    page = browser.new_page()
    assets = root / "hloscope" / "report" / "html" / "assets"
    page.evaluate((assets / "timeline_data.js").read_text() + ";globalThis.busyTimes = busyTimes;0")
    asked = """() => {
      const moves = [[2, 6], [0, 4], [8, 9]].map(([begin_us, end_us]) => ({ unit: 'dcn', begin_us, end_us }));
      const loop = { unit: 'core', begin_us: 5, end_us: 15 };
      const made = [...moves, loop].map((one) => ({ links: [], runs: one === loop ? [{}] : [], ...one }));
      return [...busyTimes(made, () => new Map([['dcn', 0.5], ['ici x+', 0.25]]))];
    }"""
    assert page.evaluate(asked) == [["dcn", 7 + 0.5 * (10 - 2)], ["ici x+", 0.25 * 10]]
    page.close()


@pytest.mark.parametrize("by", ["module", "none"])
def test_on_a_narrow_screen_what_is_exposed_is_seen(shown, found, by):
    page = shown(found, viewport=NARROW)
    page.select_option("#group-0", by)
    within, whole = page.evaluate(
        "(({ clientWidth, scrollWidth }) => [clientWidth, scrollWidth])(document.querySelector('#collectives .scroll'))"
    )
    assert whole <= within
    cell = page.locator('#collectives tbody tr:first-child td[data-column="exposed"]')
    assert cell.bounding_box()["x"] + cell.bounding_box()["width"] <= NARROW["width"]
    assert not page.locator('#collectives td[data-column="wire"]').first.is_visible()
    assert page.locator('#collectives td[data-column="wire"] data').count() > 0


def test_labels_are_broken_after_commas(shown):
    axes = {"data,model,replica": total(5, 1, 1)}
    totals = replace(FULL.totals, by_axis=axes)
    label = shown(replace(FULL, totals=totals)).locator("#summary .bars .label").first
    assert label.inner_text() == "data,model,replica"
    assert label.evaluate("(each) => each.innerHTML") == "data,<wbr>model,<wbr>replica"


def test_what_crosses_both_networks_is_said_to_be_counted_in_each(shown):
    words = "Transfers over both networks are counted once in each"
    assert words not in shown(TWO_SLICES).inner_text("#summary")
    both = replace(TWO_SLICES, totals=replace(TWO_SLICES.totals, executions=12))
    assert words in shown(both).inner_text("#summary")


def test_a_column_without_remarks_is_left_out(shown, found):
    page = shown(FULL)
    heads = "(table) => [...table.querySelectorAll('th')].map((each) => each.textContent)"
    tables = [each.evaluate(heads) for each in page.locator("#arrays table").all()]
    assert ["remarks" in each for each in tables] == [True, False]  # the argument is donated, the result is nothing
    page.locator("#arrays table").nth(1).locator("button.unfold").first.click()
    assert page.locator("#arrays .details td").first.get_attribute("colspan") == "5"
