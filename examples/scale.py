"""Scale the memory limits of a namespace's containers; undo it where nobody has changed them since.

    python scale.py 80% --namespace research --root /usr/local/vgpu/containers --dry-run
    python scale.py 80% --namespace research --root /usr/local/vgpu/containers --save changes.json
    python scale.py --undo changes.json

What it shows: "80%" is of the limit that stands there, read and replaced in one step; a dry run
checks all that the edit checks; what an edit returns is what `undo` takes, also on another day.
"""

import argparse
import json
from pathlib import Path

import attrs

import libhamiregion as hami
from libhamiregion.node import Node


def scale(root: str, limit: str, dry_run: bool, **names: str | None) -> list[hami.LimitChange]:
    changes: list[hami.LimitChange] = []
    with Node(root) as node:
        node.refresh(processes=False)
        for container in node.select(**names):
            try:
                with node.open(container) as region:
                    changes += region.set_memory_limit(limit, dry_run=dry_run)
            except (hami.RegionError, ValueError) as error:  # no region, more in use, no limit yet
                print(f"left as it is: {container.directory_name}: {error}")
    return changes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("limit", nargs="?", help='such as "80%%" or "6GiB"')
    parser.add_argument("--root", help="where the containers' directories are")
    parser.add_argument("--namespace")
    parser.add_argument("--pod")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--save", type=Path, help="where to write what was changed")
    parser.add_argument("--undo", type=Path, help="take back what was saved there")
    given = parser.parse_args()
    if given.undo:
        saved = json.loads(given.undo.read_text())
        print(*hami.undo(hami.LimitChange(**each) for each in saved), sep="\n")
        return
    changes = scale(
        given.root, given.limit, given.dry_run, namespace=given.namespace, pod=given.pod
    )
    print(*changes, f"{len(changes)} changes", sep="\n")
    if given.save and not given.dry_run:
        given.save.write_text(json.dumps([attrs.asdict(change) for change in changes]))


if __name__ == "__main__":
    main()
