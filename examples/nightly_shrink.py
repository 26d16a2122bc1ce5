"""Shrink idle containers at night, and give back in the morning what nobody else has changed.

    python nightly_shrink.py shrink --root /usr/local/vgpu/containers --state night.json
    python nightly_shrink.py restore --state night.json

What it shows: an edit of many containers that is dry-run first, a compare-and-set in place of a
lock, and an undo that is on disk before the first edit.
"""

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path

import libhamiregion as hami
from libhamiregion.node import Node, RootsUnreadable

IDLE_S = 3600


def plan_night(node: Node) -> list[hami.LimitChange]:
    """What to change: every limit of an idle container that is more than its use."""
    changes: list[hami.LimitChange] = []
    for container in node.containers:
        if container.region is None:
            continue
        # A region that cannot be read, or uses more than a moment ago, keeps its limits tonight.
        with contextlib.suppress(hami.RegionError), node.open(container) as region:
            snapshot = region.snapshot()
            if not snapshot.settled or (snapshot.idle_s or 0) < IDLE_S:
                continue
            for device in snapshot.devices:
                least = max(device.memory_used_bytes, 2**28)
                if (device.memory_limit_bytes or 0) > least:
                    change = region.set_memory_limit(least, device=device.index, dry_run=True)
                    changes.append(change)
    return changes


def make(changes: list[hami.LimitChange]) -> None:
    for change in changes:
        try:
            with hami.open_region(change.path, writable=True) as region:
                region.set_memory_limit(change.after, device=change.device, expected=change.before)
        except hami.RegionError as error:  # gone, uses more, or changed by somebody else
            print(f"stays: {error}")


def restore(state: Path) -> None:
    """Give back what can be; a state that has more to give stays for another try."""
    outcomes = hami.undo(map(hami.LimitChange.from_dict, json.loads(state.read_text())))
    print(*outcomes, f"{len(outcomes)} changes looked at", sep="\n")
    if any(each.status in {"refused", "failed"} for each in outcomes):
        sys.exit(f"not all was given back: run restore again, {state} stays")
    state.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["shrink", "restore"])
    parser.add_argument("--root", help="where the containers' directories are")
    parser.add_argument("--state", required=True, type=Path, help="what to give back")
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    if given.what == "restore":
        restore(given.state)
        return
    if given.state.exists():
        sys.exit(f"{given.state} has not been given back; run restore first")
    with Node(given.root) as node:
        try:
            node.refresh(processes=False)
        except RootsUnreadable as error:
            sys.exit(str(error))
        if node.root_problem:
            sys.exit(node.root_problem)
        changes = plan_night(node)
    print(*changes, f"{len(changes)} changes", sep="\n")
    if not given.dry_run:
        with given.state.open("x") as stream:
            json.dump([change.to_dict() for change in changes], stream)
            stream.flush()
            os.fsync(stream.fileno())
        make(changes)


if __name__ == "__main__":
    main()
