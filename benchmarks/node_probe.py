"""What a node costs in memory; run by test_node_looks.py in a process of its own.

    PYTHONMALLOC=malloc python node_probe.py ROOT

As memory_probe.py counts. Prints JSON: bytes per container and per process of the machine.
"""

from __future__ import annotations

import json
import sys

from memory_probe import allocated_bytes

from libhamiregion.node import Node


def main(root: str) -> None:
    with Node(root) as first:  # what is paid once
        first.refresh()
    start = allocated_bytes()
    with Node(root) as node:
        node.refresh(processes=False)
        with_containers = allocated_bytes()
        node.processes.refresh()
        with_processes = allocated_bytes()
        count, processes = len(node.containers), len(node.processes)
    print(
        json.dumps(
            {
                "container": (with_containers - start) / count,
                "process": (with_processes - with_containers) / processes,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
