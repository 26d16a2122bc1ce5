"""One process of the demo: it attaches to a region and allocates and frees like a CUDA program.

`python -m libhamiregion.cli.demo_worker PATH DEVICE BASE CEILING STEP SM PAUSE` charges steps until
it holds the ceiling, releases them down to the base, and so on.  Refused, it frees a step if it has
one to spare and tries again.  After each move it prints what it holds as one line of JSON, and
claims to use about SM percent of the device.  It ends when its standard input does, so that no
worker outlives the demo.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import TYPE_CHECKING

from libhamiregion import MemoryLimitExceeded, Region, Slot, open_region

if TYPE_CHECKING:
    from libhamiregion.slot import Kind

CONTEXT_BYTES = 300 * 2**20
MODULE_BYTES = 40 * 2**20


class Worker:
    """What one process holds of one device, in bytes, and how often it was refused."""

    def __init__(self, region: Region, slot: Slot, device: int, sm_percent: int) -> None:
        self.region = region
        self.slot = slot
        self.device = device
        self.sm_percent = sm_percent
        self.moves = 0
        self.held_bytes = 0
        self.granted = 0
        self.refused = 0

    def charge(self, nbytes: int, kind: Kind = "data") -> bool:
        """Allocate; False if the limit does not allow it."""
        try:
            self.slot.charge(self.device, nbytes, kind=kind)
        except MemoryLimitExceeded:
            self.refused += 1
            return False
        self.granted += 1
        self.held_bytes += nbytes
        return True

    def release(self, nbytes: int) -> None:
        """Free."""
        self.slot.release(self.device, nbytes, kind="data")
        self.held_bytes -= nbytes

    def report(self) -> None:
        """Tell the demo, and tell the region what the driver would say of this process."""
        self.moves += 1
        pid, jitter = self.slot.pid, self.moves * 5 % 7 - 3
        self.region.set_utilization(pid, self.device, sm=self.sm_percent + jitter)
        self.region.set_monitor_used(pid, self.device, self.held_bytes)
        state = {
            "held_bytes": self.held_bytes,
            "granted": self.granted,
            "refused": self.refused,
        }
        sys.stdout.write(json.dumps(state) + "\n")
        sys.stdout.flush()


def work(
    path: str, device: int, base: int, ceiling: int, step: int, sm_percent: int, pause_s: float
) -> None:
    """Allocate and free until standard input ends; sizes in bytes."""
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    with open_region(path, writable=True) as region, region.attach() as slot:
        worker = Worker(region, slot, device, sm_percent)
        region.set_host_pid(slot.pid, slot.pid)
        worker.charge(CONTEXT_BYTES, "context")
        worker.charge(MODULE_BYTES, "module")
        growing = True
        while not ended.is_set():
            if growing and worker.held_bytes + step > ceiling:
                growing = False
            elif not growing and worker.held_bytes - step < base:
                growing = True
            if not growing or (not worker.charge(step) and worker.held_bytes - step >= base):
                worker.release(step)
            worker.report()
            ended.wait(pause_s)


def _wait_for_end(ended: threading.Event) -> None:
    try:
        while os.read(sys.stdin.fileno(), 4096):
            pass
    finally:
        ended.set()


def main(arguments: list[str]) -> None:
    """Run one worker; the arguments are those of the module's docstring."""
    path, device, base, ceiling, step, sm, pause_s = arguments
    try:
        work(path, int(device), int(base), int(ceiling), int(step), int(sm), float(pause_s))
    except BrokenPipeError:
        # The demo is gone and reads no more reports; nor shall the interpreter's last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main(sys.argv[1:])
