"""`hamiregion doctor`: what is wrong on a node, what comes of it, and what can be repaired."""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion import RegionError
from libhamiregion.node import FindingKind, Severity, diagnose, repair

from . import options
from .failures import PROBLEMS
from .format import Names, count, names_of, some
from .help import Verb
from .node_page import driver_answer, node_page
from .output import Page, as_plain, show_all, ticks
from .tables import CRITICAL, DIM, GOOD, NUMBER, TEXT, WARN, Column, Lines, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libhamiregion.node import Finding, Node, Observer, Repair, Selector

    from .options import DriverChoice, NodeChoice
    from .tables import Block

    _Choice = click.Choice[str]
else:
    # Generic for type checkers; at run time only since click 8.2.
    _Choice = click.Choice

# How long what may pass by itself is watched before it is a finding.
SETTLE_S = 1.5
# Containers of a kind of findings, and what one repair did, that are named in a line.
_EXAMPLES = 3
_STYLES = {Severity.ERROR: f"bold {CRITICAL}", Severity.WARNING: WARN, Severity.INFO: "cyan"}
_NOUNS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


@attrs.frozen
class _Device:
    """A device as `Selector` compares it."""

    index: int
    uuid: str | None


class _Kind(_Choice):
    """A kind of finding; of one that is mistyped only those that may be meant are told."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        near = difflib.get_close_matches(str(value), self.choices)
        if near and value not in self.choices:
            self.fail(f"There is no kind {value!r}. Did you mean {' or '.join(near)}?", param, ctx)
        return super().convert(value, param, ctx)


@click.command(
    cls=Verb, examples=["hamiregion doctor", "hamiregion doctor --repair --dry-run --pod 'bert-*'"]
)
@options.node_options
@options.selector_options
@click.option(
    "--only",
    "kinds",
    multiple=True,
    type=_Kind([kind.value for kind in FindingKind]),
    metavar="KIND",
    help="Only findings of this kind, and all of them.",
)
@click.option(
    "--repair", "repairs_wanted", is_flag=True, help="Repair what can be repaired with proof."
)
@options.dry_run_option
@options.driver_options
@options.watch_option
@options.output_options
@click.pass_context
def doctor(
    ctx: click.Context,
    node_choice: NodeChoice,
    selector: Selector,
    kinds: tuple[str, ...],
    repairs_wanted: bool,
    dry_run: bool,
    driver: DriverChoice,
    interval_s: float | None,
    as_json: bool,
) -> None:
    """Find what is wrong on this node, with evidence and advice, and repair it with --repair."""
    if dry_run and not repairs_wanted:
        raise click.UsageError("--dry-run goes with --repair: without it nothing is changed.")
    if repairs_wanted and interval_s is not None:
        raise click.UsageError("--repair goes without --watch; `hamiregion agent` keeps repairing.")
    with driver.observe(node_choice) as observer:
        visit = _Visit(observer, selector, node_choice, frozenset(map(FindingKind, kinds)))
        left = 0

        def pages() -> Iterator[Page]:
            nonlocal left
            for _ in ticks(interval_s):
                found, repairs = visit.find(), None
                if repairs_wanted:
                    repairs = repair(observer.node, found, dry_run=dry_run)
                    if not dry_run and any(each.actions for each in repairs):
                        found = visit.find()
                page = visit.page(found, repairs, dry_run=dry_run)
                left = page.data["left"]
                yield page

        show_all(pages(), interval_s, as_json)
    if interval_s is None and left:
        ctx.exit(PROBLEMS)


_FIELDS = (
    *("kind", "severity", "device", "pid", "cause"),
    *("summary", "evidence", "consequence", "advice", "repairable"),
)


@attrs.frozen
class _Visit:
    """One run of the command."""

    observer: Observer
    selector: Selector
    node_choice: NodeChoice
    kinds: frozenset[FindingKind]

    @property
    def node(self) -> Node:
        """What is diagnosed."""
        return self.observer.node

    def find(self) -> list[Finding]:
        """Diagnose what is chosen."""
        return [
            each
            for each in diagnose(self.node, observer=self.observer, settle_s=SETTLE_S)
            if (not self.kinds or each.kind in self.kinds) and self._is_chosen(each)
        ]

    def _is_chosen(self, finding: Finding) -> bool:
        """Whether a finding is about what is chosen; one about the whole node always is."""
        container = finding.container
        if container is None:
            return True
        if not self.selector.matches_container(container, self.node.pod_name(container)):
            return False
        if self.selector.device is None or finding.device is None:
            return True
        try:
            devices = () if container.region is None else container.region.snapshot().devices
        except RegionError:
            devices = ()
        uuid = next((each.uuid for each in devices if each.index == finding.device), None)
        return self.selector.matches_device(_Device(finding.device, uuid))

    def page(
        self, found: Sequence[Finding], repairs: Sequence[Repair] | None, *, dry_run: bool
    ) -> Page:
        """Tell what was found, or is left after what was repaired."""
        node = self.node
        # What was diagnosed.
        observation = self.observer.observe(max_age_s=math.inf)
        answer, gap = driver_answer(self.observer, observation)
        repaired = [
            self._object(each.finding)
            | {"done": each.done, "actions": each.actions, "error": each.error}
            for each in repairs or ()
        ]
        data = {
            "driver": answer,
            "dry_run": dry_run,
            "repairs": None if repairs is None else repaired,
            "findings": list(map(self._object, found)),
            "left": sum(each.severity is not Severity.INFO for each in found),
        }
        groups = self._groups(found)
        sentences = [self._repair_sentence(each, dry_run=dry_run) for each in repairs or ()]
        examined = sum(map(self.selector.matches, node.containers))
        total = _sum(found, examined, repairs, dry_run=dry_run)
        blocks: list[Block] = [
            *([Lines(sentences)] if sentences else []),
            *([Table(_COLUMNS, groups)] if groups else []),
            *map(self._paragraph, groups),
            Lines([(total, "bold" if found else GOOD)]),
        ]
        notes = [] if gap is None else [f"nothing was compared with the driver's figures: {gap}"]
        return node_page(
            "doctor/1",
            observation,
            node,
            self.node_choice,
            data,
            blocks,
            notes,
            selector=self.selector,
            found=False,
        )

    def _names(self, finding: Finding) -> Names:
        if finding.container is None:
            return Names()
        return Names(**names_of(self.node, finding.container))

    def _object(self, finding: Finding) -> dict[str, Any]:
        """The finding for --json."""
        container = finding.container
        return {
            **as_plain(self._names(finding)),
            "region_path": None if container is None else container.region_path,
            **{name: getattr(finding, name) for name in _FIELDS},
        }

    def _place(self, finding: Finding) -> str:
        """The container in words; raw text."""
        if finding.container is None:
            return "the node"
        names = self._names(finding)
        known = names.pod_words or names.container_words
        return names.words if known else "a container outside the roots"

    def _groups(self, found: Sequence[Finding]) -> list[_Group]:
        groups: dict[tuple[FindingKind, Severity, bool], _Group] = {}
        for each in found:
            key = (each.kind, each.severity, each.repairable)
            group = groups.setdefault(key, _Group(*key, [], {}))
            group.findings.append(each)
            group.places[self._place(each)] = None
        worst = list(Severity)
        return sorted(groups.values(), key=lambda group: worst.index(group.severity))

    def _paragraph(self, group: _Group) -> Lines:
        found = group.findings
        shown = found if self.kinds else found[:1]
        lines: list[str | tuple[str, str]] = [
            (f"{group.severity.value}: {group.kind.value}", _STYLES[group.severity])
        ]
        for each in shown:
            where = self._place(each)
            where += "" if each.device is None else f", device {each.device}"
            where += "" if each.pid is None else f", pid {each.pid}"
            lines.append(f"  {where}: {each.summary}")
            lines.append((f"    Evidence: {each.evidence}", DIM))
        if len(shown) < len(found):
            more = len(found) - len(shown)
            lines.append((f"  and {more} more; --only {group.kind.value} shows all", DIM))
        # What comes of it and what to do may differ with the cause: of the first one.
        lines.append(f"  Consequence: {found[0].consequence}")
        lines.append(f"  What to do: {found[0].advice}")
        return Lines(lines)

    def _repair_sentence(self, done: Repair, *, dry_run: bool) -> tuple[str, str]:
        where = f"{self._place(done.finding)}: {done.finding.kind.value}"
        if done.error is not None:
            return f"not repaired  {where}: {done.error}", CRITICAL
        if not done.actions:
            return f"was right     {where}: nothing was wrong any more", GOOD
        verb = "dry run " if dry_run else "repaired"
        return f"{verb}      {where}: {some(done.actions, '; ', _EXAMPLES)}", GOOD


@attrs.frozen
class _Group:
    """Findings of one kind that are alike, and the containers that they are about, in words."""

    kind: FindingKind
    severity: Severity
    repairable: bool
    findings: list[Finding]
    places: dict[str, None]


_COLUMNS = (
    Column("SEVERITY", "severity", style=lambda group: _STYLES[group.severity]),
    Column("KIND", "kind"),
    Column("FINDINGS", lambda group: len(group.findings), NUMBER),
    Column("REPAIR", lambda group: "yes" if group.repairable else "no"),
    Column("CONTAINERS", lambda group: some(group.places, limit=_EXAMPLES), TEXT),
)


def _sum(found: Sequence[Finding], containers: int, repairs: Any, *, dry_run: bool) -> str:
    if not found:
        what = "nothing is left" if repairs else "nothing found"
        return f"{what} in {count(containers, 'container')}"
    numbers = {each: sum(finding.severity is each for finding in found) for each in Severity}
    words = ", ".join(count(number, _NOUNS[each]) for each, number in numbers.items() if number)
    repairable = sum(finding.repairable for finding in found)
    if dry_run:
        return f"{words}; dry run: nothing was written"
    if repairs is None and repairable:
        return f"{words}; --repair repairs {repairable} of them"
    return f"{words} left" if repairs is not None else words
