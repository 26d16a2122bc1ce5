"""A reader that takes a snapshot every millisecond; run by test_writer.py in a process of its own.

    python paced_reader.py FILE...

A number on stdin says which file to read from now on, -1 none. Answers each with the number of
snapshots taken since the line before, and how many of them settled.
"""

from __future__ import annotations

import select
import sys
import time

import libhamiregion as hami

PERIOD_S = 0.001


def main(paths: list[str]) -> None:
    regions = [hami.open_region(path) for path in paths]
    choice = -1
    taken = settled = 0
    due = time.monotonic()
    while True:
        patience = None if choice < 0 else max(0.0, due - time.monotonic())
        if select.select([sys.stdin], [], [], patience)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            choice = int(line)
            print(taken, settled, flush=True)
            taken = settled = 0
            due = time.monotonic()
        elif choice >= 0:
            settled += regions[choice].snapshot().settled
            taken += 1
            due = max(due + PERIOD_S, time.monotonic())


main(sys.argv[1:])
