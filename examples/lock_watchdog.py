"""Free wedged locks of a node's regions: those whose holder is proved to be dead.

    python lock_watchdog.py --root /usr/local/vgpu/containers --every 30

What it shows: `Region.lock_state` costs nothing and takes nothing, so it is asked first;
`Region.recover_lock` acts on proof alone, and says what is missing where there is none.
"""

import argparse
import sys
import time

from libhamiregion import LockNotRecoverable, RegionError
from libhamiregion.node import Container, Node, RootsUnreadable


def free_if_wedged(node: Node, container: Container) -> str | None:
    """Say what was done or why not; None where the lock is free, or held by a live process."""
    assert container.region is not None
    if not container.region.lock_state().held:
        return None
    with node.open(container) as region:
        try:
            recovery = region.recover_lock(watch_s=0)
        except LockNotRecoverable as error:
            return str(error)
    return f"{region.path}: freed" if recovery else None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", required=True, help="where the containers' directories are")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="again and again")
    arguments = parser.parse_args()
    with Node(arguments.root) as node:
        while True:
            try:
                node.refresh()
            except RootsUnreadable as error:
                if arguments.every is None:
                    sys.exit(str(error))
                # The directory may come back.
                print(error, file=sys.stderr, flush=True)
            for container in node.containers:
                if container.region is None:
                    continue
                try:
                    said = free_if_wedged(node, container)
                except RegionError as error:  # replaced or cut off meanwhile
                    said = str(error)
                if said:
                    print(said, flush=True)
            if arguments.every is None:
                return
            time.sleep(arguments.every)


if __name__ == "__main__":
    main()
