"""`hamiregion doctor`: what is wrong on a node, what comes of it, and what can be mended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion import RegionError
from libhamiregion.node import FindingKind, Severity, diagnose, driver_gap, repair

from . import options
from .format import Names, count, names_of, node_notes, root_failure, root_warnings
from .intervals import ticks
from .output import Page, as_plain, show_all
from .processes import driver_object
from .tables import GOOD, NEAR, NUMBER, OVER, QUIET, TEXT, Column, Lines, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from libhamiregion.node import Finding, Node, NvmlSampler, Repair, Selector

    from .options import DriverChoice, NodeChoice
    from .output import Block

LEFT = 3
# Findings of a kind, containers and repairs in one line, that are shown; --only shows all findings.
_EXAMPLES = 3
_STYLES = {Severity.ERROR: f"bold {OVER}", Severity.WARNING: NEAR, Severity.INFO: "cyan"}
_NOUNS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


@click.command(epilog=f"Exit codes: 0 nothing left, 1 failed, 2 wrong usage, {LEFT} findings left.")
@options.node_options
@options.selector_options
@click.option(
    "--only",
    "kinds",
    multiple=True,
    type=click.Choice([kind.value for kind in FindingKind]),
    metavar="KIND",
    help="Only findings of this kind, such as host_pid_missing, and all of them; may be given"
    " again.",
)
@click.option("--repair", "mend", is_flag=True, help="Repair what can be repaired with proof.")
@options.dry_run_option
@options.driver_options
@click.option(
    "--settle",
    "settle_s",
    type=options.Seconds(min=0, max=600),
    default=1.5,
    show_default=True,
    metavar="SECONDS",
    help="How long what may pass by itself is watched before it is a finding.",
)
@options.watch_option
@options.timeout_option
@options.json_option
@click.pass_context
def doctor(
    ctx: click.Context,
    place: NodeChoice,
    selector: Selector,
    kinds: tuple[str, ...],
    mend: bool,
    dry_run: bool,
    driver: DriverChoice,
    settle_s: float,
    interval_s: float | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Say what is wrong on this node: what, by which evidence, what comes of it, what to do.

    Looked at are host pids, dead processes that still count, slots, locks, limits, the driver's
    figures, and files.  A healthy node gives no finding.  Nothing is changed, unless --repair is
    given: that repairs locks of the dead, slots, host pids and what dead processes hold, each only
    with proof that is taken anew, says what it did, and leaves the rest.  A lock that nobody has
    signed for is watched for 10 s first.

    One line per kind of finding, then what is known of the first ones of each kind; --only KIND
    shows all of that kind.  Findings are errors, warnings or notes (info).  Notes may well be
    meant, and do not count for the exit code, which is 3 while errors or warnings are left.
    PATTERNs are those of the shell.

    \b
    hamiregion doctor
    hamiregion doctor --repair --dry-run
    hamiregion doctor --repair --root /usr/local/vgpu/containers --pod 'bert-*'

    JSON: taken_at_ns, complete (all processes could be seen), driver (state, message, version;
    null with --no-driver), warnings, dry_run, repairs (with --repair, else null), findings (with
    --repair: those that are left), and left (how many of them count).  Findings have the keys kind,
    severity (error, warning, info), namespace, pod, pod_uid, container, container_id, region_path,
    device, pid, cause, summary, evidence, consequence, advice and repairable; repairs the same
    and done, actions and error.
    """  # noqa: D301 (click looks for the character itself)
    if dry_run and not mend:
        raise click.UsageError("--dry-run goes with --repair: without it nothing is changed.")
    if mend and interval_s is not None:
        raise click.UsageError("--repair goes without --watch; `hamiregion agent` keeps repairing.")
    with driver.open() as sampler, place.open() as node:
        visit = _Visit(node, sampler, selector, place, frozenset(map(FindingKind, kinds)), settle_s)
        left = 0

        def pages() -> Iterator[Page]:
            nonlocal left
            for _ in ticks(interval_s):
                found, repairs = visit.find(), None
                if mend:
                    repairs = repair(node, found, dry_run=dry_run, timeout_s=timeout_s)
                    if not dry_run and any(each.actions for each in repairs):
                        found = visit.find()
                page = visit.page(found, repairs, dry_run=dry_run)
                left = page.data["left"]
                yield page

        show_all(pages(), interval_s, as_json)
    if interval_s is None and left:
        ctx.exit(LEFT)


