"""`hamiregion doctor`: what is wrong on a node, what comes of it, and what can be repaired."""

from __future__ import annotations

import difflib
import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion.doctor import Finding, FindingKind, Repair, Severity, diagnose, examine, repair
from libhamiregion.text import count_text

from . import options
from .failures import DONE, PROBLEMS
from .help import verb
from .names import Names, name_texts, names_of, some
from .output import Answer, as_plain
from .tables import CRITICAL, DIM, GOOD, WARN, Block, Column, Lines, Page, Table
from .views import NodeView, OpenedNode, devices_of, driver_answer, node_view_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from libhamiregion.node import Container


# How long what may pass by itself is watched before it is a finding.
SETTLE_S = 1.5
# Containers of a kind of findings, and what one repair did, that are named in a line.
_EXAMPLES = 3
_STYLES = {Severity.ERROR: f"bold {CRITICAL}", Severity.WARNING: WARN, Severity.INFO: "cyan"}
_REPAIR_PLACE = (
    "repair here, or from anywhere with `kubectl hamiregion doctor --repair --node NODE`; if the"
    " exporter runs there, which may not write, add --job"
)
_SEEN_ONCE = "one observation: some of these findings may have passed by a second one"
_NOUNS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def _kind(typed: str) -> FindingKind:
    kinds = [kind.value for kind in FindingKind]
    if typed in kinds:
        return FindingKind(typed)
    near = difflib.get_close_matches(typed, kinds) or kinds
    raise ValueError(f"there is no kind {typed!r}; did you mean {some(near, ' or ')}?")


@verb("hamiregion doctor", "hamiregion doctor --repair --dry-run --pod 'bert-*'")
@node_view_options
@click.option(
    "--only",
    "kinds",
    multiple=True,
    type=options.Parsed("kind", _kind),
    metavar="KIND",
    help="Only findings of this kind, and all of them.",
)
@click.option(
    "--repair", "repairs_wanted", is_flag=True, help="Repair what can be repaired with proof."
)
@options.dry_run_option
@options.watch_options
def doctor(
    opened: OpenedNode,
    kinds: tuple[FindingKind, ...],
    repairs_wanted: bool,
    dry_run: bool,
    answer: Answer,
) -> int:
    """Find what is wrong on this node, with evidence and advice, and repair it with --repair."""
    if dry_run and not repairs_wanted:
        raise click.UsageError("--dry-run goes with --repair: without it nothing is changed.")
    if repairs_wanted and answer.interval_s is not None:
        raise click.UsageError("--repair goes without --watch; `hamiregion agent` keeps repairing.")
    with opened as view:
        examination = _Examination(view, kinds)
        if answer.interval_s is not None:
            answer.show_all(lambda: examination.page(examination.find()))
            return DONE
        found, repairs = examination.find(), None
        if repairs_wanted and view.live is not None:
            repairs = repair(view.live.node, found, dry_run=dry_run)
            if not dry_run and any(each.actions for each in repairs):
                found = examination.find()
        page = examination.page(found, repairs, dry_run=dry_run)
        answer.show(page)
    return PROBLEMS if page.data["left"] else DONE


_FIELDS = (
    *("kind", "severity", "device", "pid", "cause"),
    *("summary", "evidence", "consequence", "advice", "repairable"),
)


@attrs.frozen
class _Examination:
    """One run of the command."""

    view: NodeView
    kinds: tuple[FindingKind, ...]

    def find(self) -> list[Finding]:
        """Diagnose what is selected."""
        live = self.view.live
        found = (
            diagnose(self.view.observer.observe())
            if live is None
            else examine(live, settle_s=SETTLE_S)
        )
        return [
            each
            for each in found
            if (not self.kinds or each.kind in self.kinds) and self._is_chosen(each)
        ]

    def _is_chosen(self, finding: Finding) -> bool:
        """Whether a finding is about what is selected; one about the whole node always is."""
        container, selector = finding.container, self.view.selector
        if container is None:
            return True
        if not selector.matches(container):
            return False
        if selector.device is None or finding.device is None:
            return True
        observation = self.view.observer.observe(max_age_s=math.inf)
        devices = {each.index: each for each in devices_of(observation, container)}
        return finding.device in devices and selector.matches_device(devices[finding.device])

    def page(
        self,
        found: Sequence[Finding],
        repairs: Sequence[Repair] | None = None,
        *,
        dry_run: bool = False,
    ) -> Page:
        """Show findings, or what is left of them after repairs."""
        # The one that was diagnosed.
        observation = self.view.observer.observe(max_age_s=math.inf)
        driver, gap = driver_answer(observation)
        repaired = [
            _object(each.finding)
            | {"done": each.done, "actions": each.actions, "error": each.error}
            for each in repairs or ()
        ]
        data = {
            "driver": driver,
            "dry_run": dry_run,
            "repairs": None if repairs is None else repaired,
            "findings": list(map(_object, found)),
            "left": sum(each.severity is not Severity.INFO for each in found),
        }
        texts = name_texts(observation.all_containers)
        groups = _groups(found, texts)
        sentences = [_repair_sentence(each, texts, dry_run=dry_run) for each in repairs or ()]
        examined = sum(map(self.view.selector.matches, observation.all_containers))
        total = _sum(found, examined, repairs, dry_run=dry_run)
        blocks: list[Block] = [
            *([Lines(sentences)] if sentences else []),
            *([Table(_COLUMNS, groups)] if groups else []),
            *(self._paragraph(group) for group in groups),
            Lines([(total, "bold" if found else GOOD)]),
        ]
        notes = [] if gap is None else [f"nothing was compared with the driver's figures: {gap}"]
        if repairs is None and any(each.repairable for each in found):
            notes.append(_REPAIR_PLACE)
        if self.view.live is None and any(each.is_transient for each in found):
            notes.append(_SEEN_ONCE)
        return self.view.page("doctor/1", observation, data, blocks, notes, found=False)

    def _paragraph(self, group: _Group) -> Lines:
        found, first = group.findings, group.first
        shown = found if self.kinds else found[:1]
        lines: list[str | tuple[str, str]] = [
            (f"{first.severity.value}: {first.kind.value}", _STYLES[first.severity])
        ]
        for each, place in zip(shown, group.places, strict=False):
            is_whole = None in (each.device, each.container)
            where = place if is_whole else f"{place}, device {each.device}"
            where += "" if each.pid is None else f", pid {each.pid}"
            lines.append(f"  {where}: {each.summary}")
            lines.append((f"    Evidence: {each.evidence}", DIM))
        if len(shown) < len(found):
            more = len(found) - len(shown)
            lines.append((f"  and {more} more; --only {first.kind.value} shows all", DIM))
        # Consequence and advice may differ with the cause: these are of the first one.
        lines.append(f"  Consequence: {first.consequence}")
        lines.append(f"  What to do: {first.advice}")
        return Lines(lines)


@attrs.frozen
class _Group:
    """Findings of one kind that are alike, and their containers in words."""

    findings: list[Finding]
    places: list[str]

    @property
    def first(self) -> Finding:
        return self.findings[0]


def _groups(found: Sequence[Finding], texts: Mapping[Container, str]) -> list[_Group]:
    groups: defaultdict[Any, list[Finding]] = defaultdict(list)
    for each in found:
        groups[each.kind, each.severity, each.repairable].append(each)
    worst = list(Severity)
    return sorted(
        (_Group(each, [_place(one, texts) for one in each]) for each in groups.values()),
        key=lambda group: worst.index(group.first.severity),
    )


def _object(finding: Finding) -> dict[str, Any]:
    """The finding for --json."""
    container = finding.container
    return {
        **as_plain(Names(**names_of(container))),
        "region_path": None if container is None else container.region_path,
        **{name: getattr(finding, name) for name in _FIELDS},
    }


def _place(finding: Finding, texts: Mapping[Container, str]) -> str:
    """The container's name."""
    container = finding.container
    if container is None:
        return "the node"
    # After repairs, a container may have changed in between.
    return texts.get(container) or name_texts([container])[container]


def _repair_sentence(
    done: Repair, texts: Mapping[Container, str], *, dry_run: bool
) -> tuple[str, str]:
    where = f"{_place(done.finding, texts)}: {done.finding.kind.value}"
    if done.error is not None:
        return f"not repaired  {where}: {done.error}", CRITICAL
    if not done.actions:
        return f"was right     {where}: nothing was wrong any more", GOOD
    verb = "dry run " if dry_run else "repaired"
    return f"{verb}      {where}: {some(done.actions, '; ', _EXAMPLES)}", GOOD


_COLUMNS = (
    Column("SEVERITY", "first.severity", style=lambda group: _STYLES[group.first.severity]),
    Column("KIND", "first.kind"),
    Column("FINDINGS", lambda group: len(group.findings), "number"),
    Column("REPAIR", lambda group: "yes" if group.first.repairable else "no"),
    Column("CONTAINERS", lambda group: some(dict.fromkeys(group.places), limit=_EXAMPLES), "text"),
)


def _sum(found: Sequence[Finding], containers: int, repairs: Any, *, dry_run: bool) -> str:
    if not found:
        what = "nothing is left" if repairs else "nothing found"
        return f"{what} in {count_text(containers, 'container')}"
    numbers = Counter(_NOUNS[each.severity] for each in found)
    words = ", ".join(count_text(numbers[noun], noun) for noun in _NOUNS.values() if numbers[noun])
    repairable = sum(finding.repairable for finding in found)
    if dry_run:
        return f"{words}; dry run: nothing was written"
    if repairs is None and repairable:
        return f"{words}; --repair repairs {repairable} of them"
    return f"{words} left" if repairs is not None else words
