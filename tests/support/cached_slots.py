"""Processes that account as libvgpu 2.8.1 and later do: each keeps the address of its slot."""

import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from typing_extensions import Self

from libhamiregion import Layout

MIB = 2**20


class CachedSlot:
    """A process with a slot in a mapped region; commands run in that process.

    Args:
        path: The region's file.
        layout: A layout with seqlocks.
    """

    def __init__(self, path: str | os.PathLike[str], layout: Layout) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, os.fspath(path), layout.value],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self("join")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def __call__(self, *words: object) -> None:
        """Run a command of `_Program` and wait until it is done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*words, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == "done\n"

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class _Program:
    def __init__(self, path: Path, layout: Layout) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), layout.size_bytes)
        self._offsets = layout.offsets
        self._slot = 0

    def _field(self, name: str) -> int:
        return self._slot + self._offsets[name]

    def _load(self, at: int, form: str) -> int:
        (value,) = struct.unpack_from(form, self._map, at)
        return int(value)

    def _store(self, at: int, form: str, value: int) -> None:
        struct.pack_into(form, self._map, at, value)

    def _at(self, index: int) -> int:
        return self._offsets["procs"] + index * self._offsets["slot_stride"]

    def join(self) -> None:
        """Take the next slot, and keep its address."""
        proc_num = self._offsets["proc_num"]
        count = self._load(proc_num, "<i")
        self._slot = self._at(count)
        self._map[self._slot : self._at(count + 1)] = bytes(self._offsets["slot_stride"])
        self._store(self._field("slot_pid"), "<i", os.getpid())
        self._store(self._field("slot_status"), "<i", 1)
        self._store(proc_num, "<i", count + 1)

    def add(self, nbytes: str) -> None:
        """Count memory, or give it back if the number is negative."""
        used, seqlock = self._field("slot_used"), self._field("slot_seqlock")
        for at, delta in (
            (seqlock, 1),
            (used + 16, int(nbytes)),
            (used + 32, int(nbytes)),
            (seqlock, 1),
        ):
            self._store(at, "<Q", (self._load(at, "<Q") + delta) % 2**64)

    def remove_dead(self) -> None:
        """Move the last slot over each one of a dead process, as a refused allocation does."""
        proc_num = self._offsets["proc_num"]
        index = 0
        while index < (count := self._load(proc_num, "<i")):
            try:
                os.kill(self._load(self._at(index) + self._offsets["slot_pid"], "<i"), 0)
            except ProcessLookupError:
                stride, last = self._offsets["slot_stride"], self._at(count - 1)
                self._map[self._at(index) : self._at(index) + stride] = self._map[
                    last : last + stride
                ]
                self._store(proc_num, "<i", count - 1)
            else:
                index += 1


def main(arguments: Sequence[str]) -> None:
    program = _Program(Path(arguments[0]), Layout(arguments[1]))
    for line in sys.stdin:
        command, *words = line.split()
        getattr(program, command)(*words)
        print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
