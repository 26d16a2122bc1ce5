"""The page at / in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from browser import Browser, chromium, is_blank, needs_chromium

from libhamiregion.exporter import LandingFacts, MetricsServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = needs_chromium

HOSTILE = "<img src=x onerror=alert(1)><script>document.title='owned'</script>"
FACTS = LandingFacts(
    "gpu-7",
    (
        ("Directories watched", "/usr/local/vgpu/containers"),
        ("Directories that cannot be read", f"/srv/{HOSTILE}"),
        ("Containers with a region", "12"),
        ("NVIDIA driver", "570.86.15"),
        ("Last time: processes", "3 s ago"),
    ),
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with MetricsServer(
        lambda *, openmetrics: b"up 1\n",  # noqa: ARG005
        "127.0.0.1:0",
        landing=lambda: FACTS,
    ) as server:
        yield server.urls[0]


def test_it_loads_nothing_else_and_the_browser_has_nothing_to_complain_about(
    browser: Browser, url: str
) -> None:
    with browser.open(f"{url}/") as page:
        assert page.status == 200
        assert [each for each in page.requests if not each.startswith("data:")] == [f"{url}/"]
        assert page.failures == []
        assert page.messages == []
        assert page.evaluate("document.title") == "hamiregion exporter on gpu-7"
        # Names from outside are text.
        assert page.evaluate("document.querySelectorAll('script, img').length") == 0
        assert HOSTILE in page.evaluate("document.body.innerText")


def test_its_links_lead_somewhere(browser: Browser, url: str) -> None:
    with browser.open(f"{url}/") as page:
        links = page.evaluate("Array.from(document.links, each => each.href)")
    assert links == [f"{url}/{name}" for name in ("metrics", "healthz", "readyz")]
    for link in links:
        with browser.open(link) as page:
            assert page.status == 200
            assert page.messages == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_looks_like_something_and_fits_a_phone(
    browser: Browser, url: str, dark: bool, tmp_path: Path
) -> None:
    with browser.open(f"{url}/") as page:
        for width in (1000, 360):
            page.appear(width=width, height=800, dark=dark)
            picture = page.screenshot()
            (tmp_path / f"{width}.png").write_bytes(picture)
            assert not is_blank(picture)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        # Text can be told from what is behind it.
        colours = page.evaluate(
            "[getComputedStyle(document.body).color, getComputedStyle(document.body).colorScheme]"
        )
        assert colours == ["rgb(255, 255, 255)" if dark else "rgb(0, 0, 0)", "light dark"]
