"""The pages of check, price, suggest, verify and compare in real headless Chromium: what their one script adds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pages import CHROMIUM, UNFOLD_ALL, data_of
from result_examples import all_of

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
pytest.importorskip("playwright", reason="playwright is not installed")

SUBJECTS = ("check", "comparison", "prices", "suggestions", "verification")
COLUMN = """([table, place]) => [...document.querySelectorAll(`table:has(caption)`)]
  .find((each) => each.caption.textContent === table)
  .querySelectorAll(`tbody tr > :nth-child(${place})`)"""
CELLS = f"(asked) => [...({COLUMN})(asked)].map((cell) => cell.querySelector('data')?.value ?? cell.textContent)"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    found = all_of(tmp_path_factory.mktemp("check"))
    return {subject: found[subject].report("html") for subject in SUBJECTS}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_it_complains_of_nothing_fits_narrow_screens_and_prints(shown, pages, subject):
    page = shown(pages[subject], viewport={"width": 400, "height": 900}, color_scheme="dark")
    page.evaluate(UNFOLD_ALL)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    page.click("#theme")
    assert page.evaluate(paper) != dark
    page.emulate_media(color_scheme="dark", media="print")
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()


def test_the_targets_of_a_check_are_filtered(shown, pages):
    page = shown(pages["check"])
    status = page.locator("#targets [role=status]")
    assert status.inner_text() == "8 targets"
    page.select_option("#kind-target", "passed")
    assert status.inner_text() == "4 of 8 targets"
    page.select_option("#kind-target", "")
    page.keyboard.press("Tab")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    page.keyboard.type("moe.py all-gather")
    assert status.inner_text() == "1 of 8 targets"
    assert page.locator("#targets details:not([hidden]) summary").inner_text().split()[:3] == ["✗", "failed", "step"]


def test_tables_are_sorted_by_what_they_hold(shown, pages):
    page = shown(pages["prices"])
    heading = page.locator("th", has_text="step").first
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    falling = page.evaluate(CELLS, ["Slices", 3])
    assert [round(float(value)) for value in falling[:4]] == [100, 56, 45, 40]
    assert falling[4:] == ["unknown", "unknown"]
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    rising = page.evaluate(CELLS, ["Slices", 3])
    assert [round(float(value)) for value in rising[:4]] == [40, 45, 56, 100]
    assert rising[4:] == ["unknown", "unknown"]
    assert page.evaluate(CELLS, ["Slices", 1])[0].startswith("v5e:4x8")


def test_infinite_errors_are_the_largest(shown, pages):
    page = shown(pages["verification"])
    page.locator("th", has_text="largest error").locator("button").click()
    assert page.evaluate(CELLS, ["Outputs", 7])[0] == "inf"


def test_with_keys_alone(shown, pages):
    page = shown(pages["suggestions"])
    page.focus("#recipes summary")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent").startswith("2 tensor parallel over Y")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open")
    page.keyboard.press("k")
    assert page.evaluate("document.activeElement.textContent").startswith("1 FSDP over X")


def test_on_paper_everything_is_unfolded(shown, pages):
    page = shown(pages["check"])
    folded = "document.querySelectorAll('details:not([open])').length"
    before = page.evaluate(folded)
    assert before > 4
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(folded) == 0
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(folded) == before


def test_a_rule_leads_to_its_page(shown, pages):
    page = shown(pages["check"])
    assert not page.locator("#rule-contract-undecided p").first.is_visible()
    page.locator("#targets a", has_text="contract-undecided").first.click()
    assert page.locator("#rule-contract-undecided p").first.is_visible()


def test_the_figures_are_saved_as_json(shown, pages):
    page = shown(pages["comparison"])
    with page.expect_download() as download:
        page.click("#save")
    saved = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    assert saved == data_of(pages["comparison"])["document"]


def test_it_can_be_read_without_scripts(browser, pages, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(pages["check"], encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert "contract-broken" in page.inner_text("main")
    assert not page.locator("#targets .tools").is_visible()
    context.close()
