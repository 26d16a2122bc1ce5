"""The page at ``/``: what `hamiregion top` shows, made on the server. It loads and runs nothing."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from libhamiregion import __version__
from libhamiregion.html_template import html_template
from libhamiregion.text import printable
from libhamiregion.units import format_size

from .labels import program_of
from .overview import CONTAINERS_PER_PAGE, PAGE_INTERVAL_S

if TYPE_CHECKING:
    import jinja2

from .overview import Overview

_TEXT_LIMIT: Final = 500
_NAME_LIMIT: Final = 80
_HERE: Final = Path(__file__).parent
_STYLE: Final = (_HERE / "overview.css").read_text(encoding="utf-8")
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

#: For the answer: no script, nothing from elsewhere, no style but the page's own, no frame around.
HEADERS: Final = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
}


def asked_for(query: bytes) -> tuple[int, str | None]:
    """Read an address's query: how many containers to leave out, and which one is opened."""
    found = parse_qs(query[:200].decode("ascii", "replace"))
    first, opened = (found.get(name, [""])[0] for name in ("from", "open"))
    return (
        int(first) if re.fullmatch("[0-9]{1,6}", first) else 0,
        opened if re.fullmatch("[0-9a-f]{16}", opened) else None,
    )


def overview_html(overview: Overview, opened: str | None = None) -> bytes:
    """Write the page.

    Raises:
        ModuleNotFoundError: jinja2 is missing, which the extra ``exporter`` installs.
    """
    return _template().render(overview=overview, opened=opened).encode("utf-8", "replace")


@functools.cache
def _template() -> jinja2.Template:
    return html_template(
        _HERE / "overview.html",
        style=_STYLE,
        text_limit=_TEXT_LIMIT,
        filters={
            "size": lambda nbytes: "unlimited" if nbytes is None else format_size(nbytes),
            "name": lambda text: "\u2013" if text is None else printable(text, _NAME_LIMIT),
            "program": program_of,
            "age": _age,
            "code": _code,
            "level": _level,
        },
        values={
            "version": __version__,
            "interval_s": round(PAGE_INTERVAL_S),
            "per_page": CONTAINERS_PER_PAGE,
        },
    )


def _code(text: str) -> str:
    """Escape a sentence, with the parts between backticks as code.

    >>> str(_code("run `hamiregion ps` <now>"))
    'run <code>hamiregion ps</code> &lt;now&gt;'
    """
    import markupsafe

    escaped = str(markupsafe.escape(printable(text, _TEXT_LIMIT)))
    marked = re.sub("`([^`]+)`", r"<code>\1</code>", escaped)
    return markupsafe.Markup(marked)  # noqa: S704 (escaped above)


def _age(seconds: float | None) -> str:
    """Say how old something is.

    >>> _age(None), _age(0.4), _age(75), _age(7300)
    ('not yet', 'now', '75 s ago', '2 h ago')
    """
    if seconds is None:
        return "not yet"
    if seconds < 1:
        return "now"
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 7200 else f"{seconds / 3600:.0f} h ago"


def _level(ratio: float | None) -> str:
    """Name the colour of a bar: as `hamiregion top` has them."""
    if ratio is None or ratio < 0.7:
        return "good"
    return "over" if ratio >= 0.9 else "near"


def page_bytes(source: Any, query: bytes) -> bytes:
    """Make the page that an address asks for, of a source with an `overview`."""
    first, opened = asked_for(query)
    return overview_html(source.overview(first, opened), opened)
