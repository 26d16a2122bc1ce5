"""Templates of pages that show texts of containers: none becomes HTML, and all are bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import jinja2


def html_template(
    page: Path,
    *,
    style: str,
    text_limit: int,
    filters: Mapping[str, Callable[..., Any]],
    values: Mapping[str, Any],
) -> jinja2.Template:
    """Read the template of a page.

    Args:
        page: The template's file.
        style: The page's style sheet, as the template's ``style``.
        text_limit: How many characters of any text are shown.
        filters: What the template may do with a value, by name.
        values: What it may show besides what it is rendered with.

    Raises:
        ModuleNotFoundError: jinja2 is missing.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        # Every text is bounded, and its control characters are spelled out, wherever it comes from.
        finalize=lambda value: (
            printable(value, text_limit)
            if isinstance(value, str) and not isinstance(value, Markup)
            else value
        ),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    environment.globals.update(values, style=Markup(style))  # noqa: S704 (our own)
    return environment.from_string(page.read_text(encoding="utf-8"))
