"""A finding: one thing that is wrong on a node, and the words for it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import attrs

from libhamiregion.text import printable

from .catalogue import FindingKind, Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libhamiregion.node.containers import Container
    from libhamiregion.node.matching import HostProcess

__all__ = ["Finding", "FindingKind", "Severity", "finding"]

_TEXT_LIMIT = 500
_NAME_LIMIT = 120
_COMMAND_LIMIT = 100
_LISTED_PIDS = 8


@attrs.frozen
class Finding:
    """One thing that is wrong.

    All texts are printable, what came from outside is escaped; each has at most 500 characters.

    Attributes:
        kind: What it is.
        severity: How bad.
        container: The container that has it; None for the node as a whole.
        device: Index of the device in the container's region; None if it is not about one.
        pid: The process in the container's pid namespace; None if it is not about one.
        summary: One line with the numbers that matter.
        evidence: What it is told by.
        consequence: What comes of it.
        advice: What to do.
        repairable: Whether `repair` mends it.
        cause: Where a kind has several causes, a word for this one.
    """

    kind: FindingKind
    severity: Severity
    container: Container | None
    device: int | None
    pid: int | None
    summary: str
    evidence: str
    consequence: str
    advice: str
    repairable: bool
    cause: str | None = None

    @property
    def paragraph(self) -> str:
        """What, evidence, consequence and what to do, as one paragraph."""
        what = self.summary[:1].upper() + self.summary[1:]
        return (
            f"{_ended(what)} Evidence: {_ended(self.evidence)}"
            f" Consequence: {_ended(self.consequence)} What to do: {_ended(self.advice)}"
        )


def finding(
    kind: FindingKind,
    container: Container | None,
    summary: str,
    evidence: str,
    *,
    device: int | None = None,
    pid: int | None = None,
    cause: str | None = None,
    severity: Severity | None = None,
    consequence: str | None = None,
    advice: str | None = None,
    repairable: bool | None = None,
) -> Finding:
    """Make a finding; what is not given comes from the catalogue."""
    general = kind.explanation
    wanted = general.advice if advice is None else advice
    return Finding(
        kind=kind,
        severity=general.severity if severity is None else severity,
        container=container,
        device=device,
        pid=pid,
        summary=_cut(summary),
        evidence=_cut(evidence),
        consequence=_cut(general.consequence if consequence is None else consequence),
        # A command that is copied must not repair the whole machine.
        advice=_cut(wanted.replace("--root DIR", _where(container))),
        repairable=general.repair is not None if repairable is None else repairable,
        cause=cause,
    )


def _where(container: Container | None) -> str:
    """The options that choose a container's root."""
    if container is None:
        return "--root DIR"
    if container.directory is None:
        return "--outside"
    root = container.directory.rpartition("/")[0]
    return f"--root {shlex.quote(printable(root, limit=_TEXT_LIMIT // 2))}"


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_LIMIT else f"{text[: _TEXT_LIMIT - 1]}…"


def _ended(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


# ---- Words --------------------------------------------------------------------------------------


def shown(text: str | None, limit: int = _NAME_LIMIT) -> str:
    """Text from outside, in quotes and escaped."""
    return "'" + printable(text or "", limit=limit) + "'"


def command_of(process: HostProcess | None) -> str:
    """A process's command line in brackets, escaped; empty if it is not known."""
    return "" if process is None else f" ({printable(process.command, limit=_COMMAND_LIMIT)})"


def pids_text(pids: Sequence[int], more: int = 0) -> str:
    """Some pids in a sentence, and how many more there are that are not known.

    >>> pids_text([7]), pids_text([7, 9]), pids_text(range(10), 5), pids_text([], 12)
    ('pid 7', 'pids 7 and 9', 'pids 0, 1, 2, 3, 4, 5, 6, 7 and 7 more', '12 pids')
    """
    named = [str(pid) for pid in pids[:_LISTED_PIDS]]
    rest = len(pids) - len(named) + more
    if not named:
        return count_text(rest, "pid")
    if len(named) == 1 and not rest:
        return f"pid {named[0]}"
    last = f"{rest} more" if rest else named.pop()
    return f"pids {', '.join(named)} and {last}"


def count_text(count: int, noun: str) -> str:
    """A number of things.

    >>> count_text(1, "slot"), count_text(3, "process")
    ('1 slot', '3 processes')
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def the_single(items: Sequence[int]) -> int | None:
    """The one there is; None where there are several."""
    return items[0] if len(items) == 1 else None
