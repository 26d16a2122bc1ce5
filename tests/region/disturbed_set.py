"""A RegionSet that is read while its regions are closed, added and discarded.

``python disturbed_set.py thread|handler SECONDS FILE...``: by another thread, or by a signal
handler of the reading thread itself, between any two of its instructions. Prints how many reads
there were, how many rows of closed regions, and how many disturbances. It lasts longer where there
was not enough of them.
"""

import contextlib
import random
import signal
import sys
import threading
import time
from types import FrameType

from libhamiregion import Region, RegionClosed, RegionSet, open_region


class Reader:
    """Reads until the set is closed; rows of closed regions are the only failures."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.set = RegionSet(paths)
        self.adopted: list[Region] = []
        self.reads = self.closed_rows = self.deeds = 0

    def read(self) -> None:
        table = self.set.read()
        for row, code in enumerate(table.regions.code):
            if code != 0:
                assert isinstance(table.error(row), RegionClosed), table.error(row)
                assert table.regions.process_count[row] == 0
                self.closed_rows += 1
        assert sum(table.regions.process_count) == len(table.processes)
        self.reads += 1

    def until_closed(self) -> None:
        with contextlib.suppress(RegionClosed):
            while True:
                self.read()

    def is_enough(self) -> bool:
        """Whether both sides had their turns, which takes longer on a busy machine."""
        return min(self.reads, self.deeds) > 100 and self.closed_rows > 0

    def disturb(self) -> None:
        path = random.choice(self.paths)
        deed = random.randrange(5)
        if deed == 0:
            self.set.add(path)
        elif deed == 1:
            self.set.discard(path)
        elif deed == 2:
            self.adopted.append(open_region(path))
            self.set._adopt(self.adopted[-1])
        elif deed == 3:
            self.read()
        else:
            # Not asked of the set, which could make us wait for a read.
            for region in self.adopted:
                region.close()
            self.adopted.clear()
        if len(self.set) > 3 * len(self.paths):
            self.set.discard(random.choice(self.set.regions))
        self.deeds += 1


def by_thread(reader: Reader, seconds: float) -> None:
    end = time.monotonic() + seconds

    def disturb() -> None:
        while time.monotonic() < end or not reader.is_enough():
            reader.disturb()
        reader.set.close()

    thread = threading.Thread(target=disturb, daemon=True)
    thread.start()
    reader.until_closed()
    thread.join()


def by_handler(reader: Reader, seconds: float) -> None:
    end = time.monotonic() + seconds
    is_inside = False

    def on_alarm(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_inside
        if is_inside:
            return
        is_inside = True
        if time.monotonic() < end or not reader.is_enough():
            reader.disturb()
        else:
            reader.set.close()
        is_inside = False
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 4e-4))

    signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, 1e-4)
    reader.until_closed()
    # The handler that runs last has set the timer once more.
    signal.signal(signal.SIGALRM, signal.SIG_IGN)


def main() -> None:
    how, seconds, *paths = sys.argv[1:]
    # Between as many instructions as there are.
    sys.setswitchinterval(1e-6)
    reader = Reader(paths)
    {"thread": by_thread, "handler": by_handler}[how](reader, float(seconds))
    assert len(reader.set) == 0
    print(reader.reads, reader.closed_rows, reader.deeds)


if __name__ == "__main__":
    main()
