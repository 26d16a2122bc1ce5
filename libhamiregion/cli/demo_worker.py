"""One process of the demo: it attaches to a region and allocates and frees like a CUDA program.

`python -m libhamiregion.cli.demo_worker PATH DEVICE BASE CEILING STEP SM PAUSE` allocates a step
at a time up to CEILING bytes, frees down to BASE bytes, and so on, with PAUSE seconds between, and
claims to use SM percent of the device. It writes a + to standard output for each step granted and
a - for each refused, and ends when its standard input does, so that none outlives the demo.
"""

from __future__ import annotations

import os
import select
import sys

from libhamiregion import MemoryLimitExceeded, RegionNotFound, open_region

CONTEXT_BYTES = 300 * 2**20


def work(
    path: str, device: int, base: int, ceiling: int, step: int, sm: int, pause_s: float
) -> None:
    """Allocate and free until standard input ends; sizes in bytes."""
    held, direction = 0, 1
    with open_region(path, writable=True) as region, region.attach() as slot:
        region.set_host_pid(slot.pid, slot.pid)
        region.set_utilization(slot.pid, device, sm=sm)
        slot.charge(device, CONTEXT_BYTES, kind="context")
        while not select.select([0], [], [], pause_s)[0]:
            if not base <= held + direction * step <= ceiling:
                direction = 1 if held < base + step else -1
            try:
                if direction > 0:
                    slot.charge(device, step)
                    os.write(1, b"+")
                else:
                    slot.release(device, step)
            except MemoryLimitExceeded:
                os.write(1, b"-")
            else:
                held += direction * step


if __name__ == "__main__":
    name, *numbers, pause = sys.argv[1:]
    index, base_bytes, ceiling_bytes, step_bytes, percent = map(int, numbers)
    try:
        work(name, index, base_bytes, ceiling_bytes, step_bytes, percent, float(pause))
    except (BrokenPipeError, RegionNotFound):
        # The demo has ended and counts no more steps, or has taken its region away.
        sys.exit(1)
