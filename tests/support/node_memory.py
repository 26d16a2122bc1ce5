"""What looking at a hostile node costs in memory; run as a program by test_memory.py.

    python node_memory.py ROOT [FILES_TO_MAP]

With a directory of files, a process that maps all of them is looked at, in whose slots its own pid
stands; to be run in a pid namespace of its own. Prints the number of containers, how many had their
slots left out, and by how many MiB anonymous memory has grown at its highest.
"""

import mmap
import os
import struct
import sys
import threading
from pathlib import Path

from libhamiregion import Layout
from libhamiregion.layouts import SLOT_CAPACITY
from libhamiregion.node import Node, Observer, node_processes


def anonymous_mib() -> float:
    text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    (line,) = (line for line in text.splitlines() if line.startswith("Anonymous:"))
    return int(line.split()[1]) / 1024


def map_all(directory: Path) -> None:
    """Fork a process that maps every file and waits."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        kept = []
        for path in directory.glob("*.cache"):
            with path.open("r+b") as file:
                kept.append(mmap.mmap(file.fileno(), 0))
        os.write(told, b"!")
        threading.Event().wait()
    assert os.read(ready, 1) == b"!"
    slots = Layout.V1_2.offsets
    first, stride = slots["procs"] or 0, slots["slot_stride"] or 0
    for path in list(directory.glob("own-*.cache")):
        with path.open("r+b") as file:
            for slot in range(SLOT_CAPACITY):
                file.seek(first + slot * stride)
                file.write(struct.pack("<i", pid))


def main(root: str, *mapped: str) -> None:
    for directory in mapped:
        map_all(Path(directory))
    highest = 0.0
    stop = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not stop.wait(0.1):
            highest = max(highest, anonymous_mib())

    with Node(root, outside=bool(mapped)) as node:
        start = anonymous_mib()
        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        observation = Observer.for_command(node).observe()
        views = tuple(observation.details())
        node_processes(observation)
        shown = [len(view.snapshot.processes) for view in views if view.snapshot is not None]
        left_out = sum(gap.kind == "slots" for gap in observation.gaps)
        assert len(shown) == len(views)
        snapshot = node.snapshot()
        assert len(node.slots(snapshot).states) == len(snapshot.table.processes)
        stop.set()
        thread.join()
        # With all of it alive.
        highest = max(highest, anonymous_mib())
    print(len(views), left_out, highest - start)


if __name__ == "__main__":
    main(*sys.argv[1:])
