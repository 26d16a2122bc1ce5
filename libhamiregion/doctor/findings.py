"""What a finding is, and the words that findings are made of."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from libhamiregion.text import printable

from .catalogue import FindingKind, Severity

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Sequence

    from libhamiregion.observation.containers import Container
    from libhamiregion.observation.processes import HostProcess

__all__ = ["Finding", "FindingKind", "Severity", "finding"]

_TEXT_LIMIT = 500
_NAME_LIMIT = 120
_COMMAND_LIMIT = 100
_LISTED_PIDS = 8

#: Identifies a container across observations, in which its object may be another one.
ContainerKey: TypeAlias = "tuple[str | None, str | None, tuple[int, ...]]"


def key_of(container: Container | None) -> ContainerKey:
    """Return the key of a container; of the whole node for None."""
    if container is None:
        return None, None, ()
    return container.directory, container.region_path, container.pids


@attrs.frozen
class Finding:
    """One thing that is wrong.

    All texts are printable, with outside text escaped, and have at most 500 characters.

    Attributes:
        kind: What it is.
        severity: How bad.
        container: The container that has it; None for the whole node.
        device: Index of the device in the container's region, or without a container of the GPU;
            None if about no single device.
        pid: The process in the container's pid namespace; None if about no single process.
        summary: One line with the numbers that matter.
        evidence: The facts that prove it.
        consequence: The consequence.
        advice: What to do.
        repairable: Whether `repair` repairs it.
        cause: A word for the cause, if the kind has several.
        is_transient: Whether a healthy node can show it for a moment, so that it counts only if it
            is found twice.
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
    is_transient: bool = False

    @property
    def key(self) -> Hashable:
        """Equal for the same finding in two diagnoses."""
        place = key_of(self.container), self.device, self.pid
        return self.kind, *place, self.cause

    @property
    def paragraph(self) -> str:
        """Summary, evidence, consequence and advice as one paragraph."""
        summary = self.summary[:1].upper() + self.summary[1:]
        return (
            f"{_ended(summary)} Evidence: {_ended(self.evidence)}"
            f" Consequence: {_ended(self.consequence)} What to do: {_ended(self.advice)}"
        )


def finding(kind: FindingKind, summary: str, evidence: str, **about: Any) -> Finding:
    """Make a finding; the catalogue has the defaults of attributes that are left out or None."""
    general = kind.explanation
    attributes: dict[str, Any] = {
        **dict.fromkeys(("container", "device", "pid")),
        "severity": general.severity,
        "consequence": general.consequence,
        "advice": general.advice,
        "repairable": general.is_repairable,
        "is_transient": general.is_transient,
        **{name: value for name, value in about.items() if value is not None},
    }
    # A command that is copied must not repair the whole machine.
    root = _root_option(attributes["container"])
    attributes["advice"] = attributes["advice"].replace("--root DIR", root)
    for name in ("consequence", "advice"):
        attributes[name] = _cut(attributes[name])
    return Finding(kind=kind, summary=_cut(summary), evidence=_cut(evidence), **attributes)


def confirmed(found: Iterable[Finding], before: Collection[Hashable]) -> list[Finding]:
    """Drop transient findings that were not found before.

    Args:
        found: The findings of a diagnosis.
        before: The keys of an earlier one's.
    """
    return [each for each in found if not each.is_transient or each.key in before]


def _root_option(container: Container | None) -> str:
    """Return the option that selects a container's root."""
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


def shown(text: str | None, limit: int = _NAME_LIMIT) -> str:
    """Quote and escape text from outside."""
    return "'" + printable(text or "", limit=limit) + "'"


def command_of(process: HostProcess | None) -> str:
    """Return a process's command line in brackets, escaped; empty if it is not known."""
    return "" if process is None else f" ({printable(process.command, limit=_COMMAND_LIMIT)})"


def pids_text(pids: Sequence[int]) -> str:
    """Name some pids, and the number of the others.

    >>> pids_text([7]), pids_text([7, 9]), pids_text(range(15))
    ('pid 7', 'pids 7 and 9', 'pids 0, 1, 2, 3, 4, 5, 6, 7 and 7 more')
    """
    named = [str(pid) for pid in pids[:_LISTED_PIDS]]
    if len(named) == 1:
        return f"pid {named[0]}"
    rest = len(pids) - len(named)
    last = f"{rest} more" if rest else named.pop()
    return f"pids {', '.join(named)} and {last}"


def only_or_none(items: Sequence[int]) -> int | None:
    """Return the only item; None if there are several or none."""
    return items[0] if len(items) == 1 else None
