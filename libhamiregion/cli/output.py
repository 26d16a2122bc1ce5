"""Where answers go: a terminal, a pipe, or JSON."""

from __future__ import annotations

import enum
import json
import os
import sys
from typing import Any

import attrs
import click
from rich.console import Console

from .options import NO_COLOR


def on_terminal() -> bool:
    """Whether a person looks at stdout; a pipe never gets escapes, whatever FORCE_COLOR says."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def terminal() -> Console:
    """Open the console for tables; nothing in text from a region is markup."""
    context = click.get_current_context(silent=True)
    no_color = context is not None and bool(context.meta.get(NO_COLOR))
    return Console(
        file=sys.stdout,
        markup=False,
        emoji=False,
        highlight=False,
        # None: rich asks NO_COLOR.
        no_color=True if no_color else None,
    )


def write(text: str) -> None:
    """Write to stdout now: whoever reads a pipe from `--watch` waits for whole pictures."""
    sys.stdout.write(text)
    sys.stdout.flush()


def write_json(answer: dict[str, Any]) -> None:
    """Write one object on one line.  ASCII only, so no path and no uuid steers a terminal."""
    write(json.dumps(answer) + "\n")


def as_plain(instance: attrs.AttrsInstance) -> dict[str, Any]:
    """Return attrs classes as dictionaries, keys as their fields, enums by value."""
    return attrs.asdict(instance, value_serializer=_serialized)


def _serialized(_: type, __: Any, value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value
