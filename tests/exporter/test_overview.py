"""The exporter's page at /: in a real browser, on nodes of three sizes, and with hostile names."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.browser import Browser, BrowserError, Page, chromium, needs_chromium
from support.region_file import RegionFile
from support.scrapers import ask
from support.wait import eventually

from libhamiregion import Layout, create_region, open_region
from libhamiregion.exporter import MetricsServer, NodeExporter, overview
from libhamiregion.exporter import exporter as exporter_module
from libhamiregion.exporter.overview import CONTAINERS_PER_PAGE
from libhamiregion.testing import FakeNode
from libhamiregion.units import GIB

HERE = "127.0.0.1:0"
HOSTILE = "<img src=http:x onerror=console.log(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def fake(tmp_path_factory) -> Iterator[FakeNode]:
    """Three containers: one with a dead process, one over 90 % of its limit, one without."""
    with FakeNode(tmp_path_factory.mktemp("node") / "machine") as node:
        node.add("train", pod="bert-0", memory_limits=["8GiB", "4GiB"], sm_limits=[50, None])
        node.add("serve", pod="whisper-0", namespace="inference", processes=2)
        node.add("serve", pod="llama-0", memory_limits=[None], processes=0)
        node.add("idle", pod="cpu-0", region=False)
        for _ in range(3):
            node.step()
        node.containers[1].processes[0].kill()
        first = node.containers[0]
        assert first.region is not None
        with open_region(first.region, writable=True) as region:
            used = region.memory_used(0)
            region.set_memory_limit(used + used // 100 + 1, device=0)
        yield node


@pytest.fixture(scope="module")
def url(fake) -> Iterator[str]:
    with (
        fake.node() as node,
        MetricsServer(NodeExporter(node, node_name="gpu-node-7"), HERE) as server,
    ):
        yield server.urls[0]


def text_of(page: Page) -> str:
    return page.evaluate("document.body ? document.body.innerText : ''")


def shows(page: Page, words: str) -> bool:
    """Whether the page says that; False while another one comes."""
    try:
        return words in text_of(page)
    except BrowserError:
        return False


@needs_chromium
def test_the_page_shows_what_top_shows_and_runs_and_loads_nothing(browser, url, fake):
    with browser.open(f"{url}/") as page:
        assert (page.status, page.messages, page.failures) == (200, [], [])
        assert page.requests == [f"{url}/"]
        assert page.evaluate("document.scripts.length") == 0
        assert page.evaluate("document.title") == "gpu-node-7: GPU containers"
        text = text_of(page)
        for container in fake.containers:
            assert container.pod in text
        age = r"(now|\d+ (s|min) ago)"
        assert re.search(rf"Regions read {age}, processes {age}", text)
        assert "no .cache file" in text
        assert "1 dead" in text
        assert "dead process still counted" in text, "what the doctor found"
        # Problems first, then the containers by name, each with a bar of its share of the limit.
        problems, _, listed = text.partition("\nContainers\n")
        assert "dead process still counted" in problems
        assert re.findall(r"^(\S+/)(\S+-0) \w+$", listed, re.MULTILINE) == [
            ("default/", "bert-0"), ("default/", "llama-0"), ("inference/", "whisper-0"),
        ]  # fmt: skip
        widths = page.evaluate(
            "[...document.querySelectorAll('#containers + .panel .row')].map(row => {"
            " const bar = row.querySelector('svg');"
            " const used = bar.querySelector('.good, .near, .over');"
            " return used ? used.getBoundingClientRect().width"
            " / bar.getBoundingClientRect().width : 0; })"
        )
        assert widths[0] == pytest.approx(0.99, abs=0.01)
        assert widths[2] == 0, "nothing is full where nothing limits"
        assert page.evaluate("document.querySelectorAll('.over').length") == 1
        # Its own style is allowed, and applied.
        assert page.evaluate("getComputedStyle(document.querySelector('.row')).display") == "grid"


@needs_chromium
@pytest.mark.parametrize("width", [1180, 390])
def test_the_page_fits_a_screen_and_a_phone_in_the_light_and_in_the_dark(browser, url, width):
    with browser.open(f"{url}/") as page:
        page.assert_fits(width)


@needs_chromium
def test_a_click_shows_the_processes_and_they_stay_when_the_page_comes_anew(browser, url, fake):
    pids = [str(process.pid) for process in fake.containers[1].processes]
    with browser.open(f"{url}/") as page:
        assert "host PID" not in text_of(page)
        link = "[...document.querySelectorAll('.who a')].find(a => a.innerText == 'whisper-0')"
        began_s = time.monotonic()
        page.evaluate(f"{link}.click()")
        eventually(lambda: shows(page, "host PID"))
        text = text_of(page)
        assert all(pid in text for pid in pids)
        assert "dead" in text
        assert "libhamiregion.testing" not in text, "no arguments, which can hold secrets"
        # The row that was clicked keeps its place, also when the page comes anew.
        place = page.evaluate("location.hash")
        assert page.evaluate(f"document.querySelector('{place}').innerText").count("whisper-0") == 1
        seen = len(page.requests)
        eventually(lambda: not shows(page, "nobody") and len(page.requests) > seen)
        assert time.monotonic() - began_s > 2, "not more often than it says"
        assert page.requests[-1] == page.requests[seen - 1], "the same page"
        eventually(lambda: shows(page, "host PID"))
        page.evaluate(f"{link}.click()")
        eventually(lambda: shows(page, "whisper-0") and not shows(page, "host PID"))


def test_eight_readers_of_the_page_cost_one_making_and_keep_no_scrape_out(files, monkeypatch):
    files.container()
    made: list[object] = []
    written = overview.page_html
    monkeypatch.setattr(
        exporter_module, "page_html", lambda *args: made.append(args) or written(*args)
    )
    with files.open() as node, MetricsServer(NodeExporter(node), HERE) as server:
        address = server.urls[0]
        views = ["/", "/?open=" + "a" * 16, "/?from=x", "/"] * 2
        with ThreadPoolExecutor(9) as pool:
            asked = [pool.submit(ask, address, view) for view in views for _ in range(5)]
            scraped = [ask(address, "/metrics").status for _ in range(3)]
            assert {each.result().status for each in asked} == {200}
        assert scraped == [200] * 3
    # Two views: what makes no sense in an address is no view of its own.
    assert len(made) == 2
    assert len({id(args[0]) for args in made}) == 1, "of one pass over the node"


def test_commands_are_code_and_missing_driver_figures_have_a_reason(url):
    page = ask(url, "/").text
    assert "<code>hamiregion " in page
    assert "`" not in page
    assert "No driver figures: the driver was not asked" in page


def test_nothing_but_its_own_style_is_allowed_and_nothing_is_kept(url):
    reply = ask(url, "/")
    policy = dict(
        each.strip().split(" ", 1) for each in reply.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert re.fullmatch(r"'sha256-[A-Za-z0-9+/]{43}='", policy["style-src"])
    assert "script-src" not in policy
    assert (policy["frame-ancestors"], policy["form-action"]) == ("'none'", "'none'")
    assert reply.headers["cache-control"] == "no-store"
    assert " style=" not in reply.text, "an attribute would need a laxer policy"
    assert 'http-equiv="refresh" content="5; url=/"' in reply.text


@pytest.mark.parametrize(
    "query",
    ["from=99999999999", "from=-1", "open=../../etc", "open=" + "a" * 16, "&" * 5000, "from=%00"],
)
def test_whatever_an_address_asks_for_a_page_comes(url, query):
    reply = ask(url, f"/?{query}")
    assert reply.status == 200
    assert "bert-0" in reply.text
    assert "etc" not in reply.text


@needs_chromium
def test_hostile_names_stay_text(browser, files):
    for number in range(3):
        name = f"{HOSTILE}\x1b[2J\u202e{number}".replace("/", "_")
        path = files.container(name, pod=None, region=False).directory / "usage.cache"
        create_region(path, memory_limits=["4GiB"], uuids=[f"GPU-{HOSTILE}"])
        RegionFile(path, Layout.V1_2).add_process(7, {0: 5 * GIB})
    (files.root / f"{'x' * 200}_{HOSTILE}").mkdir()
    with (
        files.open() as node,
        MetricsServer(NodeExporter(node), HERE) as server,
        browser.open(f"{server.urls[0]}/") as page,
    ):
        assert (page.status, page.messages, page.failures) == (200, [], [])
        assert len(page.requests) == 1
        assert page.evaluate("document.images.length") == 0
        text = text_of(page)
        assert HOSTILE in text
        assert "\x1b" not in text
        assert "\u202e" not in text
        page.appear(width=390)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow(keep=1)
@needs_chromium
@pytest.mark.parametrize("count", [256, 1000])
def test_a_page_of_many_containers_is_bounded_and_leads_to_the_others(browser, files, count):
    for number in range(count):
        files.container(f"c{number}", pod=f"job-{number}", memory_limits=["4GiB", "2GiB"])
    with (
        files.open() as node,
        MetricsServer(NodeExporter(node, collectors=("processes",)), HERE) as server,
    ):
        seen: set[str] = set()
        for first in range(0, count, CONTAINERS_PER_PAGE):
            reply = ask(server.urls[0], f"/?from={first}")
            assert reply.status == 200
            assert len(reply.body) < 512 * 1024
            here = set(re.findall(r">(job-\d+)<", reply.text))
            assert len(here) == min(CONTAINERS_PER_PAGE, count - first)
            assert not here & seen
            seen |= here
            assert f"{count:,} containers" in reply.text
            after = first + CONTAINERS_PER_PAGE
            assert (f"from={after}" in reply.text) == (after < count)
        assert len(seen) == count
        with browser.open(f"{server.urls[0]}/") as page:
            assert (page.status, page.messages, page.failures) == (200, [], [])
            rows = "document.querySelectorAll('.row').length"
            eventually(lambda: page.evaluate(rows) >= 2 * CONTAINERS_PER_PAGE)
            page.appear(width=390)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
