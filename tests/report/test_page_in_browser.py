"""The report's page in a real browser: on a wide and a narrow window, in the dark, and on paper."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Browser, Page, chromium, is_blank, needs_chromium
from support.recorded_day import DAY_S, MIDNIGHT_S, record, tenants

from libhamiregion.report import Recording, make_report, report_html
from libhamiregion.report.page import CHART_POINTS

pytestmark = needs_chromium

SPAN = (MIDNIGHT_S * 1000, (MIDNIGHT_S + DAY_S) * 1000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def page_of(directory: Path, path: Path) -> Path:
    with Recording(path) as recording:
        report = make_report([recording], *SPAN, by="namespace", points=CHART_POINTS)
    page = directory / "report.html"
    page.write_text(report_html(report), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def page(tmp_path_factory, browser) -> Iterator[Page]:
    directory = tmp_path_factory.mktemp("page")
    record(directory / "node.db", tenants(), interval_s=300)
    with browser.open(page_of(directory, directory / "node.db").as_uri()) as opened:
        yield opened


def test_nothing_is_wrong_and_nothing_is_loaded(page):
    assert page.messages == []
    assert page.failures == []
    assert len(page.requests) == 1
    assert page.requests[0].startswith("file://")
    assert page.evaluate("document.title") == "GPU report: gpu-node-07"
    assert page.evaluate("document.scripts.length") == 0


@pytest.mark.parametrize("width", [1280, 820, 360])
def test_a_page_fits_any_window(page, width):
    """In the light and in the dark. Only tables may be wider, and they scroll on their own."""
    page.assert_fits(width)
    outside = page.evaluate(
        "[...document.querySelectorAll('.tile, .chart, .card, h2, p')]"
        ".filter(each => each.getBoundingClientRect().right > innerWidth + 1).length"
    )
    assert outside == 0


def test_charts_are_drawn_where_the_figures_are(page):
    """The blue area ends at the share of the axis that the memory has of its top."""
    page.appear()
    ratio = page.evaluate(
        "(() => { const area = document.querySelector('.chart.memory .area');"
        " const used = area.querySelector('path.peak').getBoundingClientRect();"
        " return used.height / area.getBoundingClientRect().height; })()"
    )
    text = page.evaluate("document.querySelector('#summary').innerText")
    peak = re.search(r"([0-9.]+)\s*GiB\s*1 Oct", text)
    ticks = page.evaluate(
        "[...document.querySelector('.chart.memory').querySelectorAll('.tick')]"
        ".map(each => each.innerText)"
    )
    assert peak is not None, text
    highest = max(float(tick.split()[0]) for tick in ticks if tick.endswith("GiB"))
    assert ratio == pytest.approx(float(peak[1]) / highest, abs=0.01)


def test_a_page_prints_on_a_few_sheets(page):
    printed = page.pdf()
    assert printed.startswith(b"%PDF-")
    sheets = len(re.findall(rb"/Type\s*/Page\b", printed))
    assert 3 <= sheets <= 14


def test_the_browser_would_tell(browser, tmp_path):
    """A page that does what a report must not is caught at it, or the tests above prove nothing."""
    page = tmp_path / "bad.html"
    page.write_text("<script>console.error('no')</script><img src='http://127.0.0.1:9/x.png'>")
    with browser.open(page.as_uri()) as opened:
        assert "error: no" in opened.messages
        assert "http://127.0.0.1:9/x.png" in opened.requests
        assert opened.failures
    blank = tmp_path / "blank.html"
    blank.write_text("<!DOCTYPE html><title>blank</title>")
    with browser.open(blank.as_uri()) as opened:
        assert is_blank(opened.screenshot())
