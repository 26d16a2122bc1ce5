"""A program that reads a region while it is truncated; run by test_truncation.py.

Prints one line of JSON: how often each outcome was met. Anything but data or the documented error
ends it with a traceback, and a SIGBUS that is not caught ends it at once.
"""

import argparse
import faulthandler
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable

from libhamiregion import Region, RegionSet, RegionStale, create_region, open_region

LIMIT = 6 * 2**30
PAGE = 4096


class Image:
    """A region file that is cut and made whole again, in place."""

    def __init__(self, path: str) -> None:
        create_region(path, memory_limits=(LIMIT,))
        self.path = path
        self.fd = os.open(path, os.O_RDWR)
        self.size = os.fstat(self.fd).st_size
        # Only these pages hold anything; the slots between them are a hole.
        self.head = os.pread(self.fd, PAGE, 0)
        self.tail_at = (self.size - 1) // PAGE * PAGE
        self.tail = os.pread(self.fd, PAGE, self.tail_at)

    def cut(self, size: int) -> None:
        os.ftruncate(self.fd, size)

    def restore(self) -> None:
        """As a creator does it: the magic last."""
        os.ftruncate(self.fd, 0)
        os.ftruncate(self.fd, self.size)
        os.pwrite(self.fd, self.tail, self.tail_at)
        os.pwrite(self.fd, self.head[4:], 4)
        os.pwrite(self.fd, self.head[:4], 0)

    def random_cut(self) -> int:
        # What is left of a page reads as zeros, not as SIGBUS: so never within the page of the
        # counts, nor within magic and version, which would make it another file.
        return random.choice((0, PAGE, random.randrange(64, self.tail_at + 1)))


def outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except RegionStale as error:
        return "truncated" if "truncated" in str(error) else "remade"
    return "data"


def in_lockstep(image: Image, rounds: int, region: Region, region_set: RegionSet) -> Counter[str]:
    """Cut, read, restore, read: each cut must be met, each restored file must be readable."""
    outcomes: Counter[str] = Counter()
    for number in range(rounds):
        image.cut(image.random_cut())
        cut = (region.snapshot, lambda: region.memory_used(0), lambda: region.set_priority(1))
        outcomes[f"cut: {outcome(cut[number % 3])}"] += 1
        error = region_set.read().error(0)
        outcomes[f"cut, in a set: {type(error).__name__}"] += 1
        outcomes[f"cut: is_stale {region.is_stale()}"] += 1
        image.restore()
        with open_region(image.path) as again:
            assert again.memory_limit(0) == again.snapshot().device(0).memory_limit_bytes == LIMIT
        outcomes[f"restored: {outcome(region.snapshot)}"] += 1
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--faulthandler", choices=["never", "before", "after"], default="never")
    options = parser.parse_args()

    if options.faulthandler == "before":
        faulthandler.enable()
    image = Image(options.path)
    with open_region(image.path, writable=True) as region, RegionSet([image.path]) as region_set:
        if options.faulthandler == "after":
            faulthandler.enable()
        outcomes = in_lockstep(image, options.rounds, region, region_set)
    json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
    main()
