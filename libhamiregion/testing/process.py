"""A process of a fake node: it attaches to regions and allocates and frees like a CUDA program.

`python -m libhamiregion.testing.process PATH DEVICE LEAST MOST STEP SM ...` has six arguments for
each region, and answers each byte of its standard input with one byte for each of them. At the
first it takes its slot and answers with a dot; then with a + where it has allocated a step, a -
where that was refused, and a dot where it has freed one. It claims to use SM percent of the device
while it allocates, and half of that while it frees. With a STEP of 0 it holds MOST bytes, its
context included, and changes nothing. At an L it takes the region's lock until the next byte. It
waits for a lock that another process holds. It ends when its input does, so that it does not
outlive its starter.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from libhamiregion import MemoryLimitExceeded, RegionError, open_region

from .fake_node import TAKE_LOCK

if TYPE_CHECKING:
    from collections.abc import Generator

CONTEXT_BYTES = 300 * 2**20
# Less than the fake node waits for an answer.
LOCK_WAIT_S = 50.0


def work(
    path: str, device: int, least: int, most: int, step: int, sm: int
) -> Generator[bytes, bytes, None]:
    """Allocate and free in a region, a step for each command; sizes in bytes.

    Yields:
        The answers.
    """
    held, direction = 0, 1
    with (
        open_region(path, writable=True) as region,
        region.attach(timeout_s=LOCK_WAIT_S) as slot,
    ):
        region.set_host_pid(slot.pid, slot.pid, timeout_s=LOCK_WAIT_S)
        region.set_utilization(slot.pid, device, sm=sm, timeout_s=LOCK_WAIT_S)
        context = CONTEXT_BYTES if step else min(CONTEXT_BYTES, most)
        # Where a limit leaves no room for its context it goes without.
        with contextlib.suppress(MemoryLimitExceeded):
            slot.charge(device, context, kind="context")
            if not step:
                slot.charge(device, most - context)
        answer = b"."
        while True:
            command = yield answer
            answer = b"."
            if command == TAKE_LOCK:
                with region.lock(LOCK_WAIT_S):
                    yield answer
            if not step:
                continue
            if not least <= held + direction * step <= most:
                direction = 1 if held < least + step else -1
                percent = sm if direction > 0 else sm // 2
                region.set_utilization(slot.pid, device, sm=percent, timeout_s=LOCK_WAIT_S)
            try:
                if direction > 0:
                    slot.charge(device, step)
                    answer = b"+"
                else:
                    slot.release(device, step)
            except MemoryLimitExceeded:
                answer = b"-"
            else:
                held += direction * step


def main(arguments: list[str]) -> None:
    """Work in all regions until standard input ends."""
    if not os.read(0, 1):
        return
    jobs = [arguments[at : at + 6] for at in range(0, len(arguments), 6)]
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(contextlib.closing(work(path, *map(int, numbers))))
            for path, *numbers in jobs
        ]
        answers = [next(worker) for worker in workers]
        while os.write(1, b"".join(answers)) and (command := os.read(0, 1)):
            answers = [worker.send(command) for worker in workers]


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (BrokenPipeError, RegionError) as error:
        # Its parent is gone, or has taken the region away.
        sys.exit(str(error) if isinstance(error, RegionError) else 1)
