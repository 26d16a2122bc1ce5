"""A hostile container: random moves against its own region and directory, for ever.

    python hostile_tenant.py SEED DIRECTORY

It has what a container has, DIRECTORY and its own processes, and touches nothing else. Each move is
a line on standard output before it is made. To be run in pid and mount namespaces of its own.
"""

import contextlib
import ctypes
import fcntl
import mmap
import os
import random
import shutil
import signal
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

_FLOCK = struct.Struct("hhqqi4x")
_LIBC = ctypes.CDLL(None, use_errno=True)


class Tenant:
    """What a hostile container does; each method is a move, and takes it back at its end or later.

    Args:
        seed: Of the order of the moves, and of what is random in them.
        directory: The container's, with its region in it.
    """

    def __init__(self, seed: int, directory: Path) -> None:
        self._dice = random.Random(seed)
        self._directory = directory
        self._region = directory / "usage.cache"
        self._content = self._region.read_bytes()
        self._children: list[int] = []
        self._kept: list[object] = []

    def play(self) -> None:
        """Make one move after the other."""
        moves: list[Callable[[], None]] = [
            self.rename,
            self.link,
            self.fifo,
            self.device,
            self.socket,
            self.directory,
            self.cut,
            self.hole,
            self.scribble,
            self.lease,
            self.byte_locks,
            self.root_locks,
            self.many_files,
            self.many_directories,
            self.mount_over,
            self.processes,
            self.stopped,
            self.deleted_files,
            self.names,
            self.modes,
        ]
        while True:
            move = self._dice.choice(moves)
            print(move.__name__, flush=True)
            # A move may be in another's way.
            with contextlib.suppress(OSError, ValueError):
                move()
            self._wait()
            self._tidy()

    def _wait(self) -> None:
        time.sleep(self._dice.choice((0.0, 0.01, 0.3, 1.5)))

    def _tidy(self) -> None:
        """A region stands there again, most of the time."""
        self._kept.clear()
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._children.clear()
        if self._dice.random() < 0.7:
            self._clear()
            temporary = self._directory / ".new"
            temporary.write_bytes(self._content)
            temporary.replace(self._region)

    def _clear(self) -> None:
        for each in self._directory.iterdir():
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each, ignore_errors=True)
            else:
                each.unlink()

    def _replace(self, make: Callable[[Path], None]) -> None:
        self._region.unlink(missing_ok=True)
        make(self._region)

    def _fork(self, work: Callable[[], None]) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                work()
            finally:
                os._exit(0)
        self._children.append(pid)

    # ---- in the region's place

    def rename(self) -> None:
        """The region goes and comes back, many times."""
        other = self._directory / "other.cache"
        for _ in range(200):
            self._region.rename(other)
            other.rename(self._region)

    def link(self) -> None:
        targets = ("/proc/self/mem", "/dev/zero", "usage.cache", "/", str(self._directory))
        self._replace(lambda path: path.symlink_to(self._dice.choice(targets)))

    def fifo(self) -> None:
        self._replace(os.mkfifo)

    def device(self) -> None:
        # /dev/full: whoever opens it does nothing by that.
        self._replace(lambda path: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7)))

    def socket(self) -> None:
        self._replace(lambda path: os.mknod(path, stat.S_IFSOCK | 0o666))

    def directory(self) -> None:
        self._replace(Path.mkdir)

    def names(self) -> None:
        """File names that are no text."""
        for _ in range(50):
            name = bytes(self._dice.choices([10, 27, 34, 92, 255, 65], k=20)) + b".cache"
            (Path(os.fsdecode(os.fsencode(self._directory) + b"/" + name))).write_bytes(b"")

    def modes(self) -> None:
        self._region.chmod(self._dice.choice((0, 0o000, 0o222, 0o444)))
        self._directory.chmod(self._dice.choice((0o777, 0o000)))
        self._wait()
        self._directory.chmod(0o777)

    # ---- fields of the region

    def cut(self) -> None:
        with self._region.open("r+b") as file:
            for _ in range(20):
                file.truncate(self._dice.choice((0, 100, 4096, len(self._content) // 2)))
                file.truncate(len(self._content))

    def hole(self) -> None:
        size = self._dice.choice((1 << 30, 1 << 40))
        with self._region.open("r+b") as file:
            file.truncate(size)

    def scribble(self) -> None:
        size = len(self._content)
        with self._region.open("r+b") as file, mmap.mmap(file.fileno(), size) as memory:
            for _ in range(2000):
                at = self._dice.randrange(size - 8)
                if self._dice.random() < 0.5:
                    at = self._dice.randrange(2048)
                value = self._dice.choice((0, 1, -1, 1024, 1 << 31, -1 << 31, -1 << 63, 1 << 62))
                memory[at : at + 8] = struct.pack("<q", value)
            # Of this container's GPUs it may say what it likes, but not that it has others'.
            memory[:1600] = self._content[:1600]

    # ---- locks

    def lease(self) -> None:
        descriptor = os.open(self._region, os.O_RDWR)
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            self._wait()
        finally:
            os.close(descriptor)

    def byte_locks(self) -> None:
        with self._region.open("r+b") as file:
            for start in (0, 1 << 24):
                asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, 0, 0)
                fcntl.fcntl(file, fcntl.F_OFD_SETLK, asked)
            fcntl.flock(file, fcntl.LOCK_EX)
            self._wait()

    def root_locks(self) -> None:
        """As a container of KAI's can, which has the whole root."""
        descriptor = os.open(self._directory.parent, os.O_RDONLY)
        try:
            asked = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, asked)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._wait()
        finally:
            os.close(descriptor)

    # ---- many of everything

    def many_files(self) -> None:
        for number in range(self._dice.choice((10, 3000))):
            (self._directory / f"{number}.cache").write_bytes(self._content[:100])

    def many_directories(self) -> None:
        for number in range(500):
            (self._directory / f"{number}.cache").mkdir(exist_ok=True)

    def deleted_files(self) -> None:
        """Mappings of files that nobody can open any more."""
        for number in range(200):
            path = self._directory / f"deleted-{number}.cache"
            with path.open("w+b") as file:
                file.truncate(1 << 21)
                self._kept.append(mmap.mmap(file.fileno(), 1 << 21))
            path.unlink()

    def processes(self) -> None:
        """Processes that come and go, with the region mapped and long command lines."""

        def storm() -> None:
            while True:
                pid = os.fork()
                if pid == 0:
                    with self._region.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
                        time.sleep(0.05)
                    os._exit(0)
                os.waitpid(pid, 0)

        for _ in range(20):
            self._fork(storm)
        self._wait()

    def stopped(self) -> None:
        """Processes that hold the region, and a lock of it, and are stopped."""

        def hold() -> None:
            with self._region.open("r+b") as file, mmap.mmap(file.fileno(), 4096) as memory:
                memory[16:24] = struct.pack("<Q", os.getpid())
                fcntl.flock(file, fcntl.LOCK_EX)
                os.kill(os.getpid(), signal.SIGSTOP)

        for _ in range(10):
            self._fork(hold)
        self._wait()

    def mount_over(self) -> None:
        """A FUSE that nobody serves, over its own directory, in its own mount namespace."""
        fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        try:
            words = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
            over = os.fsencode(self._directory)
            if _LIBC.mount(b"dead", over, b"fuse.dead", 0, words) == 0:
                # Something of this container hangs in it meanwhile.
                threading.Thread(target=self._hang, daemon=True).start()
                self._wait()
                _LIBC.umount2(over, 2)
        finally:
            os.close(fuse)

    def _hang(self) -> None:
        with contextlib.suppress(OSError):
            os.listdir(self._directory)  # noqa: PTH208


if __name__ == "__main__":
    Tenant(int(sys.argv[1]), Path(sys.argv[2])).play()