@attrs.frozen(kw_only=True)
class FindingRow(Names):
    """A finding; the fields are the keys of --json."""

    kind: FindingKind
    severity: Severity
    region_path: str | None
    device: int | None
    pid: int | None
    cause: str | None
    summary: str
    evidence: str
    consequence: str
    advice: str
    repairable: bool

    @classmethod
    def of(cls, node: Node, finding: Finding) -> FindingRow:
        """Name a finding's container by the node's resolvers."""
        container = finding.container
        names = dict.fromkeys(("namespace", "pod", "pod_uid", "container", "container_id"))
        own = {name: getattr(finding, name) for name in _OWN_FIELDS}
        return cls(
            **(names if container is None else names_of(node, container)),
            region_path=None if container is None else container.region_path,
            **own,
        )

    @property
    def place(self) -> str:
        """The container in words; printable."""
        if self.pod_words is None and self.container_words is None:
            return "the node" if self.region_path is None else "a container outside the roots"
        return self.words

    @property
    def where(self) -> str:
        """Container, device and pid in words; printable."""
        parts = [self.place]
        parts += [] if self.device is None else [f"device {self.device}"]
        parts += [] if self.pid is None else [f"pid {self.pid}"]
        return ", ".join(parts)


_OWN_FIELDS = (
    *("kind", "severity", "device", "pid", "cause"),
    *("summary", "evidence", "consequence", "advice", "repairable"),
)


@attrs.frozen
class _Device:
    """A device as `Selector` compares it."""

    index: int
    uuid: str | None


def _selected(node: Node, selector: Selector, finding: Finding) -> bool:
    """Whether a finding is about what is chosen; one about the whole node always is."""
    container = finding.container
    if container is None:
        return True
    if not selector.matches_container(container, node.pod_name(container)):
        return False
    if selector.device is None or finding.device is None:
        return True
    try:
        devices = () if container.region is None else container.region.snapshot().devices
    except RegionError:
        devices = ()
    uuid = next((each.uuid for each in devices if each.index == finding.device), None)
    return selector.matches_device(_Device(finding.device, uuid))


@attrs.frozen
class _Visit:
    """One run of the command."""

    node: Node
    sampler: NvmlSampler | None
    selector: Selector
    place: NodeChoice
    kinds: frozenset[FindingKind]
    settle_s: float

    def find(self) -> list[Finding]:
        """Diagnose what is chosen."""
        return [
            each
            for each in diagnose(self.node, sampler=self.sampler, settle_s=self.settle_s)
            if (not self.kinds or each.kind in self.kinds)
            and _selected(self.node, self.selector, each)
        ]

    def page(
        self, found: Sequence[Finding], repairs: Sequence[Repair] | None, *, dry_run: bool
    ) -> Page:
        """Tell what was found, or is left after what was repaired."""
        node = self.node
        taken_at_ns = time.time_ns()
        rows = [FindingRow.of(node, each) for each in found]
        sample = None if self.sampler is None else self.sampler.sample()
        gap = None if sample is None else driver_gap(node.processes, sample)
        notes = node_notes(node)
        if gap is not None:
            notes = (*notes, f"nothing was compared with the driver's figures: {gap}")
        warnings = root_warnings(node)
        repaired = [
            {
                **as_plain(FindingRow.of(node, each.finding)),
                "done": each.done,
                "actions": each.actions,
                "error": each.error,
            }
            for each in repairs or ()
        ]
        data = {
            "taken_at_ns": taken_at_ns,
            "complete": node.processes.is_complete,
            "driver": driver_object(sample, gap),
            "warnings": warnings,
            "dry_run": dry_run,
            "repairs": None if repairs is None else repaired,
            "findings": rows,
            "left": sum(row.severity is not Severity.INFO for row in rows),
        }
        sentences = [_repair_sentence(node, each, dry_run) for each in repairs or ()]
        blocks: list[Block] = [Lines(sentences)] if sentences else []
        blocks += self._findings(rows)
        total = _sum(rows, len(node.containers), repairs, dry_run=dry_run)
        blocks.append(Lines([(total, "bold" if rows else GOOD)]))
        return Page(data, blocks, notes, warnings, root_failure(node, self.place.roots))

    def _findings(self, rows: Sequence[FindingRow]) -> Iterator[Block]:
        """A table with a line per kind, and a paragraph for each kind."""
        groups = _by_kind(rows)
        if groups:
            yield Table(_COLUMNS, groups)
        for group in groups:
            shown = group.rows if self.kinds else group.rows[:_EXAMPLES]
            lines: list[str | tuple[str, str]] = [
                (f"{group.severity.value}: {group.kind.value}", _STYLES[group.severity])
            ]
            for number, row in enumerate(shown):
                lines.append(f"  {row.where}: {row.summary}")
                if self.kinds or number == 0:
                    lines.append((f"    Evidence: {row.evidence}", QUIET))
            if len(shown) < len(group.rows):
                more = len(group.rows) - len(shown)
                lines.append((f"  and {more} more; --only {group.kind.value} shows all", QUIET))
            # What comes of it and what to do may differ with the cause: of the first one.
            yield Lines(
                [
                    *lines,
                    f"  Consequence: {shown[0].consequence}",
                    f"  What to do: {shown[0].advice}",
                ]
            )


