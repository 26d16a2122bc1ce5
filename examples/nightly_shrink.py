"""Shrink idle containers at night, and give back in the morning what nobody else has changed.

    python nightly_shrink.py shrink --root /usr/local/vgpu/containers --state night.json
    python nightly_shrink.py restore --state night.json

What it shows: an edit of many containers that is dry-run first (--dry-run), a compare-and-set in
place of a lock, and an undo that is on disk before the first edit.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import libhamiregion as hami
from libhamiregion.node import Node

IDLE_S = 3600


def plan_night(root: str) -> list[dict[str, Any]]:
    """Every limit of an idle container that is more than its use, with what it shall be."""
    entries = []
    with Node(root) as node:
        node.refresh()
        for container in node.containers:
            if container.region is None:
                continue
            snapshot = container.region.snapshot()
            if time.time() - (snapshot.last_kernel_time_s or time.time()) < IDLE_S:
                continue
            for device in snapshot.devices:
                least = max(device.memory_used_bytes, 2**28)
                if device.memory_limit_bytes is not None and device.memory_limit_bytes > least:
                    entries.append(
                        {
                            "path": container.region_path,
                            "device": device.index,
                            "day": device.memory_limit_bytes,
                            "night": least,
                        }
                    )
    return entries


def apply(entries: list[dict[str, Any]], now: str, then: str, *, dry_run: bool) -> None:
    for entry in entries:
        path, device = entry["path"], entry["device"]
        shown = f"{path} device {device}: {hami.format_size(entry[now])}"
        try:
            with hami.open_region(path, writable=True) as region:
                region.set_memory_limit(
                    entry[then], device=device, expected=entry[now], dry_run=dry_run
                )
            print(f"{shown} -> {hami.format_size(entry[then])}")
        except hami.RegionError as error:  # gone, used more, or changed by somebody else
            print(f"{shown} stays: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["shrink", "restore"])
    parser.add_argument("--root", help="where the containers' directories are")
    parser.add_argument("--state", required=True, type=Path, help="what to give back")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    if arguments.what == "restore":
        apply(json.loads(arguments.state.read_text()), "night", "day", dry_run=arguments.dry_run)
        return
    entries = plan_night(arguments.root)
    if not arguments.dry_run:
        with arguments.state.open("x") as stream:  # an old one has not been given back yet
            json.dump(entries, stream)
            stream.flush()
            os.fsync(stream.fileno())
    apply(entries, "day", "night", dry_run=arguments.dry_run)


if __name__ == "__main__":
    main()
