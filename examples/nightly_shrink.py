"""Shrink the memory limits of idle containers at night, and restore them in the morning.

    python nightly_shrink.py shrink STATE ROOT
    python nightly_shrink.py restore STATE ROOT

What it shows: `libhamiregion.plan` makes a job of many edits safe. An undo plan is on disk before
the first edit, so either command may be killed and run again. Each container is edited wholly or
not at all, and only if its limits are still those that were seen. A container that cannot be edited
is left as it is and named, and does not stop the others. STATE is a directory of this job's own.
"""

import glob
import sys
from collections.abc import Iterator
from pathlib import Path

import libhamiregion as hami
from libhamiregion.node import Container, Node, RootsUnreadable, Selector
from libhamiregion.plan import LimitPlan, Limits, Rule, apply_diff, diff_plan, load_plan

IDLE_S = 3600.0
LEAST_BYTES = 256 << 20


def warn(about: object, message: object) -> None:
    print(f"{about}: {message}", file=sys.stderr)


def shrinking(container: Container) -> Iterator[Rule]:
    """Give the rules that leave an idle container the memory in use; none if it is busy."""
    if container.region is None:
        return
    snapshot = container.region.snapshot()
    # Figures that do not belong together say nothing about what is in use.
    if not snapshot.settled or (snapshot.idle_s or 0.0) < IDLE_S:
        return
    own = container.claim_uid or container.directory_name or ""
    for device in snapshot.devices:
        limit, least = device.memory_limit_bytes, max(device.memory_used_bytes, LEAST_BYTES)
        if limit is not None and limit > least:
            chosen = Selector(
                pod_uid=glob.escape(container.pod_uid or ""),
                container=glob.escape(own),
                device=str(device.index),
            )
            yield Rule(chosen, Limits(memory_limit=least), only_if=Limits(memory_limit=limit))


def apply(node: Node, plan: LimitPlan, state: Path) -> bool:
    """Apply a plan; returns whether nothing is left to be tried again."""
    diff = diff_plan(node, plan)
    result = apply_diff(node, diff, state=state)
    for change in result.changes:
        print(change)
    # Values that others have set since are theirs.
    left = [each for each in diff.unapplied if each.reason != "changed"]
    for each in left:
        warn(each.container.directory, f"left as it is: {each.message}")
    for outcome in result.outcomes:
        if outcome.message is not None:
            warn(outcome.diff.container.directory, outcome.message)
    return not left and result.all_applied and not node.root_errors


def shrink(node: Node, state: Path) -> bool:
    rules: list[Rule] = []
    complete = True
    for container in node.containers:
        try:
            rules += shrinking(container)
        except hami.RegionError as error:
            warn(container.directory, error)
            complete = False
    return apply(node, LimitPlan(tuple(rules), "night"), state) and complete


def restore(node: Node, state: Path) -> bool:
    complete = True
    # The newest first: a container may have been shrunk twice.
    for path in sorted(state.glob("undo-*.yaml"), reverse=True):
        try:
            done = apply(node, load_plan(path), state / "restored")
        except (OSError, ValueError) as error:
            warn(path, error)
            done = False
        if done:
            path.unlink()
        complete = complete and done
    return complete


def main(verb: str, state: str, root: str) -> int:
    with Node(root) as node:
        try:
            node.refresh()
        except RootsUnreadable as error:
            sys.exit(str(error))
        return 0 if {"shrink": shrink, "restore": restore}[verb](node, Path(state)) else 1


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in {"shrink", "restore"}:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
