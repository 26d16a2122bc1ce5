"""What a client wants: which text format, and whether compressed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

# A header names a handful of formats; the rest of a longer one is not read.
_MOST_RANGES: Final = 64


def wants_openmetrics(accept: str) -> bool:
    """Whether OpenMetrics 1.0.0 is what a client prefers to the text format.

    Args:
        accept: The header ``Accept``; several of them joined by commas; empty if there is none.

    Returns:
        True if OpenMetrics is named, in version 1.0.0 or in none, and the text format is not
        preferred to it. Wildcards mean the text format, which everything reads.
    """
    openmetrics = text = 0.0
    for media_type, parameters, quality in _ranges(accept):
        version = parameters.get("version", "")
        if media_type == "application/openmetrics-text" and version in ("", "1.0.0"):
            openmetrics = max(openmetrics, quality)
        elif media_type == "text/plain":
            text = max(text, quality)
    return openmetrics > 0 and openmetrics >= text


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether a client takes a compressed answer; `accept_encoding` is the header, or empty."""
    named: float | None = None
    others = 0.0
    for coding, _, quality in _ranges(accept_encoding):
        if coding in ("gzip", "x-gzip"):
            named = max(named or 0.0, quality)
        elif coding == "*":
            others = quality
    return (others if named is None else named) > 0


def _ranges(header: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for part in header.split(",", _MOST_RANGES)[:_MOST_RANGES]:
        name, *rest = part.split(";")
        parameters = {}
        for parameter in rest:
            key, separator, value = parameter.partition("=")
            if separator:
                parameters[key.strip().lower()] = value.strip().strip('"')
        yield name.strip().lower(), parameters, _quality(parameters.get("q", "1"))


def _quality(text: str) -> float:
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    # Also false for what is no number.
    return quality if 0.0 <= quality <= 1.0 else 0.0
