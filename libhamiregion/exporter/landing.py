"""The page at ``/``: what this exporter watches, and where its answers are."""

from __future__ import annotations

import base64
import hashlib
import html
from typing import Final

import attrs

from libhamiregion._version import __version__
from libhamiregion.text import printable

# What is shown of one value; a page is no place for a megabyte of file name.
_VALUE_LIMIT: Final = 500
_ROWS_LIMIT: Final = 100

_STYLE: Final = """\
:root { color-scheme: light dark; --line: #d5d9e0; --dim: #5b6472; --link: #0b5cad; }
@media (prefers-color-scheme: dark) { :root { --line: #3a414c; --dim: #9aa4b2; --link: #6cb2ff; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 3rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p { margin: .2rem 0; }
.dim { color: var(--dim); }
a { color: var(--link); }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .4rem .8rem .4rem 0;
  border-top: 1px solid var(--line); overflow-wrap: anywhere; }
th { font-weight: 400; color: var(--dim); width: 15rem; overflow-wrap: normal; }
th a { font-family: ui-monospace, monospace; }
@media (max-width: 34rem) { th { width: 8rem; } }
"""
#: Drawn by hand: two devices, each filled to some part. Browsers ask for one wherever they are.
ICON: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<rect x="1" y="2" width="14" height="5" rx="1" fill="#0b5cad" fill-opacity=".3"/>'
    '<rect x="1" y="2" width="9" height="5" rx="1" fill="#0b5cad"/>'
    '<rect x="1" y="9" width="14" height="5" rx="1" fill="#0b5cad" fill-opacity=".3"/>'
    '<rect x="1" y="9" width="5" height="5" rx="1" fill="#0b5cad"/></svg>'
)
_ICON_URL: Final = "data:image/svg+xml;base64," + base64.b64encode(ICON.encode()).decode()
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

#: Nothing is loaded from anywhere, nothing runs, and nobody frames the page.
CONTENT_SECURITY_POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_LINKS: Final = (
    ("/metrics", "the metrics, for Prometheus"),
    ("/healthz", "whether this process answers"),
    ("/readyz", "whether it can read the node"),
)


@attrs.frozen
class LandingFacts:
    """What the page says about an exporter; plain text, which the page escapes.

    Attributes:
        node_name: The node's name; None if it has none.
        rows: What it watches and how: a label and a value each.
    """

    node_name: str | None = None
    rows: tuple[tuple[str, str], ...] = ()


def landing_page(facts: LandingFacts) -> str:
    """The page as HTML, without scripts, complete in itself.

    Args:
        facts: What to show. Rows past the hundredth are counted, not shown.
    """
    title = "hamiregion exporter"
    if facts.node_name:
        title += f" on {facts.node_name}"
    rows = [
        f"<tr><th scope='row'>{_text(label)}</th><td>{_text(value)}</td></tr>\n"
        for label, value in facts.rows[:_ROWS_LIMIT]
    ]
    hidden = len(facts.rows) - len(rows)
    if hidden > 0:
        rows.append(f"<tr><th scope='row'>and more</th><td>{hidden} rows</td></tr>\n")
    table = f"<h2>Watched</h2>\n<table>\n{''.join(rows)}</table>\n" if rows else ""
    links = "".join(
        f"<tr><th scope='row'><a href='{path}'>{path}</a></th><td>{what}</td></tr>\n"
        for path, what in _LINKS
    )
    return (
        "<!DOCTYPE html>\n"
        "<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{_text(title)}</title>\n"
        f"<link rel='icon' href='{_ICON_URL}'>\n"
        f"<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{_text(title)}</h1>\n"
        "<p class='dim'>GPU containers and their shared regions."
        f" Version {_text(__version__)}</p>\n"
        f"<h2>Answers</h2>\n<table>\n{links}</table>\n"
        f"{table}</body>\n</html>\n"
    )


def _text(text: str) -> str:
    return html.escape(printable(text, _VALUE_LIMIT), quote=True)
