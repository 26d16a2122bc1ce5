"""Scale the memory limits of a namespace's containers; undo it where nobody has changed them since.

    python scale.py 80% --namespace research --root /usr/local/vgpu/containers --dry-run
    python scale.py 80% --namespace research --root /usr/local/vgpu/containers --save changes.json
    python scale.py --undo changes.json

What it shows: "80%" is of the limit that stands there, read and replaced in one step; a dry run
checks all that the edit checks; what an edit returns is what `undo` takes, also on another day.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import libhamiregion as hami
from libhamiregion.node import Container, Node, NodeNames, PodNamesUnknown, RootsUnreadable


def scale(
    node: Node, chosen: Sequence[Container], limit: str, dry_run: bool
) -> list[hami.LimitChange]:
    changes: list[hami.LimitChange] = []
    for container in chosen:
        try:
            with node.open(container) as region:
                changes += region.set_memory_limit(limit, dry_run=dry_run)
        except (hami.RegionError, ValueError) as error:  # no region, more in use, no limit yet
            print(f"left as it is: {container.directory_name}: {error}")
    return changes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("limit", nargs="?", help='such as "80%%" or "6GiB"')
    parser.add_argument("--root", help="where the containers' directories are")
    parser.add_argument("--pod-logs", default="/var/log/pods", help="what tells pods' names")
    parser.add_argument("--namespace")
    parser.add_argument("--pod")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--save", type=Path, help="where to write what was changed")
    parser.add_argument("--undo", type=Path, help="take back what was saved there")
    given = parser.parse_args()
    if given.undo:
        saved = json.loads(given.undo.read_text())
        print(*hami.undo(map(hami.LimitChange.from_dict, saved)), sep="\n")
        return
    if given.limit is None:
        parser.error("a limit, or --undo FILE")
    with Node(given.root, names=NodeNames(given.pod_logs)) as node:
        try:
            node.refresh()
        except RootsUnreadable as error:
            sys.exit(str(error))
        if node.root_problem:
            sys.exit(node.root_problem)
        try:
            chosen = node.select(namespace=given.namespace, pod=given.pod)
            changes = scale(node, chosen, given.limit, given.dry_run)
        except PodNamesUnknown as error:
            sys.exit(str(error))
    print(*changes, f"{len(changes)} changes", sep="\n")
    if given.save and not given.dry_run:
        given.save.write_text(json.dumps([change.to_dict() for change in changes]))


if __name__ == "__main__":
    main()