@attrs.frozen
class _Group:
    """The findings of one kind, worst first."""

    kind: FindingKind
    severity: Severity
    rows: list[FindingRow]

    @property
    def containers(self) -> str:
        """The containers, as many as fit a line."""
        places = list(dict.fromkeys(row.place for row in self.rows))
        more = f" and {len(places) - _EXAMPLES} more" if len(places) > _EXAMPLES else ""
        return ", ".join(places[:_EXAMPLES]) + more


_COLUMNS = (
    Column(
        "SEVERITY", lambda group: group.severity.value, style=lambda group: _STYLES[group.severity]
    ),
    Column("KIND", lambda group: group.kind.value),
    Column("FINDINGS", lambda group: len(group.rows), NUMBER),
    Column("REPAIR", lambda group: "yes" if group.rows[0].repairable else "no"),
    Column("CONTAINERS", lambda group: group.containers, TEXT),
)


def _by_kind(rows: Iterable[FindingRow]) -> list[_Group]:
    groups: dict[tuple[FindingKind, Severity], _Group] = {}
    for row in rows:
        key = (row.kind, row.severity)
        groups.setdefault(key, _Group(*key, [])).rows.append(row)
    worst = list(Severity)
    return sorted(groups.values(), key=lambda group: worst.index(group.severity))


def _repair_sentence(node: Node, done: Repair, dry_run: bool) -> tuple[str, str]:
    row = FindingRow.of(node, done.finding)
    where = f"{row.place}: {row.kind.value}"
    if done.error is not None:
        return f"not repaired  {where}: {done.error}", OVER
    if not done.actions:
        return f"was right     {where}: nothing was wrong any more", GOOD
    verb = "dry run " if dry_run else "repaired"
    actions = [*done.actions[:_EXAMPLES]]
    actions += (
        [f"and {len(done.actions) - _EXAMPLES} more"] if len(done.actions) > _EXAMPLES else []
    )
    return f"{verb}      {where}: {'; '.join(actions)}", GOOD


def _sum(rows: Sequence[FindingRow], containers: int, repairs: Any, *, dry_run: bool) -> str:
    if not rows:
        what = "nothing is left" if repairs else "nothing found"
        return f"{what} in {count(containers, 'container')}"
    numbers = {each: sum(row.severity is each for row in rows) for each in Severity}
    words = ", ".join(count(number, _NOUNS[each]) for each, number in numbers.items() if number)
    repairable = sum(row.repairable for row in rows)
    if dry_run:
        return f"{words}; dry run: nothing was written"
    if repairs is None and repairable:
        return f"{words}; --repair repairs {repairable} of them"
    return f"{words} left" if repairs is not None else words
