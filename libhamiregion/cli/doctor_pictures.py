"""What the doctor found as a picture: for a terminal, a pipe, JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from libhamiregion.errors import RegionError
from libhamiregion.node.doctor import Severity

from .driver_tables import driver_object
from .node_words import Names, names_of, word
from .plain import aligned
from .render import GOOD, NEAR, OVER, QUIET
from .wording import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from libhamiregion.node import Finding, Node, NvmlSample, Repair, Selector

# Longer lines are hard to read.
_WIDEST = 100
_STYLES = {Severity.ERROR: f"bold {OVER}", Severity.WARNING: NEAR, Severity.INFO: "cyan"}
_NOUNS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


@attrs.frozen
class _Device:
    """A device as `Selector` compares it."""

    index: int
    uuid: str | None


@attrs.frozen
class NamedFinding:
    """A finding with the names of its container; those are raw text."""

    names: Names
    finding: Finding

    @property
    def where(self) -> str:
        """Device and pid in words; empty if it is about neither."""
        parts = []
        if self.finding.device is not None:
            parts.append(f"device {self.finding.device}")
        if self.finding.pid is not None:
            parts.append(f"pid {self.finding.pid}")
        return ", ".join(parts)

    @property
    def container_words(self) -> str:
        """Pod and container in one; printable."""
        container = self.finding.container
        if container is None:
            return "the node"
        names = self.names
        if names.pod_words == NOTHING and names.container_words == NOTHING:
            return "a container outside the roots"
        if names.container_words == NOTHING:
            return f"{names.pod_words}, outside the roots"
        return f"{names.pod_words} {names.container_words}"


def named_finding(node: Node, finding: Finding) -> NamedFinding:
    """Name a finding's container by the node's resolvers."""
    if finding.container is None:
        return NamedFinding(Names(None, None, None, None, None), finding)
    return NamedFinding(names_of(node, finding.container), finding)


def selected(node: Node, selector: Selector, finding: Finding) -> bool:
    """Whether a finding is about what is chosen; one about the whole node always is."""
    container = finding.container
    if container is None:
        return True
    if not selector.matches_container(container, node.pod_name(container)):
        return False
    if selector.device is None or finding.device is None:
        return True
    return selector.matches_device(_Device(finding.device, _uuid(finding)))


def _uuid(finding: Finding) -> str | None:
    region = None if finding.container is None else finding.container.region
    try:
        devices = () if region is None else region.snapshot().devices
    except RegionError:
        return None
    return next((each.uuid for each in devices if each.index == finding.device), None)


def is_left(finding: Finding) -> bool:
    """Whether it counts for the exit code: a note may well be meant."""
    return finding.severity is not Severity.INFO


@attrs.frozen
class DoctorPicture:
    """One visit of the doctor.

    Attributes:
        taken_at_ns: Unix nanoseconds.
        findings: What was found; with repairs, what is left.
        repairs: What was done; None without ``--repair``.
        dry_run: Whether it only says what would be done.
        left: Findings that count for the exit code.
        looked_at: How many containers there are.
        sample: What the driver said; None if it was not asked.
        driver_gap: Why nothing was compared with the driver's figures.
        complete: Whether every process of the node could be seen.
    """

    taken_at_ns: int
    findings: tuple[NamedFinding, ...]
    repairs: tuple[tuple[NamedFinding, Repair], ...] | None
    dry_run: bool
    left: int
    looked_at: int
    sample: NvmlSample | None
    driver_gap: str | None
    complete: bool
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    failure: str | None

    # ---- for programs ----------------------------------------------------------------------------

    def as_object(self) -> dict[str, Any]:
        """The picture for programs; see the help of `hamiregion doctor`."""
        repairs = None
        if self.repairs is not None:
            repairs = [
                {
                    **_identity(named),
                    "done": done.done,
                    "actions": list(done.actions),
                    "error": done.error,
                }
                for named, done in self.repairs
            ]
        return {
            "taken_at_ns": self.taken_at_ns,
            "complete": self.complete,
            "driver": driver_object(self.sample, self.driver_gap),
            "warnings": list(self.warnings),
            "dry_run": self.dry_run,
            "repairs": repairs,
            "findings": [_as_object(named) for named in self.findings],
            "left": self.left,
        }

    # ---- for a pipe ------------------------------------------------------------------------------

    def as_text(self) -> str:
        """A table of repairs, one of findings, and a paragraph for each of these."""
        blocks = []
        if self.repairs:
            blocks.append("".join(f"{line}\n" for line in self._repair_lines()))
        if self.findings:
            heading = ["NO", "SEVERITY", "KIND", "POD", "CONTAINER", "DEVICE", "PID", "REPAIR"]
            rows = [heading, *map(_row, range(1, len(self.findings) + 1), self.findings)]
            blocks.append(aligned(rows))
            blocks.extend(
                f"{number}. {named.finding.paragraph}\n"
                for number, named in enumerate(self.findings, start=1)
            )
        blocks.append(f"{self._sum()}\n")
        return "\n".join(blocks)

    def _repair_lines(self) -> Iterator[str]:
        for named, done in self.repairs or ():
            where = f"{named.container_words}: {named.finding.kind.value}"
            if done.error is not None:
                yield f"not repaired  {where}: {done.error}"
            elif not done.actions:
                yield f"was right     {where}: nothing was wrong any more"
            else:
                verb = "dry run " if self.dry_run else "repaired"
                yield f"{verb}      {where}: {'; '.join(done.actions)}"

    def _sum(self) -> str:
        if not self.findings:
            what = "nothing is left" if self.repairs else "nothing found"
            return f"{what} in {_count(self.looked_at, 'container')}"
        counts = {
            severity: sum(named.finding.severity is severity for named in self.findings)
            for severity in Severity
        }
        words = ", ".join(
            _count(count, _NOUNS[severity]) for severity, count in counts.items() if count
        )
        repairable = sum(named.finding.repairable for named in self.findings)
        if self.dry_run:
            return f"{words}; dry run: nothing was written"
        if self.repairs is None and repairable:
            return f"{words}; --repair mends {repairable} of them"
        return f"{words} left" if self.repairs is not None else words

    # ---- for a terminal --------------------------------------------------------------------------

    def as_view(self, width: int) -> RenderableType:
        """One heading per container, and a paragraph per finding."""
        parts: list[RenderableType] = []
        for line in self._repair_lines():
            failed = line.startswith("not")
            parts.append(Text(line, style=OVER if failed else GOOD, overflow="fold"))
        if parts:
            parts.append(Text())
        before = None
        for named in self.findings:
            words = named.container_words
            if words != before:
                parts.append(Text(words, style="bold", overflow="fold"))
                before = words
            parts.append(_heading(named))
            text = Text(named.finding.paragraph, overflow="fold")
            for label in ("Evidence:", "Consequence:", "What to do:"):
                text.highlight_words([label], QUIET)
            parts.append(Padding(text, (0, max(0, width - _WIDEST), 1, 4)))
        parts.append(Text(self._sum(), style=GOOD if not self.findings else "bold"))
        return Group(*parts)


def _heading(named: NamedFinding) -> Text:
    finding = named.finding
    line = Text("  ", overflow="fold")
    line.append(finding.severity.value, style=_STYLES[finding.severity])
    line.append(f"  {finding.kind.value}")
    if named.where:
        line.append(f"  {named.where}", style=QUIET)
    return line


def _row(number: int, named: NamedFinding) -> list[str]:
    finding = named.finding
    return [
        str(number),
        finding.severity.value,
        finding.kind.value,
        word(named.names.pod_words),
        word(named.names.container_words),
        NOTHING if finding.device is None else str(finding.device),
        NOTHING if finding.pid is None else str(finding.pid),
        "yes" if finding.repairable else "no",
    ]


def _identity(named: NamedFinding) -> dict[str, Any]:
    finding, names = named.finding, named.names
    return {
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "namespace": names.namespace,
        "pod": names.pod,
        "pod_uid": names.pod_uid,
        "container": names.container,
        "container_id": names.container_id,
        "region_path": None if finding.container is None else finding.container.region_path,
        "device": finding.device,
        "pid": finding.pid,
        "cause": finding.cause,
        "summary": finding.summary,
    }


def _as_object(named: NamedFinding) -> dict[str, Any]:
    finding = named.finding
    return {
        **_identity(named),
        "evidence": finding.evidence,
        "consequence": finding.consequence,
        "advice": finding.advice,
        "repairable": finding.repairable,
    }


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
