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
import time
from pathlib import Path

import attrs

import libhamiregion as hami
from libhamiregion.node import Node

IDLE_S = 3600


def plan_night(node: Node) -> list[hami.LimitChange]:
    """What to change: every limit of an idle container that is more than its use."""
    changes: list[hami.LimitChange] = []
    for container in node.containers:
        if container.region is None:
            continue
        snapshot = container.region.snapshot()
        if time.time() - (snapshot.last_kernel_time_s or time.time()) < IDLE_S:
            continue
        # Gone by now, or more is in use than a moment ago: not tonight.
        with contextlib.suppress(hami.RegionError), node.open(container) as region:
            for device in snapshot.devices:
                least = max(device.memory_used_bytes, 2**28)
                if device.memory_limit_bytes is not None and device.memory_limit_bytes > least:
                    changes += region.set_memory_limit(least, device=device.index, dry_run=True)
    return changes


def make(changes: list[hami.LimitChange]) -> None:
    for change in changes:
        try:
            with hami.open_region(change.path, writable=True) as region:
                region.set_memory_limit(change.after, device=change.device, expected=change.before)
        except hami.RegionError as error:  # gone, uses more, or changed by somebody else
            print(f"stays: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["shrink", "restore"])
    parser.add_argument("--root", help="where the containers' directories are")
    parser.add_argument("--state", required=True, type=Path, help="what to give back")
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    if given.what == "restore":
        saved = json.loads(given.state.read_text())
        print(*hami.undo(hami.LimitChange(**each) for each in saved), sep="\n")
        return
    with Node(given.root) as node:
        node.refresh(processes=False)
        changes = plan_night(node)
    print(*changes, sep="\n")
    if not given.dry_run:
        with given.state.open("x") as stream:  # an old one has not been given back yet
            json.dump([attrs.asdict(change) for change in changes], stream)
            stream.flush()
            os.fsync(stream.fileno())
        make(changes)


if __name__ == "__main__":
    main()
