"""The page at / of an exporter."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

from libhamiregion import __version__
from libhamiregion.exporter import LandingFacts
from libhamiregion.exporter.landing import CONTENT_SECURITY_POLICY, landing_page

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Reads a page as a browser would, and insists that it is well-formed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def names(self) -> set[str]:
        return {tag for tag, _ in self.tags}


def test_it_says_what_is_watched_where_the_answers_are_and_which_version_it_is() -> None:
    facts = LandingFacts("gpu-7", (("Directories", "/usr/local/vgpu/containers"),))
    page = Page(landing_page(facts))
    links = {attrs["href"] for tag, attrs in page.tags if tag == "a"}
    assert links == {"/metrics", "/healthz", "/readyz"}
    text = " ".join(page.texts)
    for expected in ("gpu-7", "Directories", "/usr/local/vgpu/containers", __version__):
        assert expected in text


def test_names_from_outside_stay_text() -> None:
    hostile = "<script>alert(1)</script>'\"&\x1b[2J\u202e"
    page = Page(landing_page(LandingFacts(hostile, ((hostile, hostile),))))
    assert "script" not in page.names()
    shown = r"""<script>alert(1)</script>'"&\x1b[2J\u202e"""
    assert page.texts.count(shown) == 2
    assert f"hamiregion exporter on {shown}" in page.texts


def test_without_facts_it_is_a_page_all_the_same() -> None:
    assert "Watched" not in Page(landing_page(LandingFacts())).texts


def test_long_values_and_many_rows_are_cut() -> None:
    rows = tuple((f"row {number}", "x" * 10_000) for number in range(5000))
    page = landing_page(LandingFacts("n" * 10_000, rows))
    assert len(page) < 100_000
    assert "4900 rows" in page


def test_it_loads_nothing_and_runs_nothing() -> None:
    page = Page(landing_page(LandingFacts("node", (("a", "b"),))))
    assert page.names().isdisjoint({"script", "img", "iframe", "object", "embed", "form"})
    assert all(not name.startswith("on") for _, attrs in page.tags for name in attrs)
    for tag, attrs in page.tags:
        for name in ("src", "href"):
            if name in attrs and tag != "a":
                assert (attrs[name] or "").startswith("data:")


def test_the_policy_permits_this_style_and_no_other() -> None:
    style = re.search("<style>(.*)</style>", landing_page(LandingFacts()), re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in CONTENT_SECURITY_POLICY
    assert "default-src 'none'" in CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY
