"""`hamiregion doctor`: what is wrong on a node, what comes of it, and what can be mended."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import click

from libhamiregion.node import NvmlSampler, driver_gap
from libhamiregion.node.doctor import FindingKind, diagnose, repair

from . import node_options, options
from .doctor_pictures import DoctorPicture, is_left, named_finding, selected
from .intervals import ticks
from .node_words import node_notes, root_failure, root_warnings
from .pictures import show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.node import Finding, Node, Repair, Selector

LEFT = 3


@click.command(epilog=f"Exit codes: 0 nothing left, 1 failed, 2 wrong usage, {LEFT} findings left.")
@node_options.root_option
@node_options.selector_options
@click.option(
    "--only",
    "kinds",
    multiple=True,
    type=click.Choice([kind.value for kind in FindingKind]),
    metavar="KIND",
    help="Only findings of this kind, such as host_pid_missing; may be given again.",
)
@click.option("--repair", "mend", is_flag=True, help="Mend what can be mended with proof.")
@options.dry_run_option
@click.option("--no-driver", is_flag=True, help="Do not ask the driver (NVML).")
@node_options.library_option
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
@options.proc_option
@node_options.pod_logs_option
@options.json_option
@options.no_color_option
@click.pass_context
def doctor(
    ctx: click.Context,
    roots: tuple[str, ...],
    namespace: str | None,
    pod: str | None,
    container: str | None,
    device: str | None,
    kinds: tuple[str, ...],
    mend: bool,
    dry_run: bool,
    no_driver: bool,
    library: str | None,
    settle_s: float,
    interval_s: float | None,
    timeout_s: float,
    proc: str,
    pod_logs: str,
    as_json: bool,
) -> None:
    """Say what is wrong on this node: what, by which evidence, what comes of it, what to do.

    Looked at are host pids, dead processes that still count, slots, locks, limits, the driver's
    figures, and files.  A healthy node gives no finding.  Nothing is changed, unless --repair is
    given: that mends locks of the dead, slots, host pids and what dead processes hold, each only
    with proof that is taken anew, says what it did, and leaves the rest.  A lock that nobody has
    signed for is watched for 10 s first.

    Findings are errors, warnings or notes (info).  Notes may well be meant, and do not count for
    the exit code, which is 3 while errors or warnings are left.  PATTERNs are those of the shell.

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
    chosen = node_options.selector(namespace, pod, container, device)
    with (
        contextlib.nullcontext() if no_driver else NvmlSampler(library) as sampler,
        node_options.open_node(roots, proc, pod_logs) as node,
    ):
        visit = _Visit(node, sampler, chosen, frozenset(map(FindingKind, kinds)), settle_s)
        if mend:
            pictures = iter([visit.mend(roots, dry_run=dry_run, timeout_s=timeout_s)])
        else:
            pictures = (visit.look(roots) for _ in ticks(interval_s))
        last: DoctorPicture | None = None

        def remembered() -> Iterator[DoctorPicture]:
            nonlocal last
            for picture in pictures:
                last = picture
                yield picture

        show(remembered(), interval_s, as_json)
        if interval_s is None and last is not None and last.left:
            ctx.exit(LEFT)


class _Visit:
    """One run of the command."""

    def __init__(
        self,
        node: Node,
        sampler: NvmlSampler | None,
        selector: Selector,
        kinds: frozenset[FindingKind],
        settle_s: float,
    ) -> None:
        self._node = node
        self._sampler = sampler
        self._selector = selector
        self._kinds = kinds
        self._settle_s = settle_s

    def look(self, roots: tuple[str, ...]) -> DoctorPicture:
        """Diagnose only."""
        return self._picture(roots, self._diagnose(), None, dry_run=False)

    def mend(self, roots: tuple[str, ...], *, dry_run: bool, timeout_s: float) -> DoctorPicture:
        """Diagnose, repair, and diagnose again."""
        found = self._diagnose()
        done = repair(self._node, found, dry_run=dry_run, timeout_s=timeout_s)
        if any(each.actions for each in done) and not dry_run:
            found = self._diagnose()
        return self._picture(roots, found, done, dry_run=dry_run)

    def _diagnose(self) -> tuple[Finding, ...]:
        found = diagnose(self._node, sampler=self._sampler, settle_s=self._settle_s)
        return tuple(
            each
            for each in found
            if (not self._kinds or each.kind in self._kinds)
            and selected(self._node, self._selector, each)
        )

    def _picture(
        self,
        roots: tuple[str, ...],
        found: tuple[Finding, ...],
        done: tuple[Repair, ...] | None,
        *,
        dry_run: bool,
    ) -> DoctorPicture:
        node = self._node
        sample = None if self._sampler is None else self._sampler.sample()
        gap = None if sample is None else driver_gap(node.processes, sample)
        notes = node_notes(node)
        if gap is not None:
            notes = (*notes, f"nothing was compared with the driver's figures: {gap}")
        return DoctorPicture(
            taken_at_ns=time.time_ns(),
            findings=tuple(named_finding(node, each) for each in found),
            repairs=None
            if done is None
            else tuple((named_finding(node, each.finding), each) for each in done),
            dry_run=dry_run,
            left=sum(map(is_left, found)),
            looked_at=len(node.containers),
            sample=sample,
            driver_gap=gap,
            complete=node.processes.is_complete,
            notes=notes,
            warnings=root_warnings(node),
            failure=root_failure(node, roots),
        )
