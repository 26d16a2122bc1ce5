"""Free the locks of killed processes: python lock_watchdog.py ROOT, from cron or a timer."""

import sys

import libhamiregion as hami
from libhamiregion.node import Node, RootsUnreadable

with Node(sys.argv[1]) as node:
    try:
        node.refresh()
    except RootsUnreadable as error:
        sys.exit(str(error))
    for container in node.containers:
        # Asking costs and takes nothing; recover_lock() acts on proof alone.
        if container.region is None or not container.region.lock_state().held:
            continue
        try:
            with node.open(container) as region:
                if region.recover_lock(watch_s=0):
                    print(f"{region.path}: freed")
        except hami.RegionError as error:  # a live owner, no proof, or a container that has gone
            print(error)
