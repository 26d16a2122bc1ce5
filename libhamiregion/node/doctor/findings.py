"""What can be wrong on a node: the kinds of findings, and a finding."""

from __future__ import annotations

import enum
import shlex
from typing import TYPE_CHECKING

import attrs

from libhamiregion.text import printable

if TYPE_CHECKING:
    from libhamiregion.node.containers import Container


_TEXT_LIMIT = 500


class Severity(enum.Enum):
    """How bad a finding is."""

    #: A limit does not hold, processes are stuck or soon will be, or figures are plainly wrong.
    ERROR = "error"
    #: Something is wrong, and what works today may not work tomorrow.
    WARNING = "warning"
    #: Worth knowing, and it may be meant.
    INFO = "info"


class FindingKind(enum.Enum):
    """What is wrong. The values are words that fit a label; `explanation` has the sentences."""

    HOST_PID_MISSING = "host_pid_missing"
    HOST_PID_IS_CONTAINER_PID = "host_pid_is_container_pid"
    HOST_PID_SWAPPED = "host_pid_swapped"
    HOST_PID_DEAD = "host_pid_dead"
    HOST_PID_FOREIGN = "host_pid_foreign"

    DEAD_PROCESS_COUNTED = "dead_process_counted"
    ORPHANED_SLOT = "orphaned_slot"
    DOUBLED_SLOT = "doubled_slot"
    SLOT_WITHOUT_PID = "slot_without_pid"
    SEQLOCK_STUCK = "seqlock_stuck"
    SLOT_TABLE_FULL = "slot_table_full"
    SLOT_TABLE_NEARLY_FULL = "slot_table_nearly_full"
    USAGE_SUMS_DIFFER = "usage_sums_differ"
    PROCESSES_UNKNOWN = "processes_unknown"

    LOCK_HELD_BY_DEAD = "lock_held_by_dead"
    LOCK_OWNERLESS = "lock_ownerless"
    LOCK_HELD_TOO_LONG = "lock_held_too_long"
    SEMAPHORE_IMPOSSIBLE = "semaphore_impossible"
    STARTUP_LOCK_HELD = "startup_lock_held"

    USAGE_ABOVE_LIMIT = "usage_above_limit"
    USAGE_IMPOSSIBLE = "usage_impossible"
    PROCESS_ESCAPES = "process_escapes"
    DRIVER_MEMORY_DIFFERS = "driver_memory_differs"
    UTILIZATION_NOT_RECORDED = "utilization_not_recorded"
    DEVICE_COUNT_ZERO = "device_count_zero"
    SM_LIMIT_OFF = "sm_limit_off"
    LAUNCHES_BLOCKED = "launches_blocked"

    LAYOUT_MIXED = "layout_mixed"
    REGION_TRUNCATED = "region_truncated"
    REGION_UNLINKED = "region_unlinked"
    SEVERAL_CACHE_FILES = "several_cache_files"
    REGION_MISSING = "region_missing"
    ROOT_UNREADABLE = "root_unreadable"

    @property
    def explanation(self) -> Explanation:
        """What it means, what comes of it, and what to do."""
        # The catalogue is made of the names of this module.
        from .catalogue import CATALOGUE

        return CATALOGUE[self]


@attrs.frozen
class Explanation:
    """One kind of finding, in general; a `Finding` has the particulars.

    Attributes:
        severity: The usual one.
        what: What is wrong, and how it comes about.
        evidence: What it is told by.
        consequence: What comes of it.
        advice: What to do.
        repair: What `repair` does about it; None if it leaves it alone.
        passes: Whether it can be there for a moment on a healthy node, so that it is believed only
            if it is seen again.
    """

    severity: Severity
    what: str
    evidence: str
    consequence: str
    advice: str
    repair: str | None = None
    passes: bool = False


@attrs.frozen
class Finding:
    """One thing that is wrong.

    All texts are printable, what came from outside is escaped; each has at most 500 characters.

    Attributes:
        kind: What it is.
        severity: How bad.
        container: Whose; None for the node as a whole.
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
